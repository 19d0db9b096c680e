"""Throttles of moves: which replicas of which topics, at which brokers."""

from __future__ import annotations

from ottla_client.move_throttle import (
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    concerned_brokers,
    throttled_replicas,
)
from ottla_client.rebalance import Move

MOVES = [Move("a", 0, (1, 2), (1, 3)), Move("a", 1, (2, 1), (3, 4)), Move("b", 0, (1, 2), (2, 1))]


def test_former_replicas_may_lead_and_added_ones_copy() -> None:
    lists = {LEADER_REPLICAS: "0:1,0:2,1:2,1:1", FOLLOWER_REPLICAS: "0:3,1:3,1:4"}
    assert throttled_replicas(MOVES) == {"a": lists}, "b copies nothing"
    assert concerned_brokers(MOVES) == [1, 2, 3, 4]
    assert throttled_replicas([MOVES[2]]) == {} and concerned_brokers([MOVES[2]]) == []


def test_a_list_that_is_too_long_for_a_broker_becomes_all() -> None:
    moves = [Move("a", n, (1, 2, 3), (4, 2, 3)) for n in range(5000)]
    lists = throttled_replicas(moves)["a"]
    assert lists[LEADER_REPLICAS] == "*"
    assert len(lists[FOLLOWER_REPLICAS]) < 60_000
