"""The arithmetic of the scale benchmark: who leads what, who has taken over, what the rates allow."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from uuid import UUID

from ottla_bench.scale import goal_s
from ottla_bench.takeover import (
    FEW,
    FEW_LED,
    MANY,
    MANY_LED,
    SIMULATED,
    TOPIC_PARTITIONS,
    Takeover,
    image_limit,
    partitions_within,
    placement,
    spread_over,
    topics,
)
from ottla_broker.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla_core.ids import NO_BROKER


def test_the_second_leads_many_once_the_first_is_gone() -> None:
    for partitions in (10_000, 100_000):
        placed = placement(partitions)
        led = Counter(replicas[0] for replicas in placed)
        after = Counter(next(r for r in replicas if r != FEW) for replicas in placed)
        assert len(placed) == partitions and led[FEW] == FEW_LED and after[MANY] == MANY_LED
        assert all(len(set(replicas)) == 3 and set(replicas) <= set(SIMULATED) for replicas in placed)


def test_a_short_form_has_the_same_roles() -> None:
    led = Counter(replicas[0] for replicas in placement(2_000))
    assert led == {FEW: 400, MANY: 1_600}


def test_three_brokers_lead_a_third_each() -> None:
    placed = spread_over((0, 1, 2), 6_000)
    assert Counter(replicas[0] for replicas in placed) == {0: 2_000, 1: 2_000, 2: 2_000}
    assert all(sorted(replicas) == [0, 1, 2] for replicas in placed)


def test_topics_hold_all_partitions_in_order() -> None:
    placed = placement(3_000)
    made = topics(placed)
    assert [len(topic) for topic in made] == [TOPIC_PARTITIONS] * 30
    assert [tuple(replicas) for topic in made for replicas in topic] == placed


def _image(*leaders: tuple[int, ...]) -> ClusterImage:
    made = {
        f"t{i}": TopicImage(f"t{i}", UUID(int=i), {}, tuple(PartitionImage((1, 2), n) for n in led))
        for i, led in enumerate(leaders)
    }
    return ClusterImage("c", topics=made)


def test_a_takeover_is_complete_when_others_lead_everything() -> None:
    image = _image((1, 2, 1), (1,), (2,))
    takeover = Takeover(image, 1)
    assert takeover.total == takeover.left == 3
    for leaders, left in ((((2, 2, 1), (1,), (2,)), 2), (((2, 2, 2), (NO_BROKER,), (2,)), 1)):
        before, image = image, _image(*leaders)
        takeover.note(before, image)
        assert takeover.left == left
    takeover.note(image, replace(image, revision=9))
    assert takeover.left == 1
    takeover.note(image, _image((2, 2, 2), (2,), (2,)))
    assert takeover.left == 0


def test_limits_follow_from_rates() -> None:
    # 1.5 s after the detection at 1,000 a second are 1,500 leaderships of one broker of 30.
    assert partitions_within(2.0, 1_000, 30, 0.5) == 45_000
    assert partitions_within(2.0, 1_000, 30, 3.0) == 0
    assert image_limit(256, 500) == 512_000
    assert (goal_s("1,999, kill -9"), goal_s("2,000, simulated"), goal_s("10,000, simulated")) == (
        2.0,
        2.0,
        6.0,
    )
