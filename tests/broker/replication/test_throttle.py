"""Throttles: which replicas they concern, and that a rate holds."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.metadata.image import BrokerImage, ClusterImage, TopicImage
from ottla_broker.replication.follow_wire import partition_key
from ottla_broker.replication.throttle import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    Throttle,
)

TOPIC = UUID(int=7)


def throttle(topic: dict[str, str], brokers: dict[str, dict[str, str]]) -> Throttle:
    """Of broker 1, beside 2 and 3."""
    made = Throttle(1)
    image = ClusterImage(
        "c",
        brokers={i: BrokerImage(i, UUID(int=1), ()) for i in (1, 2, 3)},
        topics={"t": TopicImage("t", TOPIC, topic, ())},
        broker_configs=brokers,
    )
    made.on_image(None, image)
    return made


def sent_in(made: Throttle, seconds: float, follower: int = 2, partition: int = 0, size: int = 100) -> int:
    """Bytes sent when a section of this size is offered every millisecond."""
    key, total = partition_key(TOPIC, partition), 0
    for ms in range(int(seconds * 1000)):
        if made.may_send(key, follower, ms / 1000):
            made.sent(key, follower, size, ms / 1000)
            total += size
    return total


def test_without_settings_nothing_is_throttled() -> None:
    assert not throttle({}, {}).is_used
    assert sent_in(throttle({LEADER_REPLICAS: "*"}, {}), 1) == 100_000
    assert sent_in(throttle({}, {"": {LEADER_RATE: "1"}}), 1) == 100_000


def test_the_leaders_rate_holds_over_all_its_followers() -> None:
    made = throttle({LEADER_REPLICAS: "0:1"}, {"1": {LEADER_RATE: "5000"}})
    key, totals = partition_key(TOPIC, 0), {2: 0, 3: 0}
    for ms in range(10_000):
        for follower in totals:
            if made.may_send(key, follower, ms / 1000):
                made.sent(key, follower, 100, ms / 1000)
                totals[follower] += 100
    assert sum(totals.values()) == pytest.approx(50_000, rel=0.02)


def test_a_follower_gets_its_share_from_each_leader() -> None:
    made = throttle({FOLLOWER_REPLICAS: "0:2"}, {"": {FOLLOWER_RATE: "8000"}})
    assert sent_in(made, 10) == pytest.approx(40_000, rel=0.02)  # there is one leader more


@pytest.mark.parametrize(
    ("listed", "is_free"),
    [("*", False), ("none", True), ("", True), ("0:1", False), ("1:1,0:2", True), ("1:1, 0:1", False)],
)
def test_the_list_names_partition_and_broker(listed: str, is_free: bool) -> None:
    made = throttle({LEADER_REPLICAS: listed}, {"": {LEADER_RATE: "1000"}})
    assert (sent_in(made, 1) == 100_000) is is_free


def test_a_brokers_own_rate_goes_before_the_default() -> None:
    made = throttle({LEADER_REPLICAS: "*"}, {"": {LEADER_RATE: "1000"}, "1": {LEADER_RATE: "2000"}})
    assert sent_in(made, 10) == pytest.approx(20_000, rel=0.02)


@given(st.integers(0, 100_000), st.integers(1, 50_000))
def test_a_rate_is_exceeded_by_one_section_at_most(rate: int, size: int) -> None:
    made = throttle({LEADER_REPLICAS: "*"}, {"": {LEADER_RATE: str(rate)}})
    assert sent_in(made, 2, size=size) <= 2 * rate + size
