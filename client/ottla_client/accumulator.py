"""Collects records into batches, per partition, until a batch is full or its linger time is over. [P]

Theory of operation. A `Lane` is the send queue of one partition: at most one open batch that still takes
records, then closed batches in order, then those on the wire. A record goes to the open batch of its lane. A
batch is *due* when `linger_s` has passed since its first record, when it is full, or at a flush. A due
batch stays open until the lane can send it: while the wire is busy, batches grow, and no small ones
queue up.

Invariants:
A1. `used_bytes` is the sum of `size_bytes` of all batches that are not settled, and only `append` and
    `append_encoded` raise it.
A2. `used_bytes` exceeds `buffer_bytes` by at most one record or encoded batch, and only if the buffer was empty.
A3. Within a lane, batches leave in the order in which they were opened, and records in the order of `append`.
A4. A split batch is settled when its halves are; they take over its place in the order and its bytes.

Called by the producer (append, flush) and by `producer_machine` (taking batches). Does no
network I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from ottla_client.record import Headers
from ottla_client.splitting import builders_of_halves
from ottla_core.errors import MessageTooLarge
from ottla_core.ids import TopicPartition
from ottla_core.records.codec import BatchBuilder
from ottla_core.records.encoded import EncodedRecords

#: Maximum overhead of a record in format v2, beside key, value and headers: length, attributes, deltas, counts.
RECORD_OVERHEAD_BYTES = 21 + 5
#: Two lengths of at most five bytes around each header.
HEADER_OVERHEAD_BYTES = 10

#: Ordered by opening; the halves of (7,) are (7, 0) and (7, 1), which sort between (7,) and (8,).
BatchId: TypeAlias = tuple[int, ...]

_SPENT = BatchBuilder(0)
#: Shared: the codec needs a list, and creating one per record costs measurable time.
_NO_HEADERS: list[tuple[str, bytes | None]] = []


class Outcome(NamedTuple):
    """Outcome of a batch: written at an offset (-1 if unknown), or an error."""

    base_offset: int = -1
    log_append_time_ms: int = -1
    error: Exception | None = None


class Totals:
    """What was settled since the start: for the producer's metrics."""

    __slots__ = ("batches_sent", "bytes_sent", "records_failed", "records_sent", "retries")

    def __init__(self) -> None:
        self.records_sent = self.bytes_sent = self.batches_sent = self.records_failed = self.retries = 0

    def add(self, batch: Batch, error: Exception | None) -> None:
        self.retries += max(0, batch.attempts - 1)
        if error is not None:
            self.records_failed += batch.count
            return
        self.records_sent += batch.count
        self.bytes_sent += batch.size_bytes
        self.batches_sent += 1


