"""Explicit placement as it is typed."""

from __future__ import annotations

import pytest

from ottla_cli.assignments import assignments_of, brokers_of, rate_of, rotated
from ottla_cli.failure import Failure


def test_assignments_by_partition() -> None:
    assert assignments_of(["0=1,2", "3=2"]) == {0: (1, 2), 3: (2,)}
    assert assignments_of(None) == {}


@pytest.mark.parametrize("text", ["", "0", "=1", "a=1", "0=", "0=1,", "0=1;2", "0=-1", "-1=0", "0=१"])
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(Failure, match="such as"):
        assignments_of([text])


def test_a_partition_is_named_once() -> None:
    with pytest.raises(Failure, match="twice"):
        assignments_of(["0=1", "0=2"])


def test_partitions_prefer_different_leaders() -> None:
    assert rotated(brokers_of("1,2,3", "--to"), range(4)) == {
        0: (1, 2, 3),
        1: (2, 3, 1),
        2: (3, 1, 2),
        3: (1, 2, 3),
    }


def test_a_rate_is_a_size_per_second() -> None:
    assert (rate_of(None), rate_of("50MB"), rate_of("1000")) == (None, 50_000_000, 1000)
    for text, reason in (("fast", "not a size"), ("0", "no partition would ever move")):
        with pytest.raises(Failure, match=reason):
            rate_of(text)
