"""Producer state: the rules one by one, a dumb twin over random histories, and Kafka's snapshot bytes."""

from __future__ import annotations

import struct
import time

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from ottla_broker.log.origin import AppendOrigin
from ottla_broker.log.producers import (
    CorruptSnapshot,
    Duplicate,
    LastRecord,
    Marker,
    ProducerStates,
)
from ottla_broker.requests import ProducerIdentity
from ottla_core.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTxnState,
    InvariantViolation,
    OutOfOrderSequenceNumber,
    RequestError,
    TransactionCoordinatorFenced,
)
from ottla_core.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader

COMMIT = Marker(is_commit=True, coordinator_epoch=0)
ABORT = Marker(is_commit=False, coordinator_epoch=0)
LAST_SEQUENCE = (1 << 31) - 1


def batch(
    offset: int,
    *,
    pid: int = 7,
    epoch: int = 0,
    seq: int = 0,
    count: int = 1,
    transactional: bool = False,
    control: bool = False,
    timestamp: int = 1000,
) -> BatchHeader:
    attributes = (TRANSACTIONAL_FLAG if transactional else 0) | (CONTROL_FLAG if control else 0)
    return BatchHeader(
        offset, 100, 0, 2, 0, attributes, count - 1, timestamp, timestamp, pid, epoch, seq, count
    )


def marker_batch(offset: int, *, pid: int = 7, epoch: int = 0) -> BatchHeader:
    return batch(offset, pid=pid, epoch=epoch, seq=-1, transactional=True, control=True)


def after(*batches: BatchHeader) -> ProducerStates:
    states = ProducerStates()
    for header in batches:
        assert states.check(header, 0) is None
        states.update(header, 0)
    return states


def test_a_batch_without_producer_passes_and_leaves_no_trace() -> None:
    states = after(batch(0, pid=-1, epoch=-1, seq=-1), batch(1, pid=-1, epoch=-1, seq=-1))
    assert len(states) == 0
    assert states.end_offset == 2


def test_an_unknown_producer_may_begin_anywhere() -> None:
    states = after(batch(10, seq=500, count=3))
    assert states.check(batch(13, seq=503), 0) is None


def test_a_gap_and_a_repeat_of_part_of_a_batch_are_refused() -> None:
    states = after(batch(0, seq=0, count=5))
    for seq, count in ((6, 1), (0, 4), (1, 4), (4, 1), (3, 5)):
        with pytest.raises(OutOfOrderSequenceNumber, match=f"wrote sequence {seq}, but 5 comes next"):
            states.check(batch(5, seq=seq, count=count), 0)


def test_the_last_five_batches_are_known_again() -> None:
    states = after(*(batch(10 * n, seq=2 * n, count=2, timestamp=n) for n in range(6)))
    for n in range(1, 6):
        assert states.check(batch(99, seq=2 * n, count=2), 0) == Duplicate(10 * n, 10 * n + 1, n)
    with pytest.raises(OutOfOrderSequenceNumber):
        states.check(batch(99, seq=0, count=2), 0)


def test_sequences_wrap_to_zero_also_inside_a_batch() -> None:
    states = after(batch(0, seq=LAST_SEQUENCE), batch(1, seq=0))
    assert states.check(batch(9, seq=LAST_SEQUENCE), 0) == Duplicate(0, 0, 1000)
    states = after(batch(0, seq=LAST_SEQUENCE - 1, count=4))
    assert states.check(batch(9, seq=LAST_SEQUENCE - 1, count=4), 0) == Duplicate(0, 3, 1000)
    assert states.check(batch(4, seq=2), 0) is None


def test_an_epoch_bump_starts_at_zero_and_fences() -> None:
    states = after(batch(0, seq=0), batch(1, seq=1))
    with pytest.raises(OutOfOrderSequenceNumber):
        states.check(batch(2, epoch=1, seq=2), 0)
    bumped = batch(2, epoch=1, seq=0)
    assert states.check(bumped, 0) is None
    states.update(bumped, 0)
    for old in (batch(3, seq=2), batch(3, seq=1)):
        with pytest.raises(InvalidProducerEpoch):
            states.check(old, 0)


@pytest.mark.parametrize(
    "bad",
    [batch(0, seq=-1), batch(0, epoch=-1), batch(0, pid=-2), marker_batch(0)],
    ids=["no sequence", "no epoch", "negative id", "control"],
)
def test_what_no_client_may_write(bad: BatchHeader) -> None:
    with pytest.raises(InvalidRecord):
        ProducerStates().check(bad, 0)


