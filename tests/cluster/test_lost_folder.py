"""Three real brokers with two log folders each; one folder of one broker fails while a client writes."""

from __future__ import annotations

import asyncio
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from broker.edge.kafka_peer import Peer
from cluster.steady_writer import SteadyWriter, read_all
from cluster.two_folder_broker import folders_of
from ottla_cli.local_cluster import LocalCluster
from ottla_core.errors import KafkaStorageError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TOPIC = "t"
PARTITIONS = 8
VICTIM = 1
OTHERS = [0, 2]
ALL = [0, 1, 2]


class Cluster:
    def __init__(self, cluster: LocalCluster) -> None:
        self.local = cluster
        self.admin = AdminClient({"bootstrap.servers": cluster.kafka_bootstrap, "log_level": 0})
        log_dir = cluster.brokers[VICTIM].log_dir
        self.bad, self.good = (Path(folder) for folder in folders_of(log_dir))
        self.switch = Path(f"{self.bad}.failed")

    def create_topic(self) -> None:
        new = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        for made in self.admin.create_topics([new], request_timeout=20).values():
            made.result(20)

    def state(self) -> dict[int, tuple[int, list[int]]]:
        """Leader and in-sync set of each partition."""
        seen = self.admin.list_topics(TOPIC, timeout=20).topics[TOPIC].partitions
        return {index: (p.leader, sorted(p.isrs)) for index, p in seen.items()}

    def until(self, holds: Callable[[dict[int, tuple[int, list[int]]]], bool], within_s: float = 40) -> float:
        began = time.monotonic()
        while not holds(seen := self.state()):
            assert time.monotonic() - began < within_s, f"it did not happen in time: {seen}"
            time.sleep(0.05)
        return time.monotonic() - began

    def hosted(self, folder: Path) -> set[int]:
        """Partitions that the victim has in one of its folders."""
        return {int(path.name.rpartition("-")[2]) for path in folder.glob(f"{TOPIC}-*")}

    def metric(self, name: str) -> float:
        page = urllib.request.urlopen(f"http://{self.local.brokers[VICTIM].http}/metrics", timeout=10)
        (line,) = [text for text in page.read().decode().splitlines() if text.startswith(name)]
        return float(line.rpartition(" ")[2])


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    program = str(Path(__file__).with_name("two_folder_broker.py"))
    with LocalCluster(brokers=3, broker_command=(sys.executable, "-P", program)) as local:
        yield Cluster(local)


def test_what_was_in_a_lost_folder_is_led_elsewhere_and_catches_up_after_a_restart(cluster: Cluster) -> None:
    def hosted() -> set[int]:
        return cluster.hosted(cluster.bad) | cluster.hosted(cluster.good)

    cluster.create_topic()
    # A broker may have its folders a moment after the topic was created, with all replicas in sync from the start.
    cluster.until(lambda seen: all(isr == ALL for _, isr in seen.values()) and len(hosted()) == PARTITIONS)
    lost, kept = cluster.hosted(cluster.bad), cluster.hosted(cluster.good)
    assert lost and kept and not lost & kept
    pids = cluster.local.pids
    with SteadyWriter(cluster.local.kafka_bootstrap, TOPIC) as writer:
        assert {cluster.state()[index][0] for index in lost} >= {VICTIM}, "it leads some of what it loses"
        cluster.switch.touch()
        cluster.until(
            lambda seen: (
                all(seen[n][0] in OTHERS and seen[n][1] == OTHERS for n in lost)
                and all(isr == ALL for n, (_, isr) in seen.items() if n in kept)
            ),
            within_s=20,
        )
        # It leads on from its other folder, and does not come back into sets that it left.
        assert VICTIM in {cluster.state()[index][0] for index in kept}
        time.sleep(2)
        assert all(cluster.state()[n][1] == OTHERS for n in lost)
        assert cluster.local.pids == pids and cluster.local.dead == []
        _check_told(cluster)
        # Sound again, it is scanned at the next start, follows, and is counted on again.
        cluster.local.stop_broker(VICTIM)
        cluster.switch.unlink()
        cluster.local.restart(VICTIM)
        cluster.until(lambda seen: all(isr == ALL for _, isr in seen.values()))
        assert cluster.metric("ottla_log_dirs_offline") == 0
        time.sleep(0.5)
    assert writer.failed == []
    found = read_all(cluster.local.kafka_bootstrap, TOPIC, PARTITIONS)
    assert len(found) == len(set(found)) and set(writer.acknowledged) <= set(found)


def _check_told(cluster: Cluster) -> None:
    assert cluster.metric("ottla_log_dirs_offline") == 1
    assert asyncio.run(_described(cluster)) == {
        str(cluster.bad): KafkaStorageError.code,
        str(cluster.good): 0,
    }


async def _described(cluster: Cluster) -> dict[str, int]:
    peer = await Peer.connect(int(cluster.local.brokers[VICTIM].kafka.rpartition(":")[2]))
    try:
        answer = await peer.ask(35, 4, topics=None)
        return {found.log_dir: found.error_code for found in answer.results}
    finally:
        peer.close()
