"""What the ledger of groups calls a violation, history by history; worlds that break most of these are planted."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla_core.errors import IllegalGeneration, NotCoordinator
from ottla_core.ids import TopicPartition
from sim.group_ledger import GroupLedger, Hold
from sim.spots import Spot

ONE, TWO = TopicPartition("one", 0), TopicPartition("two", 0)
SPOT, OTHER = Spot("one", UUID(int=1), 0), Spot("two", UUID(int=2), 0)


class History:
    def __init__(self) -> None:
        self.now = 0.0
        self.failures: list[str] = []
        self.ledger = GroupLedger(self._tick, self.failures.append)

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    def hold(self, member: str, generation: int = 1, instance: str = "") -> Hold:
        return self.ledger.on_held("g", ONE, member, instance, lambda: generation)

    def commit(self, hold: Hold, offset: int) -> str:
        made = self.ledger.on_committing("g", ONE, hold, offset)
        self.ledger.on_committed("g", ONE, made)
        return made.name

    def read_back(self, offset: int, name: str) -> None:
        self.ledger.on_read_back("g", ONE, offset, name, self._tick())

    def end(self, log: dict[int, bytes], other: dict[int, bytes] | None = None) -> None:
        logs = {SPOT: log, OTHER: other or {}}
        self.ledger.check_end(logs, logs, {})


@pytest.fixture
def history() -> History:
    return History()


def only(history: History, text: str) -> None:
    assert len(history.failures) == 1 and text in history.failures[0], history.failures


def test_an_orderly_handover(history: History) -> None:
    first = history.hold("a")
    history.ledger.on_polled("g", ONE, first, 0, {0: b"x", 1: b"y"}, 2)
    name = history.commit(first, 2)
    first.is_over = True
    second = history.hold("b")
    history.read_back(2, name)
    history.ledger.on_moved(second, 2)
    history.ledger.on_polled("g", ONE, second, 2, {3: b"z"}, 4)
    history.read_back(4, history.commit(second, 4))
    history.ledger.final["g", ONE] = 4
    history.end({0: b"x", 1: b"y", 3: b"z"})
    assert history.failures == []


def test_two_owners_in_one_generation(history: History) -> None:
    history.hold("a")
    history.hold("b")
    only(history, "I20")


def test_two_lives_of_a_static_member_and_two_generations_are_fine(history: History) -> None:
    history.hold("a", 1, "static")
    history.hold("b", 1, "static")
    history.hold("c", 2)
    assert history.failures == []


def test_a_former_owner_commits(history: History) -> None:
    former = history.hold("a", 1)
    history.commit(history.hold("b", 2), 7)
    history.commit(former, 5)
    only(history, "of a later owner")


def test_a_commit_that_was_under_way_meanwhile_is_fine(history: History) -> None:
    former = history.hold("a", 1)
    slow = history.ledger.on_committing("g", ONE, former, 5)
    history.commit(history.hold("b", 2), 7)
    history.ledger.on_committed("g", ONE, slow)
    assert history.failures == []


def test_a_refused_commit_is_there(history: History) -> None:
    made = history.ledger.on_committing("g", ONE, history.hold("a"), 5)
    history.ledger.on_refused(made, IllegalGeneration())
    history.read_back(5, made.name)
    only(history, "was refused")


def test_a_commit_without_an_answer_may_be_there(history: History) -> None:
    made = history.ledger.on_committing("g", ONE, history.hold("a"), 5)
    history.ledger.on_refused(made, NotCoordinator())
    history.read_back(5, made.name)
    history.read_back(-1, "")
    assert history.failures == []


def test_an_acknowledged_commit_is_lost(history: History) -> None:
    hold = history.hold("a")
    older = history.commit(hold, 5)
    history.commit(hold, 7)
    history.read_back(5, older)
    only(history, "was acknowledged")


def test_nothing_is_committed_any_more(history: History) -> None:
    history.commit(history.hold("a"), 5)
    history.read_back(-1, "")
    only(history, "was acknowledged")


def test_an_offset_that_no_member_committed(history: History) -> None:
    name = history.commit(history.hold("a"), 5)
    history.read_back(6, name)
    only(history, "nobody has asked for")


def test_polls_go_back(history: History) -> None:
    hold = history.hold("a")
    history.ledger.on_polled("g", ONE, hold, 0, {0: b"x", 1: b"y"}, 2)
    history.ledger.on_polled("g", ONE, hold, 1, {1: b"y"}, 2)
    only(history, "polls at 1, after 2")


def test_one_poll_goes_back(history: History) -> None:
    history.ledger.on_polled("g", ONE, history.hold("a"), 0, {1: b"x", 0: b"y"}, 2)
    only(history, "got 0 after 1")


def test_a_record_comes_twice(history: History) -> None:
    history.ledger.on_polled("g", ONE, history.hold("a"), 0, {0: b"x", 1: b"x"}, 2)
    only(history, "duplicate")


def test_two_records_come_at_one_offset(history: History) -> None:
    for member, value in (("a", b"x"), ("b", b"y")):
        hold = history.hold(member)
        history.ledger.on_polled("g", ONE, hold, 0, {0: value}, 1)
        hold.is_over = True
    only(history, "where b'x' was")


def test_a_poll_skips_a_record(history: History) -> None:
    history.ledger.on_polled("g", ONE, history.hold("a"), 0, {0: b"x", 2: b"z"}, 3)
    history.end({0: b"x", 1: b"y", 2: b"z"})
    only(history, "passed by b'y'")


def test_a_record_below_the_committed_offset_was_never_polled(history: History) -> None:
    hold = history.hold("a")
    history.ledger.on_moved(hold, 1)
    history.ledger.on_polled("g", ONE, hold, 1, {1: b"y"}, 2)
    history.ledger.final["g", ONE] = 2
    history.end({0: b"x", 1: b"y"})
    only(history, "nobody has seen [0]")


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ({0: b"w1:one-0@0", 1: b"w2:one-0@0"}, "has outputs"),
        ({0: b"w1:one-0@0", 1: b"w2:one-0@1"}, "committed is 1"),
        ({}, "[0] have no output"),
        ({0: b"w1:one-0@0"}, ""),
    ],
)
def test_outputs_of_workers(history: History, outputs: dict[int, bytes], said: str) -> None:
    history.ledger.workers.add("g")
    history.ledger.final["g", ONE] = 1
    history.end({0: b"x", 1: b"y"}, outputs)
    assert [said in each for each in history.failures] == [True] * bool(said)


def test_transactions_have_read_from_each_other(history: History) -> None:
    for reader, writer in (("a", "a"), ("a", "b"), ("b", "c"), ("d", "b")):
        history.ledger.on_transaction_read(reader, writer)
    history.end({})
    assert history.failures == []
    history.ledger.on_transaction_read("c", "a")
    history.end({})
    only(history, "I23")