def test_a_coordinator_writes_without_sequences_but_is_fenced_by_epoch() -> None:
    states = ProducerStates()
    commit_offsets = batch(0, seq=-1, epoch=3, transactional=True)
    assert states.check(commit_offsets, 0, origin=AppendOrigin.COORDINATOR) is None
    states.update(commit_offsets, 0)
    assert (
        states.check(batch(1, seq=-1, epoch=3, transactional=True), 0, origin=AppendOrigin.COORDINATOR)
        is None
    )
    with pytest.raises(InvalidProducerEpoch):
        states.check(batch(1, seq=-1, epoch=2), 0, origin=AppendOrigin.COORDINATOR)
    with pytest.raises(InvalidProducerEpoch):
        states.check(marker_batch(1, epoch=2), 0, origin=AppendOrigin.COORDINATOR)


def test_a_transaction_holds_the_stable_offset_until_its_marker_is_replicated() -> None:
    states = after(batch(0, seq=0), batch(1, pid=8, seq=0, transactional=True))
    assert states.first_unstable_offset == 1
    assert states.last_stable_offset(2) == 1
    assert states.last_stable_offset(0) == 0
    done = states.update(marker_batch(2, pid=8), 0, ABORT)
    assert done == (8, 1, 2, True, 3)
    assert states.first_undecided_offset is None
    assert states.last_stable_offset(2) == 1
    assert states.last_stable_offset(3) == 3
    assert states.first_unstable_offset is None


def test_the_oldest_open_transaction_counts() -> None:
    states = after(
        batch(0, pid=1, transactional=True),
        batch(1, pid=2, transactional=True),
        batch(2, pid=1, seq=1, transactional=True),
    )
    done = states.update(marker_batch(3, pid=1), 0, COMMIT)
    assert done == (1, 0, 3, False, 1)
    assert states.last_stable_offset(4) == 1
    assert states.update(marker_batch(4, pid=2), 0, COMMIT) == (2, 1, 4, False, 5)
    assert states.last_stable_offset(5) == 5


def test_a_marker_without_a_transaction_or_content_moves_nothing() -> None:
    states = after(batch(0))
    assert states.update(marker_batch(1), 0, COMMIT) is None
    states.update(batch(2, seq=1, transactional=True), 0)
    assert states.update(marker_batch(3), 0, None) is None
    assert states.last_stable_offset(4) == 2
    assert states.end_offset == 4


def test_sequences_go_on_after_a_marker_of_the_same_epoch() -> None:
    states = after(batch(0, seq=0, transactional=True))
    states.update(marker_batch(1), 0, COMMIT)
    assert states.check(batch(2, seq=1, transactional=True), 0) is None
    assert states.last_records() == {7: LastRecord(0, 0)}


def test_a_marker_of_a_new_epoch_fences_and_restarts_sequences() -> None:
    states = after(batch(0, seq=0, transactional=True))
    states.update(marker_batch(1, epoch=1), 0, COMMIT)
    with pytest.raises(InvalidProducerEpoch):
        states.check(batch(2, seq=1, transactional=True), 0)
    assert states.check(batch(2, epoch=1, seq=0, transactional=True), 0) is None
    assert states.last_records() == {7: LastRecord(-1, 1)}


def test_an_old_coordinators_marker_is_refused() -> None:
    states = after(batch(0, transactional=True))
    states.update(marker_batch(1), 0, Marker(is_commit=True, coordinator_epoch=5))
    states.check_marker(ProducerIdentity(7, 0), 5)
    with pytest.raises(TransactionCoordinatorFenced):
        states.check_marker(ProducerIdentity(7, 0), 4)


def test_no_plain_batch_inside_a_transaction() -> None:
    states = after(batch(0, transactional=True))
    with pytest.raises(InvalidTxnState):
        states.check(batch(1, seq=1), 0)


def test_the_idle_are_forgotten_but_not_in_a_transaction() -> None:
    states = ProducerStates()
    states.update(batch(0, pid=1, timestamp=5), 100)
    states.update(batch(1, pid=2, transactional=True), 100)
    states.update(batch(2, pid=3), 150)
    assert states.expire(199, 100) == 0
    assert states.expire(200, 100) == 1
    assert sorted(states.last_records()) == [2, 3]


def test_a_loaded_producer_is_idle_from_the_first_look_at_the_clock() -> None:
    states = ProducerStates.decode(after(batch(0, timestamp=1)).encode(1))
    assert states.expire(10**12, 100) == 0
    assert states.expire(10**12 + 99, 100) == 0
    assert states.expire(10**12 + 100, 100) == 1


def test_the_table_is_bounded_and_evicts_the_least_recent_producer() -> None:
    states = ProducerStates(capacity=3)
    states.update(batch(0, pid=1, transactional=True), 0)
    for pid in (2, 3):
        states.update(batch(pid, pid=pid), 0)
    states.update(batch(4, pid=2, seq=1), 0)
    states.update(batch(5, pid=9), 0)
    assert sorted(states.last_records()) == [1, 2, 9]


