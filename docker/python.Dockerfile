# The broker or the operator: docker build -f docker/python.Dockerfile --build-arg ROLE=broker -t ottla-broker:0.1.0 .
#
# BASE is any image with Debian's or python.org's Python 3.11 or newer, also one from a private registry.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
ARG ROLE=broker
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY core core
COPY broker broker
COPY client client
COPY cli cli
COPY operator operator
COPY spark spark
# Into a folder of its own, so that the image gets neither pip's cache nor the sources.
RUN python3 -m venv /opt/ottla && /opt/ottla/bin/pip install --no-cache-dir --no-compile ".[${ROLE}]"

FROM ${BASE}
ARG ROLE=broker
LABEL org.opencontainers.image.title="ottla-${ROLE}" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/ottla /opt/ottla
ENV PATH=/opt/ottla/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OTTLA_ROLE=${ROLE}
# By number, so that Kubernetes can check `runAsNonRoot`; the chart's volumes belong to this group.
USER 10001:10001
# `exec`, so that the program is process 1 and gets SIGTERM. The chart passes the operator its argument.
ENTRYPOINT ["/bin/sh", "-c", "exec python3 -m ottla_${OTTLA_ROLE} \"$@\"", "ottla"]
