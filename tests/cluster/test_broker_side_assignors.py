"""Two real brokers in two racks assign for librdkafka's members: by rack, and by an assignor of another package."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer

from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic
from ottla_client.group_admin import GroupDescription
from ottla_client.sync import Admin

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TOPIC, PARTITIONS = "t", 6
PATIENCE_S = 30.0

#: A package as a user installs it.
MODULE = """
class FirstTakesAll:
    name = "first-takes-all"
    shares_partitions = False

    def assign(self, topology, members, parameters):
        from ottla_core.ids import TopicPartition
        if parameters.get("tolerance") == "1":
            raise RuntimeError("as it was asked to")
        every = [TopicPartition(topic, n) for topic, count in topology.counts.items() for n in range(count)]
        return {member: [] if number else every for number, member in enumerate(sorted(members))}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder: Path = tmp_path_factory.mktemp("assignors")
    (folder / "first_takes_all.py").write_text(MODULE)
    info = folder / "first_takes_all-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: first-takes-all\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[ottla.assignors]\nfirst-takes-all = first_takes_all:FirstTakesAll\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        with LocalCluster(brokers=2, racks=("a", "b")) as made:
            with Admin(made.grpc_bootstrap) as admin:
                # Odd partitions are on broker 1 in rack b, even ones on broker 0 in rack a.
                admin.create_topics(
                    [NewTopic(TOPIC, replica_assignments={n: [n % 2] for n in range(PARTITIONS)})]
                )
            yield made


@pytest.fixture
def group() -> str:
    return f"g-{uuid4().hex[:8]}"


class Members:
    """Consumers of librdkafka in one group, polled until something holds."""

    def __init__(self, cluster: LocalCluster, group: str, *settings: dict[str, str]) -> None:
        common = {
            "bootstrap.servers": cluster.kafka_bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "log_level": 0,
        }
        self.consumers = [Consumer({**common, **each}) for each in settings]
        for each in self.consumers:
            each.subscribe([TOPIC])

    def until(self, holds: Callable[[list[set[int]]], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds(found := [{tp.partition for tp in each.assignment()} for each in self.consumers]):
            assert time.monotonic() < deadline, found
            for each in self.consumers:
                each.poll(0.05)

    def close(self) -> None:
        for each in self.consumers:
            each.close()


def test_members_get_partitions_in_their_rack(cluster: LocalCluster, group: str) -> None:
    members = Members(cluster, group, {"client.rack": "b"}, {"client.rack": "a"})
    members.until(lambda found: found == [{1, 3, 5}, {0, 2, 4}])
    members.close()


def test_an_assignor_of_another_package_assigns_and_its_failure_is_shown(
    cluster: LocalCluster, group: str
) -> None:
    everything = set(range(PARTITIONS))
    members = Members(cluster, group, *[{"group.remote.assignor": "first-takes-all"}] * 2)
    members.until(lambda found: sorted(found, key=len) == [set(), everything])

    def described(admin: Admin) -> GroupDescription:
        return admin.describe_groups([group])[0]

    with Admin(cluster.grpc_bootstrap) as admin:
        assert (described(admin).protocol, described(admin).assignor_failure) == ("first-takes-all", "")
        admin.alter_configs({"consumer.assignor.tolerance": "1"}, group=group)
        members.until(lambda found: [len(each) for each in found] == [3, 3])
        assert described(admin).protocol == "uniform"
        assert "RuntimeError('as it was asked to')" in described(admin).assignor_failure
    members.close()
