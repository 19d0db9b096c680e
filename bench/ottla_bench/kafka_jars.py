"""Apache Kafka's own jars, fetched by Maven coordinates, and a way to run the tools in them. [A]

Used by the interop tests (Kafka's tools against Ottla) and by the side-by-side benchmark. The jars are
in the user's cache folder, never in the checkout; where they come from is Maven's configuration, not ours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

KAFKA_VERSION = "4.3.0"
#: Clients live long: the oldest one whose tools are tried as well is of mid-2023.
OLD_KAFKA_VERSION = "3.5.2"
_COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_FETCH_TIMEOUT_S = 900
_INSTALL_TIMEOUT_S = 600

#: The class behind each of Kafka's scripts in bin/.
KAFKA_TOPICS = "org.apache.kafka.tools.TopicCommand"
KAFKA_ACLS = "org.apache.kafka.tools.AclCommand"
KAFKA_CONFIGS = "kafka.admin.ConfigCommand"
KAFKA_CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
KAFKA_CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
KAFKA_PRODUCER_PERF_TEST = "org.apache.kafka.tools.ProducerPerformance"
KAFKA_GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
KAFKA_DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
KAFKA_DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
KAFKA_LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
KAFKA_REASSIGN_PARTITIONS = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
KAFKA_LEADER_ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
KAFKA_METADATA_QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
KAFKA_CLUSTER = "org.apache.kafka.tools.ClusterTool"
KAFKA_TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
KAFKA_VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
KAFKA_VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
KAFKA_BROKER_API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
KAFKA_STORAGE = "kafka.tools.StorageTool"
KAFKA_SERVER = "kafka.Kafka"
#: Applications, not tools: they run until they are stopped, and are among other jars (`applications_classpath`).
STREAMS_WORD_COUNT = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
CONNECT_STANDALONE = "org.apache.kafka.connect.cli.ConnectStandalone"
MIRROR_MAKER = "org.apache.kafka.connect.mirror.MirrorMaker"

#: Tools live for a second or two: the quick compiler and the simplest collector start fastest.
_TOOL_JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_LOG_OPTIONS = (
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)


def coordinates(version: str) -> tuple[str, ...]:
    """What is asked for; everything these need comes along.

    slf4j-simple writes to standard error, so that what a tool prints on standard output stays what it prints.
    """
    return (
        f"org.apache.kafka:kafka_2.13:{version}",
        f"org.apache.kafka:kafka-tools:{version}",
        "org.slf4j:slf4j-simple:1.7.36",
    )


def application_coordinates(version: str) -> tuple[str, ...]:
    """Kafka Streams with its examples, Connect with its file connectors, and MirrorMaker 2."""
    names = ("kafka-streams-examples", "connect-runtime", "connect-file", "connect-mirror")
    return (*(f"org.apache.kafka:{name}:{version}" for name in names), "org.slf4j:slf4j-simple:1.7.36")


class KafkaJarsUnavailable(RuntimeError):
    """Java, Maven or the jars are not to be had here; the message says what to do."""


def cache_folder(version: str = KAFKA_VERSION) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "ottla" / f"kafka-{version}"


@cache
def java() -> str:
    """The Java to run; from JAVA_HOME, the PATH, or (when root) apt."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return _command("java", "default-jre-headless")


@cache
def classpath(version: str = KAFKA_VERSION) -> str:
    """The class path with Kafka's server and tools, fetched on first use."""
    return _jars_in(cache_folder(version), coordinates(version))


@cache
def applications_classpath(version: str = KAFKA_VERSION) -> str:
    """The class path of `application_coordinates`: 115 MB more, so only what runs them fetches it."""
    folder = cache_folder(version)
    return _jars_in(folder.with_name(f"kafka-applications-{version}"), application_coordinates(version))


def _jars_in(folder: Path, wanted: tuple[str, ...]) -> str:
    if not folder.is_dir():
        fetch(folder, wanted)
    if not any(folder.glob("kafka-clients-*.jar")):
        raise KafkaJarsUnavailable(f"{folder} does not hold Kafka's jars; remove the folder and try again.")
    # Java reads the star itself; eighty paths would bury every process listing.
    return str(folder / "*")


def java_command(
    main_class: str,
    *arguments: str,
    jvm_options: tuple[str, ...] = _TOOL_JVM_OPTIONS,
    version: str = KAFKA_VERSION,
) -> list[str]:
    return [java(), *jvm_options, *_LOG_OPTIONS, "-cp", classpath(version), main_class, *arguments]


def application_command(main_class: str, *arguments: str) -> list[str]:
    """For Streams, Connect or MirrorMaker; the options are those of tools, because tests stop them soon."""
    where = ("-cp", applications_classpath())
    return [java(), *_TOOL_JVM_OPTIONS, *_LOG_OPTIONS, *where, main_class, *arguments]


def run_tool(
    main_class: str,
    *arguments: str,
    stdin: str | None = None,
    timeout_s: float = 60,
    version: str = KAFKA_VERSION,
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's tools to its end. `TimeoutExpired` (and the tool killed) if it takes too long."""
    return subprocess.run(
        java_command(main_class, *arguments, version=version),
        input=stdin if stdin is not None else "",
        capture_output=True,
        encoding="utf-8",
        timeout=timeout_s,
        check=False,
    )


def fetch(folder: Path, wanted: tuple[str, ...], *, alone: bool = False) -> None:
    """Copy the jars beside their place and rename: a broken download never looks like a whole one.

    `alone`: without what they need.
    """
    maven = _command("mvn", "maven")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
        pom, jars = Path(scratch) / "pom.xml", Path(scratch) / "jars"
        pom.write_text(_pom(wanted, alone), encoding="utf-8")
        command = [maven, "-B", "-q", "-ntp", "-f", str(pom), _COPY_GOAL]
        command += [f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False)
        if done.returncode != 0:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
            raise KafkaJarsUnavailable(f"Maven could not fetch {', '.join(wanted)}:\n{tail}")
        try:
            jars.rename(folder)
        except OSError:
            # Another process was faster; its jars are the same.
            if not folder.is_dir():
                raise


def _pom(coordinates: tuple[str, ...], alone: bool) -> str:
    without = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>".format(
            *coordinate.split(":"), without if alone else ""
        )
        for coordinate in coordinates
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>dev.ottla</groupId><artifactId>kafka-jars</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )


def _command(name: str, package: str) -> str:
    """The path of a command, installing its Debian package when root."""
    found = shutil.which(name)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", package]
        done = subprocess.run(
            install, env=quiet, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise KafkaJarsUnavailable(f"apt-get could not install {package}: {done.stderr.strip()[-500:]}")
        found = shutil.which(name)
    if found is None:
        raise KafkaJarsUnavailable(
            f"`{name}` is not on the PATH; install the package {package} and try again."
        )
    return found
