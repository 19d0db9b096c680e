"""Lost history is noticed, and kept history is bounded."""

from __future__ import annotations

import pytest

from ottla_broker.metadata.history import HistoryWindow, Seen, lost_history


def test_a_store_that_has_gone_on_is_fine() -> None:
    assert lost_history(Seen("A", 10), Seen("A", 10)) is None
    assert lost_history(Seen("A", 10), Seen("A", 99)) is None
    assert lost_history(Seen(), Seen("", 1)) is None
    assert lost_history(Seen(), Seen("A", 1)) is None


def test_a_recovered_store_is_ahead_of_all_that_came_before() -> None:
    assert lost_history(Seen("A", 10), Seen("A", 3, 1)) is None
    assert lost_history(Seen("A", 10, 1), Seen("A", 3, 2)) is None
    assert lost_history(Seen("A", 10, 1), Seen("A", 99)) is not None
    refusal = lost_history(Seen("A", 10, 1), Seen("A", 9, 1))
    assert refusal is not None and "revision 9 of recovery 1" in refusal


@pytest.mark.parametrize(
    ("cluster_id", "revision", "says"),
    [("A", 9, "revision 9"), ("B", 99, "another cluster"), ("", 99, "emptied or replaced")],
)
def test_a_store_that_is_behind_gets_a_sentence(cluster_id: str, revision: int, says: str) -> None:
    refusal = lost_history(Seen("A", 10), Seen(cluster_id, revision))
    assert refusal is not None and says in refusal and refusal.endswith(".")


def test_history_is_compacted_to_what_is_old_enough() -> None:
    window = HistoryWindow(keep_s=600, step_s=60)
    told = {}
    for minute in range(30):
        revision = window.note(minute * 60.0, minute * 100)
        if revision is not None:
            told[minute] = revision
    assert told == {minute: (minute - 10) * 100 for minute in range(11, 30)}


def test_a_quiet_store_is_not_compacted_again() -> None:
    window = HistoryWindow(keep_s=10, step_s=1)
    told = [window.note(float(second), 5) for second in range(40)]
    assert [t for t in told if t is not None] == [5]
