# The broker or the operator: docker build -f docker/python.Dockerfile --build-arg ROLE=broker -t ottla-broker:0.1.0 .
#
# BASE is any image with Debian's or python.org's Python 3.11 or newer, also one from a private registry.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
ARG ROLE=broker
# The compiler stays in this stage. Debian's Python has its headers and venv in packages of their own.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && { test -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" \
        || apt-get install --yes --no-install-recommends python3-dev python3-venv; }
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY scripts/build_hook.py scripts/compile.py scripts/
COPY core core
COPY broker broker
COPY client client
COPY cli cli
COPY operator operator
COPY spark spark
# An error rather than an image without compiled modules (scripts/build_hook.py). Into a folder of its own, so that the
# image gets neither pip's cache nor the sources.
RUN python3 -m venv /opt/ottla && OTTLA_COMPILED=1 /opt/ottla/bin/pip install --no-cache-dir --no-compile ".[${ROLE}]"

FROM ${BASE}
ARG ROLE=broker
LABEL org.opencontainers.image.title="ottla-${ROLE}" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/ottla /opt/ottla
ENV PATH=/opt/ottla/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OTTLA_ROLE=${ROLE}
# By number, so that Kubernetes can check `runAsNonRoot`; the chart's volumes belong to this group.
USER 10001:10001
# `exec`, so that the program is process 1 and gets SIGTERM. The chart passes the operator its argument.
ENTRYPOINT ["/bin/sh", "-c", "exec python3 -m ottla_${OTTLA_ROLE} \"$@\"", "ottla"]