def test_snapshot_bytes_are_kafkas() -> None:
    states = after(batch(40, pid=9, epoch=2, seq=10, count=3, timestamp=1234, transactional=True))
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 9, 2, 12, 42, 2, 1234, -1, 40)
    assert states.encode(43) == struct.pack(">hI", 1, crc32c(body)) + body


def test_a_snapshot_is_not_named_for_an_offset_it_is_beyond() -> None:
    with pytest.raises(InvariantViolation):
        after(batch(5)).encode(5)


def test_a_snapshot_keeps_what_it_must() -> None:
    states = after(
        batch(0, pid=2, seq=5),
        batch(1, pid=1, seq=0, transactional=True),
        batch(2, pid=3, seq=0, transactional=True),
    )
    states.update(marker_batch(3, pid=3, epoch=1), 0, Marker(is_commit=True, coordinator_epoch=8))
    loaded = ProducerStates.decode(states.encode(4), 4)
    assert loaded.encode(4) == states.encode(4)
    assert loaded.last_records() == states.last_records()
    assert loaded.first_undecided_offset == 1
    assert loaded.check(batch(4, pid=2, seq=5), 0) == Duplicate(0, 0, 1000)
    with pytest.raises(OutOfOrderSequenceNumber):
        loaded.check(batch(4, pid=2, seq=7), 0)
    with pytest.raises(TransactionCoordinatorFenced):
        loaded.check_marker(ProducerIdentity(3, 1), 7)


@given(st.data())
@settings(max_examples=examples(100), deadline=None)
def test_a_damaged_snapshot_is_never_believed(data: st.DataObject) -> None:
    good = after(batch(0), batch(1, pid=8, transactional=True)).encode(2)
    if data.draw(st.booleans()):
        bad = good[: data.draw(st.integers(0, len(good) - 1))]
    else:
        bit = data.draw(st.integers(0, len(good) * 8 - 1))
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        bad = bytes(flipped)
    with pytest.raises(CorruptSnapshot):
        ProducerStates.decode(bad)


class Twin:
    """The rules once more, over the whole history and without any memory bound except the five."""

    def __init__(self) -> None:
        self.history: list[tuple[int, int, int, int, int]] = []  # pid, epoch, first, last sequence, offset

    def expect(self, pid: int, epoch: int, seq: int, count: int) -> object:
        mine = [h for h in self.history if h[0] == pid]
        if not mine:
            return None
        newest_epoch = mine[-1][1]
        if epoch < newest_epoch:
            return InvalidProducerEpoch
        current = [h for h in mine if h[1] == epoch]
        if epoch > newest_epoch:
            return None if seq == 0 else OutOfOrderSequenceNumber
        for _, _, first, last, offset in current[-5:]:
            if (first, last) == (seq, (seq + count - 1) % 2**31):
                return Duplicate(offset, offset + count - 1, 1000)
        return None if seq == (current[-1][3] + 1) % 2**31 else OutOfOrderSequenceNumber


@given(
    st.lists(
        st.tuples(
            st.integers(1, 2),
            st.integers(0, 2),
            st.integers(-6, 2),  # relative to the next sequence
            st.integers(1, 3),
        ),
        max_size=40,
    ),
    st.sampled_from([0, LAST_SEQUENCE - 4]),
)
@settings(max_examples=examples(150), deadline=None)
def test_random_histories_against_the_twin(steps: list[tuple[int, int, int, int]], start: int) -> None:
    states, twin, offset = ProducerStates(), Twin(), 0
    next_sequence: dict[tuple[int, int], int] = {}
    for pid, epoch, shift, count in steps:
        seq = (next_sequence.get((pid, epoch), start if epoch == 0 else 0) + shift) % 2**31
        header = batch(offset, pid=pid, epoch=epoch, seq=seq, count=count)
        expected = twin.expect(pid, epoch, seq, count)
        try:
            got: object = states.check(header, 0)
        except RequestError as error:
            got = type(error)
        assert got == expected
        if got is None:
            states.update(header, 0)
            twin.history.append((pid, epoch, seq, (seq + count - 1) % 2**31, offset))
            next_sequence[pid, epoch] = (seq + count) % 2**31
            offset += count


def test_at_the_bound_a_new_producer_is_refused_while_all_have_open_transactions() -> None:
    states = ProducerStates(capacity=3)
    for pid in (1, 2, 3):
        states.update(batch(pid, pid=pid, transactional=True), 0)
    for transactional in (True, False):
        with pytest.raises(ConcurrentTransactions):
            states.check(batch(9, pid=9, transactional=transactional), 0)
    assert states.check(batch(9, pid=2, seq=1, transactional=True), 0) is None
    states.update(marker_batch(9, pid=2), 0, ABORT)
    assert states.check(batch(10, pid=9, transactional=True), 0) is None
    states.update(batch(10, pid=9, transactional=True), 0)
    assert sorted(states.last_records()) == [1, 3, 9]


