"""One Spark for the whole folder: a JVM takes seconds to start, a query tenths of one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic
from ottla_client.sync import Admin, Producer
from spark.spark_queries import Collected


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Workers run the Python that runs the tests; without this they would take the first python3 of PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder: Path = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("ottla-tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        # A JVM that lives for seconds: compiling for the long run would take a third of its time.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def admin(local_cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(local_cluster.grpc_bootstrap) as made:
        yield made


@pytest.fixture
def make_topic(admin: Admin) -> Callable[..., str]:
    """A topic of its own: `make_topic(partitions)` gives its name."""

    def make(partitions: int = 1, **configs: str) -> str:
        name = f"spark-{uuid4().hex[:8]}"
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        # Tests write records of years ago; a retention check must not find them.
        kept = {"retention.ms": "-1", **settings}
        admin.create_topics([NewTopic(name, partitions, configs=kept)])
        return name

    return make


@pytest.fixture
def send(local_cluster: LocalCluster) -> Callable[..., None]:
    def send(topic: str, numbers: Iterator[int] | range, partitions: int = 1) -> None:
        with Producer(local_cluster.grpc_bootstrap) as producer:
            for n in numbers:
                producer.send(topic, b"%d" % n, partition=n % partitions)

    return send


@pytest.fixture
def collect(spark: SparkSession, local_cluster: LocalCluster, tmp_path: Path) -> Callable[[str], Collected]:
    return lambda topic: Collected(spark, local_cluster.grpc_bootstrap, topic, tmp_path / "checkpoint")
