# Spark with the data source `ottla`, for drivers and executors on Kubernetes:
#   docker build -f docker/spark.Dockerfile -t ottla-spark:0.1.0 .
#
# BASE is a Debian with Python 3.11 or newer; Java and Spark (from PyPI, with its jars) are added.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}
ARG JAVA=openjdk-17-jre-headless
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ${JAVA} tini \
    && rm -rf /var/lib/apt/lists/* \
    && ln -s "$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")" /opt/java
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY core core
COPY broker broker
COPY client client
COPY cli cli
COPY operator operator
COPY spark spark
RUN python3 -m venv /opt/ottla \
    && /opt/ottla/bin/pip install --no-cache-dir --no-compile ".[spark]" \
    && ln -s "$(/opt/ottla/bin/python3 -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')" /opt/spark \
    && mkdir -p /opt/jobs && cp spark/jobs/*.py /opt/jobs/ \
    && rm -rf /build
COPY --chmod=0755 e2e/ottla_e2e/pods/spark_pod.py /usr/local/bin/spark-pod
ENV JAVA_HOME=/opt/java SPARK_HOME=/opt/spark PATH=/opt/ottla/bin:/opt/spark/bin:$PATH PYSPARK_PYTHON=/opt/ottla/bin/python3
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["/opt/ottla/bin/python3", "/usr/local/bin/spark-pod"]
