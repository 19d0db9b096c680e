"""Pins of a ConsumerGroup: the setting they become, and what the condition says about those that do not hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from operator_.bodies import cluster, group
from operator_.twins import World
from ottla_core.assignors.registry import BUILT_IN
from ottla_core.assignors.uniform import parse_pins
from ottla_core.ids import TopicPartition
from ottla_operator import group_pins as pins
from ottla_operator import group_settings as settings
from ottla_operator.group_plan import SeenGroup, SeenMember, condition_of
from ottla_operator.groups import GroupLook
from ottla_operator.specs import ASSIGNORS, CLASSIC_ASSIGNORS, GroupSpec

PINS = [
    {"topic": "orders", "partition": 1, "instanceId": "worker-b"},
    {"topic": "orders", "partition": 0, "instanceId": "worker-a"},
]
A = SeenMember("m-a", "worker-a", "app", "h", 1, 1, (("orders", 0), ("orders", 2)), topics=("orders",))
B = SeenMember("m-b", "worker-b", "app", "h", 1, 1, (("orders", 1),), topics=("orders",))
ENDS = {("orders", number): 9 for number in range(3)}
SEEN = SeenGroup("billing", "Stable", "sticky", 3, 1, (A, B), ends=ENDS, type="consumer")


def spec(**more: Any) -> GroupSpec:
    return GroupSpec.of(group(**{"pins": PINS, **more}))


def test_pins_and_parameters_become_settings_that_brokers_understand() -> None:
    made = settings.declared(spec(assignor="sticky", assignorParameters={"tolerance": 0.5}))
    assert made == {
        "consumer.assignor": "sticky",
        "consumer.assignor.tolerance": "0.5",
        "consumer.assignor.pins": "orders:0=worker-a,orders:1=worker-b",
    }
    understood = parse_pins(made["consumer.assignor.pins"])
    assert understood == {TopicPartition("orders", 0): "worker-a", TopicPartition("orders", 1): "worker-b"}
    assert settings.changes(GroupSpec.of(group()), made, {"settings": made}) == dict.fromkeys(made)


def test_the_schema_knows_the_assignors_of_the_brokers() -> None:
    assert set(ASSIGNORS) - set(CLASSIC_ASSIGNORS) == set(BUILT_IN)


@pytest.mark.parametrize(
    ("seen", "holds", "reason", "said"),
    [
        (SEEN, True, "Assigned", "All 2 pinned"),
        (replace(SEEN, members=(A,)), False, "MemberAbsent", "worker-b; until it joins"),
        (replace(SEEN, members=()), None, "NoMembers", "when members join"),
        (
            replace(SEEN, ends={("orders", 0): 1}),
            False,
            "NoSuchPartition",
            "orders has 1 partitions and no partition 1",
        ),
        (replace(SEEN, ends={}), False, "NoSuchPartition", "topic orders does not exist"),
        (replace(SEEN, type="classic"), False, "ClassicGroup", "group.protocol=consumer"),
        (
            replace(SEEN, members=(A, replace(B, topics=("other",), partitions=()))),
            False,
            "NotSubscribed",
            "worker-b does not subscribe to orders",
        ),
        (replace(SEEN, members=(A, replace(B, partitions=()))), None, "Moving", "orders-1 to worker-b"),
        (
            replace(SEEN, members=(A, replace(B, topics=(), partitions=(), is_by_regex=True))),
            None,
            "Moving",
            "orders-1 to worker-b",
        ),
    ],
)
def test_the_condition_names_what_does_not_hold(
    seen: SeenGroup, holds: bool | None, reason: str, said: str
) -> None:
    found = pins.condition_of(spec(), seen)
    assert found is not None
    assert (found.holds, found.reason) == (holds, reason)
    assert said in found.message


def test_a_long_list_is_cut() -> None:
    many = [{"topic": "orders", "partition": n, "instanceId": "worker-a"} for n in range(50)]
    found = pins.condition_of(spec(pins=many), SEEN)
    assert found is not None and found.message.count("orders has") == 5
    assert "and 42 more" in found.message
    assert pins.condition_of(GroupSpec.of(group()), SEEN) is None


@pytest.mark.parametrize(
    ("assignor", "in_use", "type_", "holds", "reason", "said"),
    [
        ("sticky", "sticky", "consumer", True, "InForce", "declared"),
        ("uniform", "range", "consumer", None, "Pending", "in a moment"),
        ("roundrobin", "uniform", "consumer", False, "UnknownAssignor", "exists in classic groups only"),
        ("our-own", "uniform", "consumer", False, "UnknownAssignor", "our-own is not installed"),
        ("uniform", "range", "classic", False, "ClassicGroup", "group.protocol=consumer"),
    ],
)
def test_an_assignor_that_is_not_used_is_explained(
    assignor: str, in_use: str, type_: str, holds: bool | None, reason: str, said: str
) -> None:
    declared = GroupSpec.of(group(customAssignor=assignor))
    member = replace(A, protocols=("range",) if type_ == "classic" else ())
    seen = replace(SEEN, protocol=in_use, type=type_, members=(member,), settings=settings.declared(declared))
    found = settings.condition_of(declared, seen)
    assert found is not None
    assert (found.holds, found.reason) == (holds, reason)
    assert said in found.message


def test_members_read_on_while_partitions_move() -> None:
    found = condition_of(replace(SEEN, state="Reconciling"))
    assert (found.holds, found.reason) == (True, "Reconciling")
    assert "epoch 3" in found.message


async def test_pins_are_repaired_and_reset() -> None:
    world = World()
    world.put(cluster())
    world.brokers.seen_group = SEEN
    look = GroupLook(world.tools)
    await look.look(world.put(group(assignor="sticky", pins=PINS)))
    assert world.condition("ConsumerGroup", "billing", "PinsApplied") == ("True", "Assigned")
    wanted = dict(world.brokers.seen_group.settings)
    await world.brokers.set_group("billing", {"consumer.assignor.pins": "orders:0=worker-b"})
    await look.look(("shop", "billing"))
    assert world.brokers.seen_group.settings == wanted
    assert world.kube.events[-1][0] == "DriftRepaired"
    body = world.sync("ConsumerGroup", "billing")
    await look.look(world.put({**group(), "status": body["status"]}))
    assert world.brokers.seen_group.settings == {}
    assert all(row["type"] != "PinsApplied" for row in world.status("ConsumerGroup", "billing")["conditions"])
