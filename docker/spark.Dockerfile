# Spark with the data source `ottla` and the jobs of spark/jobs, for drivers and executors on Kubernetes:
#   docker build -f docker/spark.Dockerfile -t ottla-spark:0.1.0 .
#
# BASE is a Debian with Python 3.11 or newer; Java and Spark (from PyPI, with its jars) are added.
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
# The compiler stays in this stage, as in python.Dockerfile.
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
RUN python3 -m venv /opt/ottla && OTTLA_COMPILED=1 /opt/ottla/bin/pip install --no-cache-dir --no-compile ".[spark]"

FROM ${BASE}
ARG JAVA=openjdk-17-jre-headless
LABEL org.opencontainers.image.title="ottla-spark" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/ottla /opt/ottla
# Hadoop's login asks the system for the name of the user: a number alone ends the driver with "invalid null input: name".
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ${JAVA} tini \
    && rm -rf /var/lib/apt/lists/* \
    && ln -s "$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")" /opt/java \
    && ln -s "$(/opt/ottla/bin/python3 -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')" /opt/spark \
    && groupadd --gid 10001 ottla \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp ottla
COPY spark/jobs /opt/jobs
COPY --chmod=0755 e2e/ottla_e2e/pods/spark_pod.py /usr/local/bin/spark-pod
ENV JAVA_HOME=/opt/java SPARK_HOME=/opt/spark PATH=/opt/ottla/bin:/opt/spark/bin:$PATH PYSPARK_PYTHON=/opt/ottla/bin/python3
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["/opt/ottla/bin/python3", "/usr/local/bin/spark-pod"]
