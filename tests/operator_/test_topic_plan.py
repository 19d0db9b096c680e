from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_.bodies import topic
from ottla_operator.plan import (
    AlterTopic,
    Claim,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    PlaceTopic,
    Plan,
    ResizeTopic,
    SeenPartition,
    SeenTopic,
    condition_of,
    facts_of,
    is_drift,
    loss,
    owner_of,
    plan,
    plan_removal,
    words,
)
from ottla_operator.specs import InvalidSpec, Meta, TopicSpec


def seen(partitions: int = 3, replicas: int = 2, **overrides: str) -> SeenTopic:
    hosts = tuple(range(replicas))
    made = tuple(SeenPartition(n, hosts[n % replicas], 4, hosts, hosts) for n in range(partitions))
    return SeenTopic("orders", "id-1", False, made, overrides)


def spec(**more: object) -> TopicSpec:
    return TopicSpec.of(topic(**more))


def test_a_missing_topic_is_created() -> None:
    wanted = spec(partitions=3, replicas=2, config={"retention.ms": 5})
    assert plan(wanted, None) == Plan((CreateTopic("orders", 3, 2, {"retention.ms": "5"}),))


def test_without_replicas_the_brokers_decide() -> None:
    assert plan(spec(), None).actions == (CreateTopic("orders", 1, None, {}),)
    assert plan(spec(partitions=3), seen()).actions == ()


def test_an_existing_topic_is_adopted() -> None:
    assert plan(spec(partitions=3, replicas=2), seen()) == Plan()


def test_growing_comes_before_configuring() -> None:
    found = plan(spec(partitions=5, config={"retention.ms": 5}), seen(**{"segment.bytes": "7"}))
    changes = {"retention.ms": "5", "segment.bytes": None}
    assert found.actions == (GrowTopic("orders", 5), AlterTopic("orders", changes))


def test_a_decrease_is_refused_and_nothing_else_happens() -> None:
    found = plan(spec(partitions=2, config={"retention.ms": 5}), seen())
    assert found.actions == ()
    assert found.refusal is not None
    assert (found.refusal.reason, found.refusal.holds) == ("PartitionDecrease", False)
    assert "3 partitions and the spec has 2" in found.refusal.message


def test_other_replicas_are_carried_out() -> None:
    assert plan(spec(partitions=3, replicas=3), seen()).actions == (ResizeTopic("orders", 3),)
    assert plan(spec(partitions=3, replicas=2), seen()).actions == ()
    assert plan(spec(partitions=3), seen()).actions == (), "the brokers' default is not enforced later"


def test_a_topic_that_moves_to_the_wanted_replicas_needs_nothing_more() -> None:
    moving = tuple(replace(each, replicas=(0, 1, 2), removing=(0,)) for each in seen().partitions)
    assert plan(spec(partitions=3, replicas=2), replace(seen(), partitions=moving)).actions == ()


def test_a_declared_placement_is_enforced() -> None:
    declared = [{"partition": 0, "brokers": [1, 0]}, {"partition": 1, "brokers": [0, 1]}]
    found = plan(spec(partitions=3, assignment=declared), seen())
    assert found.actions == (PlaceTopic("orders", {0: (1, 0)}),)
    assert words(found.actions[0]).startswith("Moving 1 partitions of topic orders")
    moved = replace(seen().partitions[0], replicas=(1, 0))
    after = replace(seen(), partitions=(moved, *seen().partitions[1:]))
    assert plan(spec(partitions=3, assignment=declared), after).actions == ()


def _declared(*brokers: list[int]) -> list[dict[str, object]]:
    return [{"partition": number, "brokers": each} for number, each in enumerate(brokers)]


def test_a_new_topic_is_created_where_its_spec_says() -> None:
    wanted = spec(partitions=2, assignment=_declared([1, 0], [2, 1]))
    assert plan(wanted, None).actions == (CreateTopic("orders", 2, None, {}, {0: (1, 0), 1: (2, 1)}),)
    grown = spec(partitions=4, assignment=[{"partition": n, "brokers": [1, 0]} for n in (2, 3)])
    assert plan(grown, seen(2)).actions == (GrowTopic("orders", 4, {2: (1, 0), 3: (1, 0)}),)


@pytest.mark.parametrize("brokers", [([1, 0],), ([1, 0], [2])], ids=["partial", "uneven"])
def test_a_placement_that_brokers_cannot_create_is_moved_to(brokers: tuple[list[int], ...]) -> None:
    wanted = spec(partitions=2, assignment=_declared(*brokers))
    assert plan(wanted, None).actions == (CreateTopic("orders", 2, None, {}),)
    assert isinstance(plan(wanted, seen(2)).actions[0], PlaceTopic)
    found = condition_of(wanted, seen(2))
    assert (found.holds, found.reason) == (None, "Moving")


def test_a_topic_is_not_ready_while_copies_of_its_spec_are_missing() -> None:
    wanted = spec(partitions=3, replicas=3)
    one, two, three = seen().partitions
    copying = replace(one, replicas=(0, 1, 2), adding=(2,))
    found = condition_of(
        wanted, replace(seen(), partitions=(copying, replace(two, planned=(0, 1, 2)), three))
    )
    assert (found.holds, found.reason) == (None, "Moving")
    assert "3 of 3 partitions" in found.message and "1 of them copy now" in found.message
    assert condition_of(wanted, seen(3, 3)).holds


