"""Producer state of one partition: sequences, epochs and open transactions. [P]

The log calls `check` before an append and `update` after it; recovery replays `update` over the batches
it scans; `encode` and `decode` are Kafka's `.snapshot` file, byte for byte.

Theory of operation (KIP-98, KIP-360):

* I1: a batch is written once. The last five batches of each producer are remembered; a batch with exactly the
  sequences of one of them is a duplicate and gets the old offsets.
* I2: sequences of a known producer have no gap. After 2^31 - 1 comes 0. A higher epoch starts again at 0, a
  lower one is fenced.
* I3: an unknown producer may begin at any sequence: retention, DeleteRecords or expiry may have removed all
  it wrote. Hence a batch *before* the remembered ones is "out of order", never "a duplicate of long ago": the
  memory may begin in the middle of a producer's life, and calling an unseen batch written would lose it.
* I4: the first unstable offset is the first offset of the oldest transaction that is open, or whose marker is
  not below the high watermark yet. Open transactions are never forgotten, neither by expiry nor by the cap.
* I5: at most `capacity` producers are remembered. At the bound the producer that wrote longest ago and has no open
  transaction is forgotten; if all of them have one, `check` refuses the next unknown producer. Each append costs the
  same, however many producers there are: the evictable ones and those with a transaction are separate tables.
"""

from __future__ import annotations

import heapq
import struct
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from crc32c import crc32c

from ottla_broker.log.origin import AppendOrigin
from ottla_broker.requests import ProducerIdentity
from ottla_core.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
    invariant,
)
from ottla_core.records.batch import (
    CONTROL_FLAG,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)

#: As many as a producer may have in flight (max.in.flight.requests.per.connection) with idempotence.
REMEMBERED_BATCHES = 5
#: Anyone can invent producer ids, so the memory is bounded. ~0.5 KB each; the producer that wrote longest ago goes
#: first, and may go on writing as an unknown producer (I3).
PRODUCERS_MAX = 10_000
NO_EPOCH = -1
NO_OFFSET = -1

_SEQUENCE_MODULUS = 1 << 31
_SPECIAL = CONTROL_FLAG | TRANSACTIONAL_FLAG
_SNAPSHOT_VERSION = 1
_PREAMBLE = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class CorruptSnapshot(ValueError):
    """The file is not a snapshot of version 1 with a right CRC. Rebuild from the log instead."""


class Duplicate(NamedTuple):
    """Where a batch that came again was written the first time."""

    base_offset: int
    last_offset: int
    timestamp: int


class Marker(NamedTuple):
    """What a control batch says about a transaction."""

    is_commit: bool
    coordinator_epoch: int


class Completed(NamedTuple):
    """A transaction that a marker ended. Aborted ones belong into the aborted index."""

    producer_id: int
    first_offset: int
    #: The marker's offset.
    last_offset: int
    aborted: bool
    #: What the last stable offset is once this marker is replicated.
    last_stable_offset: int


class StaleTransaction(NamedTuple):
    """An open transaction that has timed out."""

    producer_id: int
    producer_epoch: int
    #: Of the last marker for this producer; -1 if there was none.
    coordinator_epoch: int
    first_offset: int


