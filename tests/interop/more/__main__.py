"""`make interop-more`: clients in Go and JavaScript copy a topic in transactions, as members of a group.

Each writes COUNT records to a topic, reads them as a member of a group, and writes them to another topic in
transactions with their offsets; every third transaction is aborted. Then the sink has each record once for
`read_committed` readers, more than once for others, and the group has committed everything. Needs `go` and `npm`; what
is missing is skipped and named. Prints the table of docs/clients.md.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla_cli.local_cluster import LocalCluster

HERE = Path(__file__).parent
COUNT, PARTITIONS = 300, 3
_BUILD_TIMEOUT_S, _RUN_TIMEOUT_S, _READ_TIMEOUT_S = 600, 120, 20.0


def build_go(source: Path, scratch: Path) -> list[str]:
    binary = scratch / source.name
    subprocess.run(["go", "build", "-o", str(binary), "."], cwd=source, check=True, timeout=_BUILD_TIMEOUT_S)
    return [str(binary)]


def build_node(source: Path, scratch: Path) -> list[str]:
    folder = scratch / source.name
    shutil.copytree(source, folder)
    quiet = ["npm", "install", "--silent", "--no-audit", "--no-fund"]
    subprocess.run(quiet, cwd=folder, check=True, timeout=_BUILD_TIMEOUT_S)
    return ["node", str(folder / "main.js")]


def go_version(source: Path) -> str:
    found = re.search(r"^require \S+ v(\S+)$", (source / "go.mod").read_text(), re.MULTILINE)
    return found[1] if found else "?"


def node_version(source: Path) -> str:
    (version,) = json.loads((source / "package.json").read_text())["dependencies"].values()
    return str(version)


#: Folder, what it needs, how it is built, its version, the group protocols that it has.
CLIENTS: tuple[
    tuple[str, str, Callable[[Path, Path], list[str]], Callable[[Path], str], tuple[str, ...]], ...
] = (
    ("franz-go", "go", build_go, go_version, ("classic", "consumer")),
    ("sarama", "go", build_go, go_version, ("classic",)),
    ("kafkajs", "npm", build_node, node_version, ("classic",)),
)


def main() -> int:
    failures = 0
    with LocalCluster() as cluster, tempfile.TemporaryDirectory(prefix="ottla-clients-") as scratch:
        say("| client | version | group protocol | result |", "| --- | --- | --- | --- |")
        for name, needs, build, version, protocols in CLIENTS:
            if shutil.which(needs) is None:
                say(f"| {name} | | | not run: `{needs}` is missing |")
                continue
            command = build(HERE / name, Path(scratch))
            for protocol in protocols:
                result = copied(cluster.kafka_bootstrap, f"{name}-{protocol}", command, protocol)
                failures += not result.startswith("each record once")
                say(f"| {name} | {version(HERE / name)} | {protocol} | {result} |")
    return 1 if failures else 0


def copied(bootstrap: str, group: str, command: list[str], protocol: str) -> str:
    source, sink = f"{group}-source", f"{group}-sink"
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (source, sink)]).values():
        made.result(_READ_TIMEOUT_S)
    began = time.monotonic()
    arguments = [bootstrap, source, sink, group, str(COUNT), protocol]
    try:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=_RUN_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"failed: not done in {_RUN_TIMEOUT_S} s"
    took_s = time.monotonic() - began
    if done.returncode != 0:
        return f"failed: {done.stderr.strip()[-500:]}"
    found = sorted(int(value) for value in read(bootstrap, sink, "read_committed"))
    if found != list(range(COUNT)):
        return f"failed: {len(found)} records, {len(set(found))} different ones"
    if len(read(bootstrap, sink, "read_uncommitted")) <= COUNT:
        return "failed: no transaction was aborted"
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})) as reader:
        asked = [TopicPartition(source, number) for number in range(PARTITIONS)]
        committed = sum(max(each.offset, 0) for each in reader.committed(asked, timeout=_READ_TIMEOUT_S))
    if committed != COUNT:
        return f"failed: {committed} of {COUNT} records are committed"
    return f"each record once, {took_s:.1f} s"


def read(bootstrap: str, topic: str, isolation: str) -> list[bytes]:
    """Everything up to the end that this isolation level shows."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "reads",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "log_level": 0,
    }
    found, ended, deadline = [], 0, time.monotonic() + _READ_TIMEOUT_S
    with closing(Consumer(settings)) as reader:
        reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        while ended < PARTITIONS and time.monotonic() < deadline:
            for message in reader.consume(COUNT, 0.2):
                if message.error() is None:
                    found.append(message.value() or b"")
                else:
                    ended += 1
    return found


def say(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
