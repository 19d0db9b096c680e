"""The parts of the run that decide something without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla_e2e import libraries, memory
from ottla_e2e.kube import condition, ready
from ottla_e2e.pods.check_archive import committed
from ottla_e2e.pods.spark_pod import driver, executor
from ottla_e2e.say import Fault


@pytest.mark.parametrize(
    "stat",
    ["cache 50\nrss 1\ntotal_rss 600\ntotal_inactive_file 300", "anon 600\nfile 50\ninactive_file 300"],
    ids=["cgroup v1", "cgroup v2"],
)
def test_counters_of_both_versions(stat: str) -> None:
    assert memory.parse("pod", f"1000\n{stat}\n") == memory.Usage("pod", 600, 700, 1000)


def test_the_table_adds_up() -> None:
    mib = 1024 * 1024
    usages = [memory.Usage("a", mib, 2 * mib, 3 * mib), memory.Usage("b", mib, mib, mib)]
    assert memory.table(usages)[-1].split() == ["together", "2.0", "3.0", "4.0"]


def test_libraries_come_with_what_they_need(tmp_path: Path) -> None:
    found = libraries.closure(["kopf>=1"])
    names = {each.name for each in found}
    assert {"kopf", "aiohttp", "pyyaml"} <= {name.lower() for name in names}
    assert "pytest" not in names
    (only,) = [each for each in found if each.name == "kopf"]
    libraries.copy([only], tmp_path)
    assert (tmp_path / "kopf/__init__.py").exists()
    assert not (tmp_path / "bin").exists()


def test_a_library_that_is_not_there_is_named() -> None:
    with pytest.raises(Fault, match="no-such-thing is not in this virtual environment"):
        libraries.closure(["no-such-thing"])


def test_a_condition_about_an_older_spec_does_not_count() -> None:
    row = {"type": "Ready", "status": "True"}
    found = {"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "conditions": [row]}}
    assert ready(found) is found
    found["metadata"]["generation"] = 3
    assert ready(found) is None
    assert condition(found, "Ready") == {}


def test_an_executor_gets_its_options_in_order() -> None:
    environ = {
        "JAVA_HOME": "/java", "SPARK_HOME": "/spark", "SPARK_EXECUTOR_MEMORY": "512m", "SPARK_CONF_DIR": "/conf",
        "SPARK_DRIVER_URL": "spark://d", "SPARK_EXECUTOR_ID": "1", "SPARK_EXECUTOR_CORES": "1",
        "SPARK_APPLICATION_ID": "app", "SPARK_EXECUTOR_POD_IP": "10.0.0.1", "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod", **{f"SPARK_JAVA_OPT_{n}": f"-D{n}=a b" for n in (10, 9, 0)},
    }  # fmt: skip
    command = executor(environ)
    assert command[:4] == ["/java/bin/java", "-D0=a b", "-D9=a b", "-D10=a b"]
    assert command[command.index("-cp") + 1] == "/conf:/spark/jars/*"
    assert command[command.index("--podName") + 1] == "pod"


def test_a_driver_is_a_spark_submit_in_client_mode() -> None:
    command = driver(
        {"SPARK_HOME": "/spark", "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.2"}, ["--class", "Main", "a b"]
    )
    assert command[:3] == ["/spark/bin/spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.2"]
    assert command[3:] == ["--deploy-mode", "client", "--class", "Main", "a b"]


def test_files_of_an_archive_are_those_that_were_committed(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    entry = '{"path":"file:///data/%s.parquet","size":1,"action":"add"}'
    (log / "9.compact").write_text("v1\n" + "\n".join(entry % name for name in "ab"))
    (log / "10").write_text("v1\n" + entry % "c")
    (log / ".10.crc").write_text("not a log")
    (log / "8").write_text("v1\n" + entry % "b")  # in the compacted file too
    assert committed(tmp_path) == ["/data/a.parquet", "/data/b.parquet", "/data/c.parquet"]