class Batch:
    """Records of one partition that are sent, succeed and fail together."""

    __slots__ = (
        "attempts",
        "builder",
        "closed",
        "count",
        "created",
        "deadline",
        "doubtful",
        "epoch",
        "id",
        "lane",
        "outcome",
        "parts",
        "payload",
        "producer_id",
        "retried",
        "sequence",
        "size_bytes",
        "watchers",
    )

    def __init__(
        self,
        batch_id: BatchId,
        lane: Lane,
        builder: BatchBuilder | EncodedRecords,
        now: float,
        deadline: float,
    ) -> None:
        self.id = batch_id
        self.lane = lane
        self.builder = builder
        self.created = now
        #: When its records fail unless they are acknowledged.
        self.deadline = deadline
        self.count = 0
        #: Uncompressed estimate: what it costs in `used_bytes` until it is settled.
        self.size_bytes = 0
        self.closed = False
        #: Encoded bytes; built when the batch is first sent, and again when it is renumbered.
        self.payload = b""
        self.attempts = 0
        #: Waits for a retry, or is half of a batch that does.
        self.retried = False
        #: An earlier attempt may have been written without an acknowledgement.
        self.doubtful = False
        #: The halves, if it was split.
        self.parts: tuple[Batch, ...] = ()
        #: Idempotence: set when first sent.
        self.producer_id = -1
        self.epoch = -1
        self.sequence = -1
        self.outcome: Outcome | None = None
        self.watchers: list[Callable[[Batch], None]] = []

    def build(self, *, transactional: bool = False) -> None:
        """Encode the batch with its current sequence numbers."""
        self.payload = bytes(
            self.builder.build(
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=self.sequence,
                transactional=transactional,
            )
        )
        self.builder = _SPENT  # its buffer is as large as the batch

    def leaves(self) -> Iterator[Batch]:
        """The batch itself, or the parts of a split batch, recursively."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()

    def watch(self, callback: Callable[[Batch], None]) -> None:
        """Call back when the batch is settled; at once if it already is."""
        if self.outcome is not None:
            callback(self)
        else:
            self.watchers.append(callback)

    def __repr__(self) -> str:
        return f"<Batch {self.id} {self.lane.tp} x{self.count} seq={self.sequence} attempts={self.attempts}>"


class Lane:
    """The send queue of one partition. `accumulator` fills it; `producer_machine` empties it."""

    __slots__ = (
        "backoffs",
        "batch_bytes",
        "due",
        "epoch",
        "in_flight",
        "leader",
        "next_sequence",
        "not_before",
        "open",
        "partition",
        "pending",
        "producer_id",
        "recovering",
        "tp",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.partition = tp.partition
        self.open: Batch | None = None
        #: Reduced batch size after a broker refused one as too large; 0 before that.
        self.batch_bytes = 0
        #: The open batch may be sent without further linger.
        self.due = False
        #: Closed and not on the wire, oldest first; retried ones come back in their old place.
        self.pending: deque[Batch] = deque()
        #: On the wire and not answered, oldest first.
        self.in_flight: dict[BatchId, Batch] = {}
        #: Broker id; -1 while unknown.
        self.leader = -1
        #: After a failure: wait for all answers, then send one batch at a time until the retried ones succeed.
        self.recovering = False
        self.not_before = 0.0
        self.backoffs = 0
        self.producer_id = -1
        self.epoch = -1
        self.next_sequence = 0

    @property
    def has_work(self) -> bool:
        return bool(self.pending) or (self.due and self.open is not None)


class Accumulator:
    def __init__(
        self,
        *,
        batch_bytes: int,
        linger_s: float,
        buffer_bytes: int,
        delivery_timeout_s: float,
        record_bytes_max: int,
        compression: int,
        on_close: Callable[[TopicPartition], None] | None = None,
    ) -> None:
        #: Called for every closed batch, so that sticky partitioners can switch.
        self._on_close = on_close
        self._batch_bytes = batch_bytes
        self._record_bytes_max = record_bytes_max
        self._linger_s = linger_s
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_s = delivery_timeout_s
        self._compression = compression
        self._next_id = 0
        self.used_bytes = 0
        #: Bytes freed since the last reset; if any, waiting appends are retried.
        self.freed_bytes = 0
        self.lanes: dict[TopicPartition, Lane] = {}
        #: Lanes with something to send, in the order in which they became ready.
        self.ready: dict[TopicPartition, Lane] = {}
        #: Open batches by age; batches that were closed meanwhile are skipped.
        self._lingering: deque[Batch] = deque()
        #: All batches by age; settled ones are skipped.
        self._expiring: deque[Batch] = deque()
        #: Unsettled batches by id.
        self.unsettled: dict[BatchId, Batch] = {}
        self.totals = Totals()

    def lane(self, tp: TopicPartition) -> Lane:
        lane = self.lanes.get(tp)
        if lane is None:
            lane = self.lanes[tp] = Lane(tp)
        return lane

    def append(
        self,
        lane: Lane,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        now: float | None = None,
    ) -> Batch | None:
        """The batch that took the record (as its `count - 1`th), or None if the buffer is full.

        Without `now` only an open batch is tried, so that most records need no clock call.
        """
        size = RECORD_OVERHEAD_BYTES
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if headers:
            size += headers_size(headers)
        used = self.used_bytes + size
        if used > self._buffer_bytes and self.used_bytes:
            return None
        batch = lane.open
        if batch is None or not batch.builder.append(timestamp_ms, key, value, headers or _NO_HEADERS):
            if now is None:
                return None
            # Checked only here: a record that is too large for any batch does not fit an open one either.
            if size > self._record_bytes_max:
                raise MessageTooLarge(
                    f"A record of about {size} bytes is larger than "
                    f"max_request_size={self._record_bytes_max}."
                )
            if batch is not None:
                self.close(batch)
            batch = self._open(lane, now)
            try:
                batch.builder.append(timestamp_ms, key, value, headers or _NO_HEADERS)
            except (TypeError, ValueError):
                self._forget(batch)
                raise
        batch.count += 1
        batch.size_bytes += size
        self.used_bytes = used
        return batch

    def append_encoded(self, lane: Lane, records: EncodedRecords, now: float) -> Batch | None:
        """A closed batch of these records, after all earlier ones of its lane; None if the buffer is full."""
        size = records.size_bytes
        if self.used_bytes and self.used_bytes + size > self._buffer_bytes:
            return None
        if size > self._record_bytes_max:
            raise MessageTooLarge(
                f"{records.count} encoded records of {size} bytes are larger than "
                f"max_request_size={self._record_bytes_max}."
            )
        if lane.open is not None:
            self.close(lane.open)
        batch = self._add(lane, records, now)
        batch.count, batch.size_bytes = records.count, size
        self.used_bytes += size
        self.close(batch)
        return batch

    def batch_bytes(self, lane: Lane) -> int:
        """The size at which a batch of this lane is full."""
        return lane.batch_bytes or self._batch_bytes

    def _forget(self, batch: Batch) -> None:
        """Remove a batch that never got its first record."""
        batch.lane.open, batch.lane.due, batch.closed = None, False, True
        batch.outcome = Outcome()
        del self.unsettled[batch.id]

    def _open(self, lane: Lane, now: float) -> Batch:
        builder = BatchBuilder(self.batch_bytes(lane), compression=self._compression)
        batch = self._add(lane, builder, now)
        lane.open = batch
        lane.due = False
        if self._linger_s > 0:
            self._lingering.append(batch)
        else:
            self.make_due(lane)
        return batch

    def _add(self, lane: Lane, builder: BatchBuilder | EncodedRecords, now: float) -> Batch:
        batch = Batch((self._next_id,), lane, builder, now, now + self._delivery_timeout_s)
        self._next_id += 1
        self.unsettled[batch.id] = batch
        self._expiring.append(batch)
        return batch

    # ------------------------------------------------------------------ closing

    def close(self, batch: Batch) -> None:
        """Close the batch: it takes no more records and waits in its lane to be sent."""
        lane = batch.lane
        batch.closed = True
        lane.open = None
        lane.due = False
        lane.pending.append(batch)
        self.ready[lane.tp] = lane
        if self._on_close is not None:
            self._on_close(lane.tp)

    def make_due(self, lane: Lane) -> None:
        """The lane's open batch may be sent as soon as the wire is free."""
        if lane.open is not None:
            lane.due = True
            self.ready[lane.tp] = lane

    def end_linger(self, now: float) -> None:
        """Make batches due whose linger time is over."""
        lingering = self._lingering
        while lingering and (lingering[0].closed or lingering[0].created + self._linger_s <= now):
            batch = lingering.popleft()
            if not batch.closed:
                self.make_due(batch.lane)

    def flush(self) -> None:
        """Make all batches due."""
        for batch in self.unsettled.values():
            if not batch.closed:
                self.make_due(batch.lane)

    def linger_ends(self) -> float | None:
        """When the next linger time ends."""
        lingering = self._lingering
        while lingering and lingering[0].closed:
            lingering.popleft()
        return lingering[0].created + self._linger_s if lingering else None

    def split(self, batch: Batch) -> tuple[Batch, ...]:
        """Replace a batch that is certainly not written by its halves (A4). Later batches of the lane are smaller."""
        lane = batch.lane
        lane.batch_bytes = min(lane.batch_bytes or self._batch_bytes, max(batch.size_bytes // 2, 1))
        for number, builder in enumerate(builders_of_halves(batch, self._compression)):
            half = Batch((*batch.id, number), lane, builder, batch.created, batch.deadline)
            half.count, half.closed = builder.count, True
            half.size_bytes = batch.size_bytes * half.count // batch.count
            batch.parts = (*batch.parts, half)
        first, second = batch.parts
        second.size_bytes = batch.size_bytes - first.size_bytes
        batch.size_bytes, batch.payload = 0, b""
        del self.unsettled[batch.id]
        for half in batch.parts:
            self.unsettled[half.id] = half
            half.watch(lambda _half: self._settle_whole(batch))
        return batch.parts

    def _settle_whole(self, batch: Batch) -> None:
        outcomes = [part.outcome for part in batch.parts if part.outcome is not None]
        if len(outcomes) == len(batch.parts):
            error = next((each.error for each in outcomes if each.error is not None), None)
            self.settle(batch, outcomes[0]._replace(error=error))

    # ------------------------------------------------------------------ settling

    def expired(self, now: float) -> list[Batch]:
        """Unsettled batches past their deadline, oldest first, each returned once. Halves expire with their batch."""
        found: list[Batch] = []
        expiring = self._expiring
        while expiring and (expiring[0].outcome is not None or expiring[0].deadline <= now):
            batch = expiring.popleft()
            if batch.outcome is None:
                found.extend(leaf for leaf in batch.leaves() if leaf.outcome is None)
        return found

    def first_deadline(self) -> float | None:
        expiring = self._expiring
        while expiring and expiring[0].outcome is not None:
            expiring.popleft()
        return expiring[0].deadline if expiring else None

    def settle(self, batch: Batch, outcome: Outcome) -> None:
        """Record the outcome, free the memory, and call the callbacks."""
        if batch.outcome is not None:
            return
        batch.outcome = outcome
        if not batch.parts:  # the halves of a split batch were counted
            self.totals.add(batch, outcome.error)
        if batch.id not in batch.lane.in_flight:
            batch.payload = b""  # deliveries refer to the batch, and users may keep them for long
        self.used_bytes -= batch.size_bytes
        self.freed_bytes += batch.size_bytes
        self.unsettled.pop(batch.id, None)
        lane = batch.lane
        if lane.open is batch:
            lane.open, lane.due, batch.closed = None, False, True
        watchers, batch.watchers = batch.watchers, []
        for watcher in watchers:
            watcher(batch)


def headers_size(headers: Headers) -> int:
    return sum(
        HEADER_OVERHEAD_BYTES + 4 * len(name) + (0 if value is None else len(value))
        for name, value in headers
    )