def _seconds_per_append(states: ProducerStates, first_pid: int, count: int) -> float:
    headers = [batch(pid, pid=pid) for pid in range(first_pid, first_pid + count)]
    begin = time.process_time()
    for header in headers:
        states.check(header, 0)
        states.update(header, 0)
        states.last_stable_offset(header.base_offset)
    return (time.process_time() - begin) / count


@pytest.mark.parametrize("transactional", [True, False])
def test_an_append_costs_the_same_however_many_producers_are_remembered(transactional: bool) -> None:
    """Open transactions before those that may be forgotten, and a table that has been full for long."""
    capacity = 20_000
    full, fresh = ProducerStates(capacity), ProducerStates(capacity)
    for pid in range(capacity - 1):
        full.update(batch(pid, pid=pid, transactional=transactional), 0)
    few = min(_seconds_per_append(fresh, 10**6 + n * 1000, 1000) for n in range(5))
    many = min(_seconds_per_append(full, 10**6 + n * 1000, 1000) for n in range(5))
    assert many < few * 8, f"{many * 1e6:.1f} µs per append, {few * 1e6:.1f} with few producers"
    assert len(full) <= capacity


class BoundedTwin:
    """Who is remembered, and the stable offset, from the whole history and without any structure."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.last_write: dict[int, int] = {}
        self.open: dict[int, int] = {}
        self.ended: list[tuple[int, int]] = []

    def write(self, pid: int, offset: int, transactional: bool, ends: bool) -> None:
        idle = sorted((o, p) for p, o in self.last_write.items() if p not in self.open)
        if pid not in self.last_write and len(self.last_write) >= self.capacity and idle:
            del self.last_write[idle[0][1]]
        self.last_write[pid] = offset
        if ends and pid in self.open:
            self.ended.append((self.open.pop(pid), offset))
        elif transactional and not ends:
            self.open.setdefault(pid, offset)

    def refuses(self, pid: int) -> bool:
        full = len(self.last_write) >= self.capacity and all(p in self.open for p in self.last_write)
        return pid not in self.last_write and full

    def stable(self, high_watermark: int) -> int:
        unsure = [first for first, marker in self.ended if marker >= high_watermark]
        return min([high_watermark, *unsure, *self.open.values()])


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from("dte"), st.integers(0, 4)), max_size=80))
@settings(max_examples=examples(150), deadline=None)
def test_memory_and_stable_offset_against_the_twin(steps: list[tuple[int, str, int]]) -> None:
    """Plain batches (d), transactional ones (t) and markers (e) of nine producers where four are remembered."""
    states, twin, high_watermark = ProducerStates(capacity=4), BoundedTwin(4), 0
    for offset, (pid, kind, lag) in enumerate(steps):
        transactional = kind == "t" or (kind == "d" and pid in twin.open)
        header = marker_batch(offset, pid=pid) if kind == "e" else batch(
            offset, pid=pid, seq=-1, transactional=transactional
        )  # fmt: skip
        if twin.refuses(pid):
            with pytest.raises(ConcurrentTransactions):
                states.check(header, 0, origin=AppendOrigin.COORDINATOR)
            continue
        assert states.check(header, 0, origin=AppendOrigin.COORDINATOR) is None
        states.update(header, 0, ABORT if kind == "e" else None)
        twin.write(pid, offset, transactional, kind == "e")
        assert sorted(states.last_records()) == sorted(twin.last_write)
        high_watermark = max(high_watermark, offset + 1 - lag)
        assert states.last_stable_offset(high_watermark) == twin.stable(high_watermark)
        again = ProducerStates.decode(states.encode(offset + 1), offset + 1, capacity=4)
        assert sorted(again.last_records()) == sorted(twin.last_write)
        assert again.first_undecided_offset == min(twin.open.values(), default=None)


def test_transactions_go_stale_by_their_last_timestamp() -> None:
    states = ProducerStates()
    states.update(batch(0, pid=1, transactional=True, timestamp=1000), 1000)
    states.update(batch(1, pid=2, transactional=True, timestamp=-1), 2000)
    states.update(batch(2, pid=3, transactional=True, timestamp=10**9), 3000)
    states.update(batch(3, pid=1, seq=1, transactional=True, timestamp=1500), 3000)

    def stale(now_ms: int, limit: int = 10) -> list[int]:
        return [one.producer_id for one in states.stale_transactions(now_ms, 100, limit)]

    assert stale(1600) == []
    assert stale(1601) == [1]
    assert stale(2101) == [1, 2]
    assert stale(3101) == [1, 2, 3]
    assert stale(3101, limit=2) == [1, 2]
    states = ProducerStates.decode(states.encode(4), 4)
    assert stale(5000) == [1]  # Of the other two only the first look at the clock is known.
    assert stale(5101) == [1, 2, 3]
