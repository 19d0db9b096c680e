"""Three brokers of either side behind one interface: processes, leaders, kill, pause, restart. [A]

Ottla is three brokers and one etcd as `ottla up --brokers 3` starts them; Kafka is three servers that are broker and
controller in one. Both get empty folders and free ports, and nothing of them is left afterwards.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from ottla_bench.contenders import KAFKA, await_metadata
from ottla_bench.kafka_jars import KAFKA_METADATA_QUORUM, run_tool
from ottla_bench.kafka_server import KafkaServer, seats
from ottla_bench.leadership_changes import KAFKA_LOGS_CHANGES, Changes, EtcdChanges, kafka_changes
from ottla_cli.local_cluster import START_TIMEOUT_S, LocalCluster

BROKERS = 3
_POLL_S = 0.05
_LOOK_TIMEOUT_S = 20.0
#: Three JVMs at once on two cores take 9 s, and on a busy machine many times that.
_START_TIMEOUT_S = 240.0


class Trio(Protocol):
    #: From the first exec until every broker has answered a Metadata request.
    started_in_s: float
    #: How long to leave it alone after a broker was lost, before the next one is.
    lull_s: float

    @property
    def bootstrap(self) -> str: ...

    @property
    def pids(self) -> dict[int, int]: ...

    @property
    def etcd_pid(self) -> int | None: ...

    def controller(self) -> int: ...

    def kill(self, broker_id: int) -> None: ...

    def restart(self, broker_id: int) -> None: ...

    def changes(self) -> AbstractContextManager[Changes]: ...


class OttlaTrio:
    #: At most half of the brokers are declared dead within one lease of 6 s (rule 15), then it takes the lease itself.
    lull_s = 6.5

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        began = time.monotonic()
        cluster.begin()
        for address in self.bootstrap.split(","):
            await_metadata(address, began + START_TIMEOUT_S)
        self.started_in_s = time.monotonic() - began
        cluster.wait_ready(began + START_TIMEOUT_S)

    @property
    def bootstrap(self) -> str:
        return self._cluster.kafka_bootstrap

    @property
    def pids(self) -> dict[int, int]:
        return self._cluster.pids

    @property
    def etcd_pid(self) -> int | None:
        return None if self._cluster.etcd is None else self._cluster.etcd.child.pid

    def controller(self) -> int:
        return int(look(self).controller_id)

    def kill(self, broker_id: int) -> None:
        self._cluster.kill(broker_id)

    def restart(self, broker_id: int) -> None:
        self._cluster.restart(broker_id)

    def changes(self) -> AbstractContextManager[Changes]:
        return EtcdChanges(self._cluster.etcd_endpoint)


class KafkaTrio:
    lull_s = 0.0
    etcd_pid = None

    def __init__(self, folder: str, settings: Mapping[str, str]) -> None:
        self._servers = {
            seat.node_id: KafkaServer(
                str(Path(folder) / str(seat.node_id)),
                seat=seat,
                overrides=dict(settings),
                jvm_options=KAFKA_LOGS_CHANGES,
                start_timeout_s=_START_TIMEOUT_S,
            )
            for seat in seats(BROKERS)
        }
        self.started_in_s = 0.0

    def start(self) -> None:
        for server in self._servers.values():
            server.format()
        began = time.monotonic()
        for server in self._servers.values():
            server.spawn()
        for server in self._servers.values():
            server.wait_ready()
        self.started_in_s = time.monotonic() - began

    def stop(self) -> None:
        # Two of three are a quorum; asked one after the other, the last ones would wait for it in vain.
        for server in self._servers.values():
            server.kill()

    @property
    def bootstrap(self) -> str:
        return ",".join(server.bootstrap for server in self._servers.values())

    @property
    def pids(self) -> dict[int, int]:
        return {node: server.pid for node, server in self._servers.items()}

    def controller(self) -> int:
        """Metadata names any broker (KIP-590): the quorum's leader is a question of its own."""
        done = run_tool(KAFKA_METADATA_QUORUM, "--bootstrap-server", self.bootstrap, "describe", "--status")
        found = re.search(r"LeaderId:\s*(\d+)", done.stdout)
        if found is None:
            raise RuntimeError(f"Kafka's quorum tool names no leader: {done.stdout}{done.stderr}")
        return int(found[1])

    def kill(self, broker_id: int) -> None:
        self._servers[broker_id].kill()

    def restart(self, broker_id: int) -> None:
        self._servers[broker_id].start()

    def changes(self) -> AbstractContextManager[Changes]:
        return kafka_changes(server.log_file for server in self._servers.values())


@contextmanager
def running_trio(name: str, settings: Mapping[str, str] | None = None) -> Iterator[Trio]:
    """`settings`: of every broker, by names that both sides know."""
    with ExitStack() as stack:
        if name == KAFKA:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-"))
            kafka = KafkaTrio(folder, settings or {})
            stack.callback(kafka.stop)
            kafka.start()
            yield kafka
        else:
            cluster = LocalCluster(brokers=BROKERS, settings=settings)
            stack.callback(cluster.stop)
            yield OttlaTrio(cluster)


# ---------------------------------------------------------------------- what is asked of both


def look(trio: Trio) -> ClusterMetadata:
    admin = AdminClient({"bootstrap.servers": trio.bootstrap, "log_level": 0})
    return admin.list_topics(timeout=_LOOK_TIMEOUT_S)


def partition_led_by(trio: Trio, topic: str, broker_id: int) -> int:
    partitions = look(trio).topics[topic].partitions
    led = [number for number, partition in partitions.items() if partition.leader == broker_id]
    if not led:
        raise RuntimeError(f"Broker {broker_id} leads no partition of {topic}.")
    return int(min(led))


def until_whole(trio: Trio, within_s: float = 120.0) -> None:
    """All brokers here, all replicas in sync, every partition led."""
    deadline = time.monotonic() + within_s
    while not _is_whole(trio):
        if time.monotonic() > deadline:
            raise RuntimeError(f"Not all replicas are in sync after {within_s:.0f} s.")
        time.sleep(_POLL_S)


def _is_whole(trio: Trio) -> bool:
    try:
        seen = look(trio)
    except KafkaException:
        return False
    partitions = [p for topic in seen.topics.values() for p in topic.partitions.values()]
    return len(seen.brokers) == BROKERS and all(
        p.leader >= 0 and len(p.isrs) == len(p.replicas) for p in partitions
    )


def pause(trio: Trio, broker_id: int) -> None:
    os.kill(trio.pids[broker_id], signal.SIGSTOP)


def resume(trio: Trio, broker_id: int) -> None:
    os.kill(trio.pids[broker_id], signal.SIGCONT)
