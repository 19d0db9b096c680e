"""Connections of a Python worker: kept between tasks, dropped after an error, bounded in number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_ottla import connections
from pyspark_ottla.connections import borrowed, close_all


class FakeCluster:
    made: list[FakeCluster]
    fails = False

    def __init__(self, bootstrap: str, **_: Any) -> None:
        self.bootstrap = bootstrap
        self.state = "new"
        FakeCluster.made.append(self)

    async def open(self) -> None:
        if FakeCluster.fails:
            raise OSError("no broker")
        self.state = "open"

    async def close(self) -> None:
        self.state = "closed"


@pytest.fixture(autouse=True)
def clusters(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeCluster]]:
    close_all()
    monkeypatch.setattr(connections, "Cluster", FakeCluster)
    monkeypatch.setattr(FakeCluster, "fails", False)
    FakeCluster.made = []
    yield FakeCluster.made
    close_all()


def test_tasks_share_a_connection_until_one_fails(clusters: list[FakeCluster]) -> None:
    for _ in range(3):
        with borrowed("a:1", 5.0):
            pass
    assert [each.state for each in clusters] == ["open"]
    with pytest.raises(KeyError), borrowed("a:1", 5.0):
        raise KeyError
    assert clusters[0].state == "closed"
    with borrowed("a:1", 5.0):
        assert [each.state for each in clusters] == ["closed", "open"]


def test_a_failure_does_not_close_what_another_read_still_uses(clusters: list[FakeCluster]) -> None:
    with borrowed("a:1", 5.0):
        with pytest.raises(KeyError), borrowed("a:1", 5.0):
            raise KeyError
        assert [each.state for each in clusters] == ["open"]
    assert [each.state for each in clusters] == ["closed"]


def test_the_least_recently_used_are_closed(clusters: list[FakeCluster]) -> None:
    for address in "abcdaef":
        with borrowed(address, 5.0):
            pass
    assert [each.bootstrap for each in clusters if each.state == "open"] == ["a", "d", "e", "f"]


def test_a_cluster_that_cannot_be_reached_is_not_kept(
    clusters: list[FakeCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeCluster, "fails", True)
    with pytest.raises(OSError, match="no broker"), borrowed("a:1", 5.0):
        pass
    assert [each.state for each in clusters] == ["closed"]
