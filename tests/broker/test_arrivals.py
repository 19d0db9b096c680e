"""Copies that begin only when others are complete."""

from ottla_broker.partition.arrivals import Arrivals


def test_one_more_waits_for_its_turn() -> None:
    arrivals: Arrivals[str] = Arrivals(2)
    assert arrivals.begin("a") and arrivals.begin("b")
    assert not arrivals.begin("c")
    assert arrivals.begin("a"), "it has its turn already"
    assert arrivals.end("a") == ["c"]
    assert arrivals.end("b") == [] and arrivals.end("c") == []


def test_a_replica_that_is_no_longer_wanted_loses_its_turn() -> None:
    arrivals: Arrivals[str] = Arrivals(1)
    arrivals.begin("a")
    arrivals.begin("b")
    arrivals.begin("c")
    assert arrivals.end("b") == []
    assert arrivals.end("a") == ["c"]


def test_the_end_of_an_unknown_replica_changes_nothing() -> None:
    arrivals: Arrivals[str] = Arrivals(1)
    arrivals.begin("a")
    assert arrivals.end("x") == []
    assert not arrivals.begin("b")
