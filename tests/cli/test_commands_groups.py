"""`ottla groups` and `ottla consume --group` against a real broker."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest

from cli.ottla_command import Ottla, interrupt, lines_from
from ottla_cli.groups_reset import parse_target
from ottla_cli.position import Position
from ottla_client import Consumer, TopicPartition

pytestmark = pytest.mark.integration


@pytest.fixture
def group() -> str:
    return f"cli-{uuid.uuid4().hex[:12]}"


def filled(ottla: Ottla, count: int = 20) -> str:
    """A topic of two partitions with half of the records in each, a second apart."""
    topic = ottla.topic("--partitions", "2")
    rows = [
        {"value": str(n), "partition": n % 2, "timestamp": 1_700_000_000_000 + n * 1000} for n in range(count)
    ]
    ottla.produce(topic, "--format", "json", given="\n".join(map(json.dumps, rows)).encode())
    return topic


def committed(ottla: Ottla, group: str) -> list[tuple[int, int, int]]:
    (described,) = ottla("groups", "describe", group, "--json").json
    return [(row["partition"], row["committed"], row["lag"]) for row in described["partitions"]]


def test_consuming_as_a_group_goes_on_where_it_was(ottla: Ottla, group: str) -> None:
    topic = filled(ottla)
    first = ottla.consume(topic, "--group", group, "--max", "7").split()
    assert len(first) == 7
    (described,) = ottla("groups", "describe", group, "--json").json
    assert (described["state"], described["members"], described["lag"]) == ("Empty", [], 13)
    rest = ottla.consume(topic, "--group", group, "--no-follow").split()
    assert sorted(map(int, first + rest)) == list(range(20))
    assert committed(ottla, group) == [(0, 10, 0), (1, 10, 0)]
    assert ottla.consume(topic, "--group", group, "--no-follow") == b""


def test_ctrl_c_commits_what_was_written(ottla: Ottla, group: str) -> None:
    topic = filled(ottla)
    with ottla.start("consume", topic, "--group", group) as running:
        assert len(lines_from(running.stdout, 20)) == 20
        (described,) = ottla("groups", "describe", group, "--json").json
        assert (described["state"], described["assignor"]) == ("Stable", "uniform")
        (member,) = described["members"]
        assert member["client_id"] == "ottla-cli" and member["member_epoch"] > 0
        assert member["partitions"] == [{"topic": topic, "partition": n} for n in (0, 1)]
        shown = ottla("groups", "describe", group)
        assert shown.out.startswith(f"{group}: Stable, type consumer, epoch 1, 1 member, assignor uniform")
        assert [line.split()[:2] for line in shown.out.splitlines()[2:]] == [[topic, "0"], [topic, "1"]]
        assert f"{topic}:0,1" in ottla("groups", "describe", group, "--members").out
        refused = ottla("groups", "reset-offsets", group, "--topic", topic, "--to", "0", "--execute", code=1)
        assert "has 1 member (Stable). Stop them first" in refused.err
        assert "Stop them first" in refused.err
        dry = ottla("groups", "reset-offsets", group, "--topic", topic, "--to", "0")
        assert "Nothing was changed" in dry.err and "stop them" in dry.err
        assert "NON_EMPTY_GROUP" in ottla("groups", "delete", group, "--yes", code=1).err
        interrupt(running)
    assert committed(ottla, group) == [(0, 10, 0), (1, 10, 0)]
    assert ottla("groups", "describe", group, "--json").json[0]["state"] == "Empty"


def test_list_and_delete(ottla: Ottla, group: str) -> None:
    topic = filled(ottla)
    ottla("groups", "reset-offsets", group, "--topic", topic, "--to", "latest", "--execute")
    assert ottla("groups", "list", group, "--json").json == [
        {"group": group, "state": "Empty", "type": "classic", "protocol_type": ""}
    ]
    assert [line.split() for line in ottla("groups", "list", f"{group[:9]}*").out.splitlines()][1:] == [
        [group, "Empty", "classic"]
    ]
    assert ottla("groups", "list", group, "--state", "Stable").err == "No group matches.\n"
    assert ottla("groups", "delete", group, "--yes").out == f"Group {group} deleted.\n"
    assert ottla("groups", "list", group, "--json").json == []
    assert "There is no group" in ottla("groups", "describe", group, code=1).err


def test_moving_a_group(ottla: Ottla, group: str) -> None:
    topic = filled(ottla)
    places = {
        "earliest": [0, 0],
        "latest": [10, 10],
        "4": [4, 4],
        "99": [10, 10],
        "1700000005000": [3, 2],
        "2030-01-01": [10, 10],
        "-1h": [10, 10],
        "+2": [7, 7],
        "-500": [0, 0],
    }
    options = ("groups", "reset-offsets", group, "--topic", topic, "--to")
    ottla(*options, "5", "--execute")
    for to, expected in places.items():
        dry = ottla(*options, to, "--json").json
        assert not dry["executed"] and [row["to"] for row in dry["partitions"]] == expected, to
        assert [row["from"] for row in dry["partitions"]] == [5, 5]
    assert committed(ottla, group) == [(0, 5, 5), (1, 5, 5)]
    assert f"Offsets of group {group} were reset." in ottla(*options, "-2", "--execute").out
    assert committed(ottla, group) == [(0, 3, 7), (1, 3, 7)]


def test_moving_one_partition_or_all_topics(ottla: Ottla, group: str) -> None:
    topic = filled(ottla)
    ottla("groups", "reset-offsets", group, "-t", topic, "-p", "1", "--to", "3", "--execute")
    assert committed(ottla, group) == [(1, 3, 7)]
    err = ottla("groups", "reset-offsets", group, "-t", topic, "--to", "-1", code=1).err
    assert "has no committed offset in" in err
    ottla("groups", "reset-offsets", group, "--all-topics", "--to", "earliest", "--execute")
    assert committed(ottla, group) == [(0, 0, 10), (1, 0, 10)]


def test_misuse_is_code_2(ottla: Ottla) -> None:
    for arguments in (
        ("groups", "reset-offsets", "g", "--to", "earliest"),
        ("groups", "reset-offsets", "g", "--topic", "t", "--all-topics", "--to", "earliest"),
        ("groups", "reset-offsets", "g", "--topic", "t", "--to", "soon"),
        ("consume", "t", "--group", "g", "--from", "5"),
        ("consume", "t", "--group", "g", "--partition", "1"),
        ("consume", "t", "--group", "g", "--to", "latest"),
    ):
        assert ottla(*arguments, code=2).err


def test_targets() -> None:
    assert parse_target("-5", 0) == Position("shift", -5)
    assert parse_target("+5", 0) == Position("shift", 5)
    assert parse_target("-1h", 7_200_000) == Position("time", 3_600_000)
    with pytest.raises(ValueError, match="is not a target"):
        parse_target("soon", 0)


def test_two_of_them_share_a_topic(ottla: Ottla, group: str) -> None:
    """The command beside a member of the client: each has one partition."""
    topic = filled(ottla)

    async def beside() -> list[TopicPartition]:
        async with Consumer(ottla.bootstrap, group_id=group) as consumer, asyncio.timeout(30):
            consumer.subscribe([topic])
            while not consumer.assignment():
                await consumer.poll(100)
            return consumer.assignment()

    with ottla.start("consume", topic, "--group", group) as running:
        lines_from(running.stdout, 20)
        assert len(asyncio.run(beside())) == 1
        interrupt(running)