class ProducerDescription(NamedTuple):
    """A producer as DescribeProducers shows it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    #: First offset of its open transaction; -1 without one.
    txn_first_offset: int


class LastRecord(NamedTuple):
    """The newest trace of a producer, which compaction must leave in the log."""

    last_data_offset: int
    epoch: int


class _Batch(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) % _SEQUENCE_MODULUS

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta


class _Producer:
    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_seen_ms",
        "marker_offset",
        "next_sequence",
        "timestamp",
        "txn_first_offset",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.coordinator_epoch = -1
        #: Of the newest batch, as its producer stamped it; what the snapshot holds.
        self.timestamp = NO_TIMESTAMP
        #: By the broker's clock, for expiry: a mirror that copies old records is not idle. None after loading; the
        #: first look at the clock sets it.
        self.last_seen_ms: int | None = None
        self.txn_first_offset = NO_OFFSET
        #: Of the last marker since this state was loaded: an append that was verified before it is refused.
        self.marker_offset = NO_OFFSET
        self.batches: list[_Batch] = []
        #: What must come next in this epoch; 0 while nothing is remembered of it.
        self.next_sequence = 0

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()
            self.next_sequence = 0

    def remember(self, batch: _Batch) -> None:
        if len(self.batches) == REMEMBERED_BATCHES:
            del self.batches[0]
        self.batches.append(batch)
        self.next_sequence = (batch.last_sequence + 1) % _SEQUENCE_MODULUS


def _fenced(producer_id: int, epoch: int, newer_epoch: int) -> InvalidProducerEpoch:
    return InvalidProducerEpoch(
        f"Producer {producer_id} wrote with epoch {epoch}; epoch {newer_epoch} has fenced it."
    )


class ProducerStates:
    def __init__(self, capacity: int = PRODUCERS_MAX) -> None:
        self._capacity = capacity
        #: Producers without an open transaction, in the order of their last write: the first is the one to forget.
        #: OrderedDict, because taking the first entry of a plain dict walks over all that were removed before it.
        self._idle: OrderedDict[int, _Producer] = OrderedDict()
        #: Producers with an open transaction (I4).
        self._busy: dict[int, _Producer] = {}
        #: First offset -> producer of every open transaction, in order of offsets.
        self._open: OrderedDict[int, int] = OrderedDict()
        #: First offset -> marker's offset of transactions whose marker may not be replicated yet, by marker.
        self._unreplicated: OrderedDict[int, int] = OrderedDict()
        #: The keys of `_unreplicated` as a heap; one that is no key any more is dropped when it comes up.
        self._unreplicated_firsts: list[int] = []
        #: The offset after the last batch passed to `update`.
        self.end_offset = 0

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def _find(self, producer_id: int) -> _Producer | None:
        found = self._idle.get(producer_id)
        return self._busy.get(producer_id) if found is None else found

    def check(
        self,
        header: BatchHeader,
        now_ms: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> Duplicate | None:
        """Whether the batch may be appended now: None yes, a `Duplicate` it is there already, an error no.

        Batches of a coordinator have epochs, but no sequences. An append has at most one batch of a producer.
        """
        if not header.has_producer:
            return None
        known = self._find(header.producer_id)
        if (
            known is not None
            and known.next_sequence == header.base_sequence
            and known.epoch == header.producer_epoch
            and header.attributes & _SPECIAL == 0
            and known.txn_first_offset == NO_OFFSET
        ):
            return None  # By far the most common: the next batch of a producer without transactions.
        if header.producer_id < 0 or header.producer_epoch < 0:
            raise InvalidRecord(
                f"Producer id {header.producer_id} with epoch {header.producer_epoch} cannot exist."
            )
        if known is None and not self._idle and len(self._busy) >= self._capacity:
            raise ConcurrentTransactions(
                f"{len(self._busy)} producers have a transaction open in this partition, which is the limit. "
                "Try again when one of them has ended."
            )
        if header.is_control:
            if origin is not AppendOrigin.COORDINATOR:
                raise InvalidRecord("Clients must not write control batches.")
            self._check_epoch(header, known)
            return None
        if origin is not AppendOrigin.COORDINATOR:
            if header.base_sequence < 0:
                raise InvalidRecord(
                    f"A batch of producer {header.producer_id} needs a sequence number of 0 or more, got "
                    f"{header.base_sequence}."
                )
            if known is not None and known.epoch == header.producer_epoch:
                for batch in known.batches:
                    if (
                        batch.last_sequence == header.last_sequence
                        and batch.first_sequence == header.base_sequence
                    ):
                        return Duplicate(batch.base_offset, batch.last_offset, batch.timestamp)
        self._check_epoch(header, known)
        if origin is not AppendOrigin.COORDINATOR:
            self._check_sequence(header, known)
        if known is not None and known.txn_first_offset != NO_OFFSET and not header.is_transactional:
            raise InvalidTxnState(
                f"Producer {header.producer_id} has an open transaction here and wrote a batch outside of it."
            )
        return None

    def _check_epoch(self, header: BatchHeader, known: _Producer | None) -> None:
        if known is not None and header.producer_epoch < known.epoch:
            raise _fenced(header.producer_id, header.producer_epoch, known.epoch)

    def _check_sequence(self, header: BatchHeader, known: _Producer | None) -> None:
        if known is None:
            return  # I3
        expected = 0 if header.producer_epoch > known.epoch else known.next_sequence
        if header.base_sequence != expected:
            raise OutOfOrderSequenceNumber(
                f"Producer {header.producer_id} (epoch {header.producer_epoch}) wrote sequence "
                f"{header.base_sequence}, but {expected} comes next."
            )

    def check_marker(self, producer: ProducerIdentity, coordinator_epoch: int) -> None:
        """Refuse a marker of a fenced producer epoch, or of a coordinator that a newer one has replaced (rule 21)."""
        self.check_producer(producer)
        known = self._find(producer.producer_id)
        if known is not None and coordinator_epoch < known.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"A marker for producer {producer.producer_id} has coordinator epoch {coordinator_epoch}; "
                f"epoch {known.coordinator_epoch} has fenced it."
            )

    def check_producer(self, producer: ProducerIdentity) -> None:
        """Refuse a producer whose epoch is fenced in this partition."""
        known = self._find(producer.producer_id)
        if known is not None and producer.producer_epoch < known.epoch:
            raise _fenced(producer.producer_id, producer.producer_epoch, known.epoch)

    def has_open(self, producer: ProducerIdentity) -> bool:
        """Whether this producer, in this epoch, has a transaction open here."""
        known = self._busy.get(producer.producer_id)
        return known is not None and known.epoch == producer.producer_epoch

    def marker_offset(self, producer_id: int) -> int:
        """The offset of the producer's last marker since the state was loaded; NO_OFFSET if there was none."""
        known = self._find(producer_id)
        return NO_OFFSET if known is None else known.marker_offset

    def described(self) -> list[ProducerDescription]:
        """Every producer that is remembered."""
        return [
            ProducerDescription(
                producer_id,
                p.epoch,
                p.batches[-1].last_sequence if p.batches else NO_SEQUENCE,
                p.timestamp,
                p.coordinator_epoch,
                p.txn_first_offset,
            )
            for producer_id, p in chain(self._idle.items(), self._busy.items())
        ]

    def update(self, header: BatchHeader, now_ms: int, marker: Marker | None = None) -> Completed | None:
        """Take note of a batch that is in the log. Never refuses: what is in the log has happened.

        `marker` is what a control batch holds; None for one that compaction has emptied. Gives back the
        transaction that the marker ended, if there was one.
        """
        # Once per batch on the hot path, hence plain fields instead of the header's properties.
        last_offset = header.base_offset + header.last_offset_delta
        attributes = header.attributes
        self.end_offset = last_offset + 1
        if not header.has_producer or (attributes & CONTROL_FLAG and marker is None):
            return None
        producer_id = header.producer_id
        producer = self._idle.get(producer_id)
        if producer is not None:
            self._idle.move_to_end(producer_id)
            producer.set_epoch(header.producer_epoch)
        elif (producer := self._busy.get(producer_id)) is not None:
            producer.set_epoch(header.producer_epoch)
        else:
            if self._idle and len(self) >= self._capacity:
                self._idle.popitem(last=False)  # I5
            producer = self._idle[producer_id] = _Producer(header.producer_epoch)
        producer.timestamp = header.max_timestamp
        producer.last_seen_ms = now_ms
        if marker is not None and attributes & CONTROL_FLAG:
            producer.coordinator_epoch = marker.coordinator_epoch
            producer.marker_offset = header.base_offset
            return self._complete(header, producer, aborted=not marker.is_commit)
        if header.base_sequence != NO_SEQUENCE:
            last_sequence = (header.base_sequence + header.last_offset_delta) % _SEQUENCE_MODULUS
            producer.remember(
                _Batch(last_sequence, last_offset, header.last_offset_delta, header.max_timestamp)
            )
        if attributes & TRANSACTIONAL_FLAG and producer.txn_first_offset == NO_OFFSET:
            producer.txn_first_offset = header.base_offset
            self._open[header.base_offset] = producer_id
            self._busy[producer_id] = self._idle.pop(producer_id)
        return None

    def _complete(self, header: BatchHeader, producer: _Producer, *, aborted: bool) -> Completed | None:
        first = producer.txn_first_offset
        if first == NO_OFFSET:
            return None  # A transaction without records in this partition changes nothing.
        producer.txn_first_offset = NO_OFFSET
        self._open.pop(first, None)
        self._idle[header.producer_id] = self._busy.pop(header.producer_id)
        self._unreplicated[first] = header.base_offset
        heapq.heappush(self._unreplicated_firsts, first)
        oldest = self.first_undecided_offset
        stable = header.base_offset + 1 if oldest is None else oldest
        return Completed(header.producer_id, first, header.base_offset, aborted, stable)

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of the oldest open transaction."""
        return next(iter(self._open), None)

    @property
    def first_unstable_offset(self) -> int | None:
        """I4, as of the high watermark that `last_stable_offset` was last asked with."""
        firsts = self._unreplicated_firsts
        while firsts and firsts[0] not in self._unreplicated:
            heapq.heappop(firsts)
        undecided = self.first_undecided_offset
        if not firsts:
            return undecided
        return firsts[0] if undecided is None else min(firsts[0], undecided)

    def last_stable_offset(self, high_watermark: int) -> int:
        """How far a read_committed reader may read."""
        if not self._open and not self._unreplicated:
            return high_watermark
        while self._unreplicated:
            first = next(iter(self._unreplicated))
            if self._unreplicated[first] >= high_watermark:
                break  # Markers are in the order of the log.
            del self._unreplicated[first]
        unstable = self.first_unstable_offset
        return high_watermark if unstable is None else min(unstable, high_watermark)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Remove idle producers without an open transaction; return their number."""
        gone = []
        for producer_id, producer in self._idle.items():
            if producer.last_seen_ms is None:
                producer.last_seen_ms = now_ms
            elif now_ms - producer.last_seen_ms >= expiration_ms:
                gone.append(producer_id)
        for producer_id in gone:
            del self._idle[producer_id]
        return len(gone)

    def stale_transactions(self, now_ms: int, timeout_ms: int, limit: int) -> list[StaleTransaction]:
        """Up to `limit` open transactions whose producer wrote last more than `timeout_ms` ago, oldest first.

        Age is by the timestamp of the newest batch, because that is in the snapshot and survives restarts. A producer
        whose timestamps are not usable (absent, or ahead of the broker's clock) ages from when this broker first saw
        it.
        """
        stale: list[StaleTransaction] = []
        for first_offset, producer_id in self._open.items():
            if len(stale) == limit:
                break
            producer = self._busy[producer_id]
            if producer.last_seen_ms is None:
                producer.last_seen_ms = now_ms
            known = 0 <= producer.timestamp <= now_ms
            if now_ms - (producer.timestamp if known else producer.last_seen_ms) > timeout_ms:
                stale.append(
                    StaleTransaction(producer_id, producer.epoch, producer.coordinator_epoch, first_offset)
                )
        return stale

    def last_records(self) -> dict[int, LastRecord]:
        """The newest trace of each producer: its last data, or -1 if only markers are left of this epoch."""
        return {
            producer_id: LastRecord(p.batches[-1].last_offset if p.batches else NO_OFFSET, p.epoch)
            for producer_id, p in chain(self._idle.items(), self._busy.items())
        }

    def clear(self) -> None:
        """Forget everything, as after a truncation: the caller loads a snapshot and replays."""
        self._idle.clear()
        self._busy.clear()
        self._open.clear()
        self._unreplicated.clear()
        self._unreplicated_firsts.clear()
        self.end_offset = 0

    def encode(self, offset: int) -> bytes:
        """The content of `<offset>.snapshot`: the state before the batch at `offset`."""
        invariant(
            self.end_offset <= offset,
            f"a producer snapshot for {offset} already has batches up to {self.end_offset}",
        )
        body = _COUNT.pack(len(self)) + b"".join(self._entries())
        return _PREAMBLE.pack(_SNAPSHOT_VERSION, crc32c(body)) + body

    def _entries(self) -> Iterator[bytes]:
        for producer_id, p in chain(self._busy.items(), self._idle.items()):
            last = p.batches[-1] if p.batches else _Batch(NO_SEQUENCE, NO_OFFSET, 0, NO_TIMESTAMP)
            yield _ENTRY.pack(
                producer_id,
                p.epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                p.timestamp,
                p.coordinator_epoch,
                p.txn_first_offset,
            )

    @classmethod
    def decode(cls, data: bytes, offset: int = 0, *, capacity: int = PRODUCERS_MAX) -> ProducerStates:
        """Read `<offset>.snapshot`. Of each producer only the last batch is in it, as in Kafka."""
        head = _PREAMBLE.size + _COUNT.size
        if len(data) < head:
            raise CorruptSnapshot(f"{len(data)} bytes are too few for a producer snapshot.")
        version, crc = _PREAMBLE.unpack_from(data)
        if version != _SNAPSHOT_VERSION:
            raise CorruptSnapshot(f"Producer snapshot version {version} is unknown.")
        if crc32c(data[_PREAMBLE.size :]) != crc:
            raise CorruptSnapshot("The CRC of the producer snapshot is wrong.")
        (count,) = _COUNT.unpack_from(data, _PREAMBLE.size)
        if len(data) != head + count * _ENTRY.size:
            raise CorruptSnapshot(f"{len(data)} bytes cannot hold a snapshot of {count} producers.")
        made = cls(capacity)
        made.end_offset = offset
        for fields in _ENTRY.iter_unpack(data[head:]):
            made._load(*fields)
        made._open = OrderedDict(sorted(made._open.items()))
        return made

    def _load(
        self,
        producer_id: int,
        epoch: int,
        last_sequence: int,
        last_offset: int,
        offset_delta: int,
        timestamp: int,
        coordinator_epoch: int,
        txn_first_offset: int,
    ) -> None:
        producer = _Producer(epoch)
        producer.coordinator_epoch = coordinator_epoch
        producer.timestamp = timestamp
        if last_offset >= 0:
            producer.remember(_Batch(last_sequence, last_offset, offset_delta, timestamp))
        if txn_first_offset >= 0:
            producer.txn_first_offset = txn_first_offset
            self._open[txn_first_offset] = producer_id
            self._busy[producer_id] = producer
        else:
            self._idle[producer_id] = producer