def test_a_move_that_the_spec_does_not_ask_for_does_not_count() -> None:
    """A drain or a Rebalance moves replicas; their number stays."""
    drained = replace(seen().partitions[0], replicas=(0, 2, 1), adding=(2,), removing=(1,))
    there = replace(seen(), partitions=(drained, *seen().partitions[1:]))
    assert condition_of(spec(partitions=3, replicas=2), there).holds
    away = spec(partitions=3, assignment=_declared([0, 2]))
    assert condition_of(away, there).reason == "Moving"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"assignment": [{"partition": 3, "brokers": [0]}]}, "which the topic does not have"),
        ({"assignment": [{"partition": 0, "brokers": [1, 1]}]}, "each of them once"),
        ({"assignment": [{"partition": 0, "brokers": [0]}], "replicas": 2}, "but replicas is 2"),
    ],
)
def test_a_placement_that_contradicts_the_spec_is_refused(more: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        spec(partitions=3, **more)


def test_internal_topics_belong_to_the_brokers() -> None:
    found = plan(spec(partitions=3), replace(seen(), internal=True))
    assert found.refusal is not None
    assert found.refusal.reason == "InternalTopic"
    assert plan_removal(spec(), replace(seen(), internal=True), "id-1") == Plan()


def test_removal() -> None:
    assert plan_removal(spec(), seen(), "id-1") == Plan((DeleteTopic("orders"),))
    assert plan_removal(spec(), None, "id-1") == Plan()
    assert plan_removal(spec(), seen(), "id-0") == Plan(), "another topic of the same name"
    assert plan_removal(spec(deletionPolicy="Retain"), seen(), "id-1") == Plan()


@pytest.mark.parametrize("there", [None, seen()], ids=["new", "existing"])
def test_more_in_sync_than_there_are_replicas_is_refused(there: SeenTopic | None) -> None:
    """Brokers would lower it to the number of replicas without a word."""
    found = plan(spec(partitions=3, replicas=2, config={"min.insync.replicas": 3}), there)
    assert found.actions == ()
    assert found.refusal is not None and found.refusal.reason == "MinInsyncReplicasTooHigh"
    assert "is 3, but orders has only 2 replicas" in found.refusal.message
    assert plan(spec(partitions=3, replicas=2, config={"min.insync.replicas": 2}), there).refusal is None


def test_a_lost_topic_is_known_by_its_id() -> None:
    before = {"topicId": "id-0", "topicName": "orders"}
    assert "records are lost. The operator created it again, empty." in (
        loss(before, seen(), created=True) or ""
    )
    assert "Another client created it again." in (loss(before, seen(), created=False) or "")
    assert loss({"topicId": "id-1", "topicName": "orders"}, seen(), created=True) is None
    assert loss(None, seen(), created=True) is None


keys = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["1", "2"]))


@given(st.integers(1, 5), keys, st.integers(0, 5), keys)
def test_doing_a_plan_leaves_nothing_to_do(
    wanted: int, config: dict[str, str], there: int, overrides: dict[str, str]
) -> None:
    """A twin that obeys: after its actions the plan is empty, and partitions never became fewer."""
    goal = spec(partitions=wanted, config=config)
    now = seen(there, **overrides) if there else None
    first = plan(goal, now)
    if first.refusal is not None:
        assert there > wanted
        return
    for action in first.actions:
        match action:
            case CreateTopic(_, partitions, _, values):
                now = seen(partitions, **values)
            case GrowTopic(_, total):
                assert now is not None and total > len(now.partitions)
                now = seen(total, **now.overrides)
            case AlterTopic(_, changes):
                assert now is not None
                merged: dict[str, str | None] = {**now.overrides, **changes}
                now = replace(now, overrides={k: v for k, v in merged.items() if v is not None})
        assert words(action)
    assert plan(goal, now) == Plan()


def test_the_oldest_owns() -> None:
    old, young = Claim("2026-01-01T00:00:00Z", "b", "x"), Claim("2026-01-02T00:00:00Z", "a", "y")
    assert owner_of([young, old]) == old
    assert owner_of([young, replace(old, created=young.created)]) == young, "of the same second, by uid"
    assert owner_of([]) is None


def test_status_shows_leaders_and_in_sync_replicas() -> None:
    lagging = replace(seen(2), partitions=(SeenPartition(0, 1, 4, (0, 1), (1,)), seen(2).partitions[1]))
    facts = facts_of(lagging)
    assert facts["partitions"][0] == {
        "partition": 0,
        "leader": 1,
        "leaderEpoch": 4,
        "replicas": [0, 1],
        "isr": [1],
    }
    assert (facts["inSync"], facts["partitionCount"], facts["topicId"]) == ("1/2", 2, "id-1")
    assert condition_of(spec(), lagging).holds


def test_a_partition_without_a_leader_is_not_ready() -> None:
    found = condition_of(spec(), replace(seen(), partitions=(SeenPartition(7, -1, 4, (0,), ()),)))
    assert (found.holds, found.reason) == (False, "NoLeader")
    assert "7" in found.message


def test_a_status_stays_small() -> None:
    assert len(facts_of(seen(2000))["partitions"]) == 500


def test_drift_is_a_change_without_a_new_spec() -> None:
    action = (GrowTopic("orders", 3),)
    conditions = [{"type": "Ready", "status": "True", "reason": "Reconciled"}]
    settled = {"observedGeneration": 1, "topicId": "id-1", "conditions": conditions}
    meta = Meta.of(topic())
    assert is_drift(meta, settled, action)
    assert not is_drift(meta, settled, ())
    assert not is_drift(meta, {**settled, "observedGeneration": 0}, action), "a new spec"
    assert not is_drift(meta, None, action), "never seen before"
