"""Spark and the jobs with brokers that want TLS and a login: `kafka.security.protocol=SASL_SSL`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from certificates import Authority
from jobs import archive, generate
from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic
from ottla_client.sync import Admin
from pyspark_ottla.job_options import JobOptions, parsed

pytestmark = pytest.mark.integration

_PASSWORD = "root-secret-1"


@dataclass
class Secured:
    bootstrap: str
    #: As a user writes it, with the password.
    options_file: Path

    @property
    def options(self) -> JobOptions:
        return parsed([], [str(self.options_file)], reads=True, writes=True)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder / "ca")
    certificate = authority.issue("broker", "/CN=broker", into=folder / "broker.pem")
    (folder / "users").write_text(f"root:{_PASSWORD}\n")
    settings = {
        "grpc.listeners": "NATIVE://127.0.0.1:0",
        "advertised.grpc.listeners": "NATIVE://localhost:0",
        "listener.security.protocol.map": "NATIVE:SASL_SSL",
        "ssl.keystore.location": str(certificate),
        "sasl.users.file": str(folder / "users"),
    }
    file = folder / "brokers.properties"
    file.write_text(
        "kafka.security.protocol=SASL_SSL\nkafka.sasl.mechanism=SCRAM-SHA-256\nkafka.sasl.username=root\n"
        f"kafka.sasl.password={_PASSWORD}\nkafka.ssl.ca.location={authority.file}\n"
    )
    with LocalCluster(settings=settings) as cluster:
        facts = json.loads(Path(cluster.folder.file("broker-0.ready")).read_text())
        made = Secured("localhost:" + facts["grpc"].rpartition(":")[2], file)
        with Admin(made.bootstrap, security=made.options.security()) as admin:
            admin.create_topics([NewTopic("events", 2), NewTopic("copied", 1)])
        yield made


def test_jobs_log_in_with_the_options_of_a_file(
    spark: SparkSession, secured: Secured, tmp_path: Path
) -> None:
    plan = generate.Plan(events=300)
    sent = generate.send(secured.bootstrap, "events", plan, options=secured.options)
    job = archive.Job(
        secured.bootstrap,
        "events",
        str(tmp_path / "archive"),
        str(tmp_path / "checkpoint"),
        options=secured.options,
    )
    assert archive.start(spark, job).awaitTermination(120)
    assert spark.read.parquet(job.parquet).count() == sent


def test_spark_reads_and_writes_with_tls_and_a_login(spark: SparkSession, secured: Secured) -> None:
    brokers = {"bootstrap.servers": secured.bootstrap, **secured.options.given}
    rows = spark.range(5).selectExpr("binary(string(id)) as value")
    rows.write.format("ottla").options(**brokers, topic="copied").mode("append").save()
    found = spark.read.format("ottla").options(**brokers, subscribe="copied").load()
    assert sorted(bytes(row.value) for row in found.collect()) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_wrong_password_is_one_sentence(spark: SparkSession, secured: Secured) -> None:
    brokers = {"bootstrap.servers": secured.bootstrap, **secured.options.given, "kafka.sasl.password": "no"}
    with pytest.raises(PySparkException, match=r"(?i)authentication|password"):
        spark.read.format("ottla").options(**brokers, subscribe="copied").load().collect()
