"""Settings of a group: what is to be changed at the brokers, and what the resource says about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from operator_.bodies import cluster, group
from operator_.twins import World
from ottla_operator import group_settings as settings
from ottla_operator.group_plan import SeenGroup, SeenMember
from ottla_operator.groups import GroupLook
from ottla_operator.plan import Claim
from ottla_operator.specs import GroupSpec, Meta

RANGE = {"consumer.assignor": "range"}
MEMBER = SeenMember("m-1", "", "app", "10.0.0.1", 10_000, 60_000, (("a", 0),), ("range", "roundrobin"))
ACTIVE = SeenGroup("billing", "Stable", "range", 3, 1, (MEMBER,), settings=RANGE)


def spec(**more: Any) -> GroupSpec:
    return GroupSpec.of(group(**more))


def test_what_is_declared_becomes_settings() -> None:
    made = settings.declared(spec(assignor="range", sessionTimeoutMs=10_000, rebalanceTimeoutMs=5))
    assert made == {
        "consumer.assignor": "range",
        "consumer.session.timeout.ms": "10000",
        "consumer.rebalance.timeout.ms": "5",
    }
    assert settings.declared(spec()) == {}


def test_the_resource_is_the_truth_once_it_declares_something() -> None:
    there = {"consumer.session.timeout.ms": "7000", "consumer.rebalance.timeout.ms": "9"}
    made = settings.changes(spec(assignor="range", sessionTimeoutMs=8000), there, None)
    assert made == {
        "consumer.assignor": "range",
        "consumer.session.timeout.ms": "8000",
        "consumer.rebalance.timeout.ms": None,
    }
    assert settings.changes(spec(assignor="range"), RANGE, None) == {}


def test_an_empty_spec_reverts_only_its_own_settings() -> None:
    assert settings.changes(spec(), RANGE, None) == {}
    assert settings.changes(spec(), RANGE, {"settings": RANGE}) == {"consumer.assignor": None}


def test_removal_takes_only_what_is_ours() -> None:
    assert settings.removal({**RANGE, "consumer.new": "1"}) == {"consumer.assignor": None}


def test_drift_is_a_foreign_change() -> None:
    meta = Meta.of(group())
    before = {"observedGeneration": 1, "settings": RANGE}
    assert settings.is_drift(meta, spec(assignor="range"), before)
    assert not settings.is_drift(meta, spec(assignor="roundrobin"), before)
    assert not settings.is_drift(meta, spec(assignor="range"), None)


@pytest.mark.parametrize(
    ("seen", "holds", "reason", "said"),
    [
        (ACTIVE, True, "InForce", "use the declared settings"),
        (replace(ACTIVE, settings={}), False, "NotSet", "differ from the declared ones"),
        (replace(ACTIVE, members=(), state="Empty"), True, "Set", "no members yet"),
        (
            replace(ACTIVE, protocol="uniform", assignor_failure="The assignor range failed: KeyError(1)"),
            False,
            "AssignorFailed",
            "KeyError(1). The group uses uniform instead.",
        ),
        (replace(ACTIVE, protocol=""), None, "Rebalancing", "rebalancing"),
        (replace(ACTIVE, protocol="roundrobin"), None, "Pending", "from the next rebalance"),
        (
            replace(ACTIVE, protocol="sticky", members=(replace(MEMBER, protocols=("sticky",)),)),
            False,
            "NotKnownToAll",
            "voted for sticky, because these do not support range: app.",
        ),
        (
            replace(ACTIVE, protocol="sticky", members=(replace(MEMBER, protocols=("sticky",)),) * 7),
            False,
            "NotKnownToAll",
            "app, app and 2 more.",
        ),
    ],
)
def test_the_condition_says_what_was_seen(
    seen: SeenGroup, holds: bool | None, reason: str, said: str
) -> None:
    found = settings.condition_of(spec(assignor="range"), seen)
    assert found is not None
    assert (found.holds, found.reason) == (holds, reason)
    assert said in found.message


def test_timeouts_are_in_force_when_the_coordinator_shows_them() -> None:
    declared = spec(sessionTimeoutMs=10_000, rebalanceTimeoutMs=70_000)
    seen = replace(ACTIVE, settings=settings.declared(declared))
    found = settings.condition_of(declared, seen)
    assert found is not None and (found.holds, found.reason) == (None, "Pending")
    seen = replace(seen, members=(replace(MEMBER, rebalance_timeout_ms=70_000),))
    found = settings.condition_of(declared, seen)
    assert found is not None and found.holds is True


def test_conflicts_and_refusals_are_reported() -> None:
    declared = spec(assignor="range")
    older = settings.condition_of(declared, ACTIVE, Claim("2020", "u", "first"))
    assert older is not None and (older.holds, older.reason) == (False, "Conflict")
    assert "'first'" in older.message
    refused = settings.condition_of(declared, ACTIVE, None, "Because.")
    assert refused is not None and (refused.reason, refused.message) == ("Refused", "Because.")
    assert settings.condition_of(spec(), ACTIVE) is None


# ------------------------------------------------------------------ looks


@pytest.fixture
def world() -> World:
    made = World()
    made.put(cluster())
    return made


def applied(world: World, name: str = "billing") -> tuple[str, str]:
    return world.condition("ConsumerGroup", name, "SettingsApplied")


async def test_the_life_of_settings(world: World) -> None:
    look = GroupLook(world.tools)
    await look.look(world.put(group(assignor="range")))
    assert world.brokers.seen_group.settings == RANGE
    assert applied(world) == ("True", "Set")
    assert world.status("ConsumerGroup", "billing")["settings"] == RANGE
    assert world.kube.events[-1] == ("Applied", "consumer.assignor = range.")
    # Somebody else's hand is undone, and told.
    await world.brokers.set_group("billing", {"consumer.assignor": "sticky"})
    world.sync("ConsumerGroup", "billing")
    await look.look(("shop", "billing"))
    assert world.brokers.seen_group.settings == RANGE
    assert world.kube.events[-1][0] == "DriftRepaired"
    # Declared no more: unset, and remembered no more.
    body = world.sync("ConsumerGroup", "billing")
    await look.look(world.put({**group(), "status": body["status"]}))
    assert world.brokers.seen_group.settings == {}
    assert "settings" not in world.status("ConsumerGroup", "billing")
    assert all(
        row["type"] != "SettingsApplied" for row in world.status("ConsumerGroup", "billing")["conditions"]
    )


async def test_a_resource_that_goes_takes_its_settings_along(world: World) -> None:
    look = GroupLook(world.tools)
    await look.look(world.put(group(assignor="range")))
    await look.remove(world.sync("ConsumerGroup", "billing"))
    assert world.brokers.seen_group.settings == {}


@pytest.mark.parametrize("why", ["paused", "no cluster", "younger"])
async def test_what_is_not_its_own_stays(world: World, why: str) -> None:
    world.brokers.seen_group = replace(world.brokers.seen_group, settings=RANGE)
    body = group(assignor="sticky")
    if why == "paused":
        body["metadata"]["annotations"] = {"ottla.dev/paused": "true"}
    if why == "no cluster":
        body["spec"]["cluster"] = {"name": "nowhere"}
    if why == "younger":
        first = group("first", groupId="billing", assignor="range")
        first["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
        world.put(first)
    look = GroupLook(world.tools)
    await look.look(world.put(body))
    await look.remove(body)
    assert world.brokers.settings_made == []
    if why == "younger":
        assert applied(world) == ("False", "Conflict")


async def test_settings_that_the_brokers_refuse_leave_the_rest_in_view(world: World) -> None:
    await GroupLook(world.tools).look(world.put(group(sessionTimeoutMs=1)))
    assert applied(world) == ("False", "Refused")
    assert world.condition("ConsumerGroup", "billing")[0] == "True"


async def test_a_group_without_settings_is_only_looked_at(world: World) -> None:
    world.brokers.seen_group = replace(world.brokers.seen_group, settings=RANGE)
    await GroupLook(world.tools).look(world.put(group()))
    assert world.brokers.settings_made == []
