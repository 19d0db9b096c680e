"""Positions, plans, pauses, resets, replicas and leader epochs: C1 to C5 of the consumer machine."""

from __future__ import annotations

import pytest

from ottla_client.consumer_machine import (
    EARLIEST,
    LATEST,
    ConsumerMachine,
    ConsumerPolicy,
    Validation,
    Want,
)
from ottla_client.errors import LogTruncated, NoOffset, NotAssigned
from ottla_client.fetched import Decoding
from ottla_core.errors import (
    CorruptMessage,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RequestError,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from ottla_core.ids import TopicPartition
from ottla_core.records.codec import Record, build_batch

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def data(base: int, count: int = 5, epoch: int = -1) -> bytes:
    batch = bytearray(build_batch([Record(0, 1, None, b"x" * 50, [])] * count, base_offset=base))
    batch[12:16] = epoch.to_bytes(4, "big", signed=True)  # outside the CRC: brokers write it
    return bytes(batch)


class Bench:
    def __init__(self, *partitions: TopicPartition, reset: str = "earliest", **policy: float) -> None:
        chosen = ConsumerPolicy(**{"backoff_s": 1.0, "partition_bytes": 500, **policy})  # type: ignore[arg-type]
        self.machine = ConsumerMachine(chosen, Decoding(), reset, lambda: 0.5)
        self.machine.assign(partitions)
        self.machine.leaders_changed("t", [0, 0])
        self.machine.stale_topics.clear()
        self.now = 0.0
        self.busy = 0

    def found(self, offset: int = 0) -> None:
        for lookup in self.machine.lookups(self.now):
            self.machine.found(lookup, offset)

    def plan(self) -> list[Want]:
        return [w for wants in self.machine.plan(self.now, lambda _leader: self.busy).values() for w in wants]

    def answer(self, want: Want, records: bytes = b"", error: RequestError | None = None) -> None:
        self.machine.fetched(want, error=error, data=records, aborted=(), high_watermark=99, now=self.now)

    def taken(self, limit: int = 500) -> list[int]:
        return [record.offset for record in self.machine.take(limit)]


@pytest.mark.parametrize(("reset", "timestamp"), [("earliest", EARLIEST), ("latest", LATEST)])
def test_a_new_partition_is_looked_up_once_then_fetched_from_there(reset: str, timestamp: int) -> None:
    bench = Bench(A, reset=reset)
    assert bench.plan() == []
    (lookup,) = bench.machine.lookups(0.0)
    assert lookup.timestamp_ms == timestamp
    assert bench.machine.lookups(0.0) == []
    bench.machine.found(lookup, 40)
    assert [(w.tp, w.offset) for w in bench.plan()] == [(A, 40)]
    assert bench.plan() == [], "C2: one fetch of a partition at a time"


def test_fetching_runs_ahead_of_handing_out_up_to_the_bound() -> None:
    bench = Bench(A)
    bench.found()
    for base in (0, 5):
        (want,) = bench.plan()
        assert want.offset == base
        bench.answer(want, data(base))
    assert bench.plan() == [], "C3: more than 500 bytes wait"
    assert bench.machine.state(A).position == 0
    assert bench.taken(3) == [0, 1, 2]
    assert bench.machine.state(A).position == 3
    assert bench.taken(99) == [3, 4, 5, 6, 7, 8, 9]
    assert [w.offset for w in bench.plan()] == [10]


def test_all_partitions_together_are_bounded() -> None:
    bench = Bench(A, B, buffer_bytes=300)
    bench.found()
    first, second = bench.plan()
    bench.answer(first, data(0))
    bench.answer(second)
    assert bench.plan() == []
    bench.taken()
    assert [w.tp for w in bench.plan()] == [B, A] or [w.tp for w in bench.plan()] == []


def test_a_busy_broker_gets_no_third_fetch() -> None:
    bench = Bench(A)
    bench.found()
    bench.busy = 2
    assert bench.plan() == []
    bench.busy = 1
    assert len(bench.plan()) == 1


def test_a_seek_drops_what_was_fetched_and_what_is_on_its_way() -> None:
    bench = Bench(A)
    bench.found()
    (want,) = bench.plan()
    bench.answer(want, data(0))
    (on_its_way,) = bench.plan()
    bench.machine.seek(A, 70)
    bench.answer(on_its_way, data(5))
    assert bench.taken() == []
    (fresh,) = bench.plan()
    assert fresh.offset == 70
    with pytest.raises(ValueError, match="start at 0"):
        bench.machine.seek(A, -1)


def test_paused_is_neither_fetched_nor_handed_out_and_kept() -> None:
    bench = Bench(A)
    bench.found()
    (want,) = bench.plan()
    bench.answer(want, data(0))
    bench.machine.pause(A)
    assert bench.machine.paused() == [A]
    assert bench.taken() == [] and bench.plan() == []
    bench.machine.resume(A)
    assert bench.taken() == [0, 1, 2, 3, 4]


def test_partitions_take_turns() -> None:
    bench = Bench(A, B, partition_bytes=5000)
    bench.found()
    for want in bench.plan():
        bench.answer(want, data(0, 20))
    turns = []
    while records := bench.machine.take(7):
        turns.append(records[0].partition)
    assert turns[0] != turns[1]


def test_assigning_anew_keeps_what_stays_and_forgets_what_goes() -> None:
    bench = Bench(A, B)
    bench.found()
    for want in bench.plan():
        bench.answer(want, data(0))
    bench.machine.pause(B)
    bench.machine.assign([B])
    assert bench.machine.assignment() == [B] and bench.machine.paused() == [B]
    with pytest.raises(NotAssigned, match="t-0"):
        bench.machine.seek(A, 0)
    bench.machine.resume(B)
    assert bench.taken() == [0, 1, 2, 3, 4]


def test_out_of_range_starts_over_by_policy() -> None:
    bench = Bench(A, reset="latest")
    bench.machine.seek(A, 5)
    (want,) = bench.plan()
    bench.answer(want, error=OffsetOutOfRange())
    (lookup,) = bench.machine.lookups(0.0)
    assert lookup.timestamp_ms == LATEST
    bench.machine.found(lookup, 12)
    assert [w.offset for w in bench.plan()] == [12]


def test_out_of_range_behind_what_is_buffered_is_not_asked_again_and_again() -> None:
    bench = Bench(A, reset="latest")
    bench.found()
    (want,) = bench.plan()
    bench.answer(want, data(0))
    (want,) = bench.plan()
    bench.answer(want, error=OffsetOutOfRange())
    assert bench.plan() == [], "the user is slow: no reason to hurry the broker"
    assert bench.taken() == [0, 1, 2, 3, 4], "what is buffered is still good"
    bench.now = 2.0
    (want,) = bench.plan()
    bench.answer(want, error=OffsetOutOfRange())
    assert [lookup.timestamp_ms for lookup in bench.machine.lookups(bench.now)] == [LATEST]


def test_without_a_policy_the_user_is_told_until_there_is_a_seek() -> None:
    bench = Bench(A, reset="none")
    for _ in range(2):
        with pytest.raises(NoOffset, match=r"seek\(\)"):
            bench.taken()
    bench.machine.seek(A, 3)
    (want,) = bench.plan()
    bench.answer(want, error=OffsetOutOfRange("It has 10 to 20."))
    with pytest.raises(NoOffset, match="offset 3 is out of range"):
        bench.taken()


def test_a_moved_leader_backs_off_and_asks_for_metadata() -> None:
    bench = Bench(A)
    bench.found()
    (want,) = bench.plan()
    bench.answer(want, error=NotLeaderOrFollower())
    assert list(bench.machine.stale_topics) == ["t"]
    assert bench.plan() == [] and bench.machine.wakes_at(0.0) == 1.0
    bench.machine.leaders_changed("t", [3, 0])
    bench.now = 1.0
    assert list(bench.machine.plan(1.0, lambda _leader: 0)) == [3]
    assert bench.taken() == [], "nothing to complain about"


def test_a_lost_fetch_is_asked_again_from_the_same_place() -> None:
    bench = Bench(A)
    bench.found(8)
    (want,) = bench.plan()
    bench.machine.lost(want, 0.0)
    bench.now = 2.0
    assert [w.offset for w in bench.plan()] == [8]


def test_what_cannot_be_retried_is_raised_once_by_poll() -> None:
    bench = Bench(A)
    bench.found()
    (want,) = bench.plan()
    bench.answer(want, error=TopicAuthorizationFailed())
    with pytest.raises(TopicAuthorizationFailed):
        bench.taken()
    assert bench.taken() == []


def test_the_trouble_of_one_partition_is_told_though_another_always_has_records() -> None:
    bench = Bench(A, B)
    bench.found()
    wants = {want.tp: want for want in bench.plan()}
    bench.answer(wants[A], error=TopicAuthorizationFailed())
    bench.answer(wants[B], data(0))
    told, got = 0, []
    for turn in range(1, 5):
        try:
            got.extend(bench.taken())
        except TopicAuthorizationFailed:
            told += 1
        bench.answer(Want(B, turn * 5, bench.machine.generation_of(B), 500), data(turn * 5))
    assert told == 1 and got == list(range(20))


def test_a_record_that_cannot_be_read_does_not_keep_the_other_partitions_waiting() -> None:
    bench = Bench(A, B, partition_bytes=5000)
    bench.found()
    damaged = bytearray(data(0))
    damaged[-1] ^= 1
    wants = {want.tp: want for want in bench.plan()}
    bench.answer(wants[A], bytes(damaged))
    bench.answer(wants[B], data(0))
    heard: list[object] = []
    for _ in range(4):
        try:
            heard.append(bench.taken())
        except CorruptMessage:
            heard.append("told")
    assert [0, 1, 2, 3, 4] in heard and heard.count("told") >= 2


def test_a_partition_without_a_leader_is_not_looked_up_but_asked_for() -> None:
    bench = Bench(A, B)
    bench.machine.leaders_changed("t", [-1, 0])
    assert [lookup.tp for lookup in bench.machine.lookups(0.0)] == [B]
    assert list(bench.machine.stale_topics) == ["t"]
    bench.machine.leaders_changed("t", [0, 0])
    assert [lookup.tp for lookup in bench.machine.lookups(0.0)] == [A]


def test_a_missing_topic_is_told_only_after_a_while() -> None:
    bench = Bench(A)
    missing = UnknownTopicOrPartition("There is no topic 't'.")
    bench.machine.topic_unknown("t", missing, 0.0)
    assert bench.taken() == []
    bench.machine.topic_unknown("t", missing, 3.0)
    with pytest.raises(UnknownTopicOrPartition):
        bench.taken()


def test_a_partition_that_the_topic_does_not_have_is_told() -> None:
    bench = Bench(TopicPartition("t", 9))
    with pytest.raises(UnknownTopicOrPartition, match="0 to 1, not 9"):
        bench.taken()


def test_records_before_a_damaged_batch_are_handed_out_first() -> None:
    bench = Bench(A, partition_bytes=5000)
    bench.found()
    damaged = bytearray(data(0) + data(5))
    damaged[-1] ^= 1
    (want,) = bench.plan()
    bench.answer(want, bytes(damaged))
    assert bench.taken(5) == [0, 1, 2, 3, 4]
    with pytest.raises(CorruptMessage):
        bench.taken(5)
    bench.machine.seek(A, 10)
    assert [w.offset for w in bench.plan()] == [10]


# ---------------------------------------------------------------------- replicas and leader epochs


def named(bench: Bench, replica: int = 2) -> None:
    """The leader names a replica."""
    (want,) = bench.plan()
    assert not want.from_replica
    bench.machine.fetched(
        want, error=None, data=b"", aborted=(), high_watermark=9, now=bench.now, preferred_replica=replica
    )


def sources(bench: Bench) -> dict[int, list[Want]]:
    return bench.machine.plan(bench.now, lambda _leader: 0)


def test_the_named_replica_is_read_until_the_lease_ends() -> None:
    bench = Bench(A, replica_lease_s=30.0)
    bench.found()
    named(bench)
    (want,) = sources(bench)[2]
    bench.answer(want, data(0))
    assert bench.taken() == [0, 1, 2, 3, 4]
    assert list(sources(bench)) == [2]
    bench.answer(want._replace(offset=5))
    bench.now = 31.0
    assert list(sources(bench)) == [0]


@pytest.mark.parametrize("error", [OffsetOutOfRange(), NotLeaderOrFollower(), None])
def test_after_any_failure_of_the_replica_the_leader_is_asked(error: RequestError | None) -> None:
    bench = Bench(A, reset="none")
    bench.machine.seek(A, 7)
    named(bench)
    (want,) = sources(bench)[2]
    if error is None:
        bench.machine.lost(want, bench.now)
    else:
        bench.answer(want, error=error)
    bench.now += 2.0
    ((leader, (again,)),) = sources(bench).items()
    assert (leader, again.offset, again.from_replica) == (0, 7, False)
    bench.answer(again, error=OffsetOutOfRange())
    with pytest.raises(NoOffset, match="out of range"):
        bench.taken()


class Epochs(Bench):
    """One partition, fetched up to offset 10 in epoch 3, of which the user has taken 5."""

    def __init__(self, reset: str = "earliest") -> None:
        super().__init__(A, reset=reset, partition_bytes=10_000)
        self.machine.seek(A, 0)
        self.machine.leaders_changed("t", [0, 0], [3, 3])
        for base in (0, 5):
            (want,) = self.plan()
            assert want.leader_epoch == 3
            self.answer(want, data(base, epoch=3))
        assert self.taken(5) == [0, 1, 2, 3, 4]

    def changed(self, epoch: int = 4) -> Validation:
        self.machine.leaders_changed("t", [1, 0], [epoch, 3])
        assert self.plan() == [], "an unvalidated position is not fetched"
        (asked,) = self.machine.validations(self.now)
        assert self.machine.validations(self.now) == []
        assert (asked.leader, asked.leader_epoch, asked.offset, asked.epoch) == (1, epoch, 10, 3)
        return asked


def test_a_valid_position_continues_at_the_new_leader() -> None:
    bench = Epochs()
    assert bench.machine.validated(bench.changed(), 3, 10) is None
    ((leader, (want,)),) = sources(bench).items()
    assert (leader, want.offset, want.leader_epoch) == (1, 10, 4)
    assert bench.taken() == [5, 6, 7, 8, 9]


def test_lost_records_that_were_only_fetched_ahead_are_dropped_silently() -> None:
    bench = Epochs("none")
    assert bench.machine.validated(bench.changed(), 3, 7) is None
    assert bench.taken() == []
    assert [want.offset for want in bench.plan()] == [5]


@pytest.mark.parametrize(("epoch", "end", "at"), [(3, 2, 2), (1, 2, 2), (1, 50, 5)])
def test_lost_records_that_were_returned_are_reported(epoch: int, end: int, at: int) -> None:
    bench = Epochs()
    sentence = bench.machine.validated(bench.changed(), epoch, end)
    assert sentence is not None and f"Continuing at offset {at}" in sentence
    assert bench.taken() == []
    assert [want.offset for want in bench.plan()] == [at]


def test_a_leader_that_knows_no_such_epoch_leads_to_a_reset() -> None:
    bench = Epochs()
    sentence = bench.machine.validated(bench.changed(), -1, -1)
    assert sentence is not None and "auto_offset_reset" in sentence
    assert [lookup.timestamp_ms for lookup in bench.machine.lookups(bench.now)] == [EARLIEST]


def test_without_a_reset_policy_truncation_is_an_error_until_a_seek() -> None:
    bench = Epochs("none")
    assert bench.machine.validated(bench.changed(), 3, 2) is None
    for _ in range(2):
        with pytest.raises(LogTruncated, match="before offset 5"):
            bench.taken()
    bench.machine.seek(A, 2)
    assert [want.offset for want in bench.plan()] == [2]


def test_a_failed_or_outdated_validation_is_repeated() -> None:
    bench = Epochs()
    bench.machine.validation_failed(bench.changed(), NotLeaderOrFollower(), bench.now)
    assert bench.plan() == [] == bench.machine.validations(bench.now)
    bench.now += 2.0
    (asked,) = bench.machine.validations(bench.now)
    bench.machine.leaders_changed("t", [1, 0], [5, 3])
    assert bench.machine.validated(asked, 3, 0) is None, "it says nothing about the leader of epoch 5"
    (asked,) = bench.machine.validations(bench.now)
    assert asked.leader_epoch == 5
    assert bench.machine.validated(asked, 3, 10) is None
    assert [want.offset for want in bench.plan()] == [10]


def test_positions_are_validated_when_no_fetch_is_on_the_wire() -> None:
    bench = Epochs()
    (want,) = bench.plan()
    bench.machine.leaders_changed("t", [1, 0], [4, 3])
    assert bench.machine.validations(bench.now) == []
    bench.answer(want, data(10, epoch=3))
    (asked,) = bench.machine.validations(bench.now)
    assert (asked.offset, asked.epoch) == (15, 3)


def test_a_committed_offset_is_validated_before_it_is_fetched() -> None:
    bench = Bench(A, reset="none")
    bench.machine.assign([B])
    bench.machine.assign([A], committed=True)
    bench.machine.leaders_changed("t", [0, 0], [4, 4])
    (lookup,) = bench.machine.lookups(bench.now)
    bench.machine.found(lookup, 10, 3)
    assert bench.plan() == []
    (asked,) = bench.machine.validations(bench.now)
    assert (asked.offset, asked.epoch) == (10, 3)
    assert bench.machine.validated(asked, 3, 7) is None
    with pytest.raises(LogTruncated, match="before offset 10"):
        bench.taken()


@pytest.mark.parametrize("epoch", [4, -1], ids=["of the leader's epoch", "without an epoch"])
def test_other_committed_offsets_are_fetched_at_once(epoch: int) -> None:
    bench = Bench(A, reset="none")
    bench.machine.assign([B])
    bench.machine.assign([A], committed=True)
    bench.machine.leaders_changed("t", [0, 0], [4, 4])
    (lookup,) = bench.machine.lookups(bench.now)
    bench.machine.found(lookup, 10, epoch)
    assert [want.offset for want in bench.plan()] == [10]
    assert bench.machine.epoch_before(A, 10) == epoch


def test_a_leader_that_is_found_after_the_committed_offset_validates_it() -> None:
    bench = Bench(A, reset="earliest")
    bench.machine.assign([B])
    bench.machine.assign([A], committed=True)
    (lookup,) = bench.machine.lookups(bench.now)
    bench.machine.found(lookup, 10, 3)
    bench.machine.leaders_changed("t", [0, 0], [4, 4])
    (asked,) = bench.machine.validations(bench.now)
    assert "Continuing at offset 7" in str(bench.machine.validated(asked, 3, 7))
    assert [want.offset for want in bench.plan()] == [7]
    assert bench.machine.epoch_before(A, 7) == 3


def test_each_position_knows_the_epoch_of_the_record_before_it() -> None:
    bench = Epochs()
    bench.machine.leaders_changed("t", [0, 0], [3, 3])
    (want,) = bench.plan()
    bench.answer(want, data(10, epoch=5) + data(15, epoch=6))
    epochs = {offset: bench.machine.epoch_before(A, offset) for offset in (0, 1, 5, 10, 11, 15, 16, 20)}
    assert epochs == {0: -1, 1: 3, 5: 3, 10: 3, 11: 5, 15: 5, 16: 6, 20: 6}
    bench.machine.seek(A, 12)
    assert bench.machine.epoch_before(A, 12) == -1


def test_after_a_truncation_of_what_was_only_fetched_the_position_keeps_its_epoch() -> None:
    bench = Epochs()
    assert bench.machine.validated(bench.changed(), 3, 7) is None
    assert bench.machine.epoch_before(A, 5) == 3
