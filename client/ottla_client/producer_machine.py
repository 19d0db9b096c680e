"""State machine of the producer: order, retries, sequence numbers, timeouts. [P]

Theory of operation. The shell appends records to the accumulator and calls `drain`; it writes what `drain`
returns and reports the outcome with `acknowledged`, `refused` or `lost`. The machine keeps the order within each
lane.

Retries. After a failure a lane stops, waits until all its batches on the wire are answered, waits its
backoff, and then sends one batch at a time until all retried ones have succeeded.

Idempotence. Each lane numbers its batches under (producer id, epoch); the broker refuses gaps and recognises
repeats. So a batch without a response may be retried with its old number only: it may have been written. When a batch
is given up and was not written, the broker answers OUT_OF_ORDER_SEQUENCE_NUMBER to the
next one. So if the oldest batch of a lane is out of order, the lane restarts its
numbering: its epoch rises by one, the numbers start at 0, and the broker fences late batches of the old
epoch. Epochs are per lane, because the broker keeps producer state per partition.

Splitting. A batch of several records that is refused as too large is halved, and its halves take its place and its
numbers: the same records under the same sequence numbers, in two requests. Only if it is certainly not written (P2).

Invariants:
P1. At most `max_in_flight` batches of a lane are on the wire, and they were sent in order.
P2. A batch that may have been written is never renumbered.
P3. Every batch is settled once: acknowledged, refused for good, or timed out at its deadline.
P4. With idempotence, sequence numbers of a lane within one epoch have no gap among the batches sent.

Transactions. The coordinator numbers epochs, and every transaction has another one (`begin_epoch`); lanes restart with
it, and never on their own: a batch that cannot be written as it is numbered fails, and with it the transaction
(`transaction_machine`). A batch that is out of order behind an older one that is retried keeps its number and is
retried, too. Brokers add partitions to the transaction, so nothing is sent before the batches.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ottla_client.accumulator import Accumulator, Batch, Lane, Outcome
from ottla_client.errors import DeliveryTimedOut
from ottla_client.transaction_machine import TransactionMachine
from ottla_core.errors import (
    ConcurrentTransactions,
    DuplicateSequenceNumber,
    FencedLeaderEpoch,
    InvalidProducerEpoch,
    KafkaStorageError,
    LeaderNotAvailable,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    RequestError,
    RequestTimedOut,
    UnknownLeaderEpoch,
    UnknownProducerId,
    UnknownTopicOrPartition,
)
from ottla_core.ids import NO_BROKER, TopicPartition
from ottla_core.records.batch import reseal

_EPOCH_MAX = 32767
_SEQUENCE_MODULUS = 1 << 31
#: Producer id, producer epoch and base sequence are adjacent in the batch header.
_IDENTITY = struct.Struct(">qhi")
_IDENTITY_AT = 43

#: Maximum overhead of a request per batch: the topic name (249 bytes), numbers and lengths.
_AROUND_BYTES = 300

#: Errors that mean stale metadata.
_STALE_METADATA = (
    NotLeaderOrFollower,
    LeaderNotAvailable,
    UnknownTopicOrPartition,
    FencedLeaderEpoch,
    UnknownLeaderEpoch,
    KafkaStorageError,
    RequestTimedOut,  # a deposed leader without followers can only time out
)
#: Pause while the markers of the last transaction are written, as Kafka's client has it.
_MARKERS_S = 0.02
#: Errors that the broker raises before it appends.
_NOT_WRITTEN = (ConcurrentTransactions, NotEnoughReplicas, OutOfOrderSequenceNumber)
#: Errors that mean a disagreement about the lane's sequence numbers.
_LOST_COUNT = (OutOfOrderSequenceNumber, UnknownProducerId, InvalidProducerEpoch)


class Send(NamedTuple):
    """One request: at most one batch per lane, all led by one broker."""

    leader: int
    batches: list[Batch]


@dataclass(frozen=True, slots=True)
class Policy:
    max_in_flight: int = 5
    retries: int = 2**31 - 1
    backoff_s: float = 0.1
    backoff_max_s: float = 1.0
    request_bytes: int = 1 << 20
    idempotent: bool = True


class ProducerMachine:
    def __init__(
        self,
        accumulator: Accumulator,
        policy: Policy,
        jitter: Callable[[], float],
        transaction: TransactionMachine | None = None,
    ) -> None:
        self._accumulator = accumulator
        self._policy = policy
        #: A random number in [0, 1), injected.
        self._jitter = jitter
        self._transaction = transaction
        self._producer_id = -1
        self._epoch = -1
        #: Lanes in backoff.
        self._backing_off: dict[Lane, None] = {}
        #: The configured request size, and the limit that brokers have announced.
        self._request_bytes = policy.request_bytes
        self._taken_bytes: int | None = None
        #: A producer id is needed before anything can be sent; for transactions their coordinator gives it.
        self.wants_identity = policy.idempotent and transaction is None
        #: Topics whose leaders are unknown or stale; the shell refreshes and clears them.
        self.stale_topics: dict[str, None] = {}

    # ------------------------------------------------------------------ events from the shell

    def identified(self, producer_id: int, epoch: int) -> None:
        """A producer id has arrived; lanes use it when they start or restart."""
        self._producer_id, self._epoch = producer_id, epoch
        self.wants_identity = False

    def begin_epoch(self, producer_id: int, epoch: int) -> None:
        """The identity for the next transaction: all lanes restart their numbering with it."""
        self.identified(producer_id, epoch)
        for lane in self._accumulator.lanes.values():
            lane.producer_id = -1

    def abandon(self, error: Exception) -> None:
        """The transaction is aborted: fail all its batches. Those on the wire count for P1 until their responses."""
        for batch in list(self._accumulator.unsettled.values()):
            if batch in batch.lane.pending:
                batch.lane.pending.remove(batch)
            self._accumulator.settle(batch, Outcome(error=error))

    def limit_requests(self, bytes_max: int) -> None:
        """The request limit that brokers have announced; 0 if unknown."""
        self._taken_bytes = bytes_max or None
        self._request_bytes = min(self._policy.request_bytes, bytes_max or self._policy.request_bytes)

    def leaders_changed(self, topic: str, leaders: Sequence[int]) -> None:
        """The leader of each partition of a topic, in order, -1 for none."""
        for partition, leader in enumerate(leaders):
            lane = self._accumulator.lanes.get(TopicPartition(topic, partition))
            if lane is not None:
                self.set_leader(lane, leader)

    def set_leader(self, lane: Lane, leader: int) -> None:
        lane.leader = leader
        if lane.has_work:
            self._accumulator.ready[lane.tp] = lane

    # ------------------------------------------------------------------ sending

    def drain(self, now: float) -> list[Send]:
        """All requests that may be sent now. Returned batches count as on the wire."""
        self._accumulator.end_linger(now)
        self._end_backoff(now)
        if self.wants_identity:
            return []
        sends: list[Send] = []
        ready = self._accumulator.ready
        while ready:
            filling: dict[int, tuple[Send, int]] = {}
            for lane in list(ready.values()):
                batch = self._next_of(lane)
                if batch is None:
                    # A response, a leader, the end of its backoff, or a new record makes it ready again.
                    del ready[lane.tp]
                    continue
                size = len(batch.payload) + _AROUND_BYTES
                if self._taken_bytes is not None and size > self._taken_bytes:
                    self.refused(batch, _too_large(size, self._taken_bytes), now)
                    continue
                current = filling.get(lane.leader)
                if current is None or current[1] + size > self._request_bytes:
                    send = Send(lane.leader, [])
                    sends.append(send)
                    current = (send, 0)
                current[0].batches.append(batch)
                filling[lane.leader] = (current[0], current[1] + size)
        return sends

    def _next_of(self, lane: Lane) -> Batch | None:
        """Take the lane's next batch if it may be sent now."""
        in_flight = lane.in_flight
        if len(in_flight) >= (1 if lane.recovering else self._policy.max_in_flight):
            return None
        if lane in self._backing_off or not lane.has_work:
            return None
        if lane.leader == NO_BROKER:
            self.stale_topics[lane.tp.topic] = None
            return None
        if not lane.pending and lane.open is not None:
            self._accumulator.close(lane.open)
        batch = lane.pending.popleft()
        self._prepare(lane, batch)
        batch.attempts += 1
        in_flight[batch.id] = batch
        return batch

    def _prepare(self, lane: Lane, batch: Batch) -> None:
        """Encode the batch, and number it if it has no number yet."""
        if self._policy.idempotent and batch.sequence < 0:
            if lane.producer_id < 0:
                lane.producer_id, lane.epoch, lane.next_sequence = self._producer_id, self._epoch, 0
            batch.producer_id, batch.epoch, batch.sequence = lane.producer_id, lane.epoch, lane.next_sequence
            lane.next_sequence = (lane.next_sequence + batch.count) % _SEQUENCE_MODULUS
            if batch.payload:
                payload = bytearray(batch.payload)
                _IDENTITY.pack_into(payload, _IDENTITY_AT, batch.producer_id, batch.epoch, batch.sequence)
                reseal(payload, 0, len(payload))
                batch.payload = bytes(payload)
        if not batch.payload:
            batch.build(transactional=self._transaction is not None)

    # ------------------------------------------------------------------ answers

    def acknowledged(self, batch: Batch, base_offset: int, log_append_time_ms: int) -> None:
        lane = batch.lane
        if not self._landed(batch):
            return
        lane.backoffs = 0
        if lane.recovering and not (lane.pending and lane.pending[0].retried):
            lane.recovering = False
        self._settle(batch, Outcome(base_offset, log_append_time_ms))

    def refused(self, batch: Batch, error: RequestError, now: float) -> None:
        """The broker returned an error. Some are retriable, and with some the batch may still have been written."""
        if not self._landed(batch):
            return
        lane = batch.lane
        if isinstance(error, DuplicateSequenceNumber):
            # An earlier attempt was written, so long ago that the broker no longer knows the offset.
            self._settle(batch, Outcome())
            return
        if isinstance(error, _STALE_METADATA):
            self.stale_topics[lane.tp.topic] = None
        if self._policy.idempotent and self._transaction is None and isinstance(error, _LOST_COUNT):
            # With a sequence of -1 the lane has restarted since this was sent: the error is expected.
            if batch.sequence >= 0 and self._is_oldest(batch):
                self._restart_numbering(lane, batch, fenced=isinstance(error, InvalidProducerEpoch))
            batch.doubtful |= not isinstance(error, _NOT_WRITTEN)
            self._retry(batch, now)
        elif self._overtook(batch, error):
            self._retry(batch, now)
        elif error.retriable and batch.attempts <= self._policy.retries:
            batch.doubtful |= not isinstance(error, _NOT_WRITTEN)
            self._retry(batch, now, briefly=isinstance(error, ConcurrentTransactions))
        elif isinstance(error, MessageTooLarge) and self._may_be_split(batch):
            self._split(batch)
        else:
            # A definite refusal. (Timeouts are retriable; code -1 is inconclusive.)
            if not error.retriable and not batch.doubtful and error.code != RequestError.code:
                self._take_back_number(batch)
            self._settle(batch, Outcome(error=error))

    def _settle(self, batch: Batch, outcome: Outcome) -> None:
        if self._transaction is not None:
            if outcome.error is None:
                self._transaction.written()
            else:
                self._transaction.failed(outcome.error)
        self._accumulator.settle(batch, outcome)

    def lost(self, batch: Batch, now: float) -> None:
        """No response will come: the batch may or may not have been written."""
        if not self._landed(batch):
            return
        self.stale_topics[batch.lane.tp.topic] = None
        batch.doubtful = True
        if batch.attempts <= self._policy.retries:
            self._retry(batch, now)
        else:
            sentence = f"The connection broke {batch.attempts} times with {batch.count} records in flight."
            self._settle(batch, Outcome(error=DeliveryTimedOut(sentence)))

    def _landed(self, batch: Batch) -> bool:
        """Take the batch off the wire; False if it was settled meanwhile."""
        lane = batch.lane
        lane.in_flight.pop(batch.id, None)
        if lane.has_work:
            self._accumulator.ready[lane.tp] = lane
        if batch.outcome is not None:
            batch.payload = b""
        return batch.outcome is None

    def _is_oldest(self, batch: Batch) -> bool:
        lane = batch.lane
        older_flying = any(other < batch.id for other in lane.in_flight)
        return not older_flying and not (lane.pending and lane.pending[0].id < batch.id)

    def _overtook(self, batch: Batch, error: RequestError) -> bool:
        """True if the batch is out of order only because an older one of its lane is retried."""
        return isinstance(error, OutOfOrderSequenceNumber) and not self._is_oldest(batch)

    def _take_back_number(self, batch: Batch) -> None:
        """Reuse the number of a batch that is certainly not written, if no later batch is numbered: no gap."""
        lane = batch.lane
        after = (batch.sequence + batch.count) % _SEQUENCE_MODULUS
        same_count = (batch.producer_id, batch.epoch) == (lane.producer_id, lane.epoch)
        if batch.sequence >= 0 and same_count and lane.next_sequence == after:
            lane.next_sequence = batch.sequence

    def _restart_numbering(self, lane: Lane, oldest: Batch, *, fenced: bool) -> None:
        """Restart the lane's numbering. P2 holds: the oldest batch was not written, so no later one was."""
        if fenced or lane.epoch >= _EPOCH_MAX:
            lane.producer_id = -1
            if self._producer_id == oldest.producer_id:
                self.wants_identity = True
        else:
            lane.epoch += 1
        lane.next_sequence = 0
        for batch in (oldest, *lane.pending, *lane.in_flight.values()):
            # Batches on the wire have old numbers and will be refused; they are renumbered for the retry.
            batch.sequence = -1

    def _may_be_split(self, batch: Batch) -> bool:
        return batch.count > 1 and not (self._policy.idempotent and batch.doubtful)

    def _split(self, batch: Batch) -> None:
        """Split and resend without backoff: the broker is healthy, and the halves are new to it."""
        sequence = batch.sequence
        for half in self._accumulator.split(batch):
            if sequence >= 0:
                half.producer_id, half.epoch, half.sequence = batch.producer_id, batch.epoch, sequence
                sequence = (sequence + half.count) % _SEQUENCE_MODULUS
            self._put_back(half)

    def _retry(self, batch: Batch, now: float, *, briefly: bool = False) -> None:
        lane = batch.lane
        self._put_back(batch)
        if lane not in self._backing_off:
            pause_s = self._backoff(lane)
            lane.not_before = now + (min(pause_s, _MARKERS_S) if briefly else pause_s)
            self._backing_off[lane] = None

    def _put_back(self, batch: Batch) -> None:
        """Put it back in order: retried batches are older than all that were never sent."""
        lane = batch.lane
        place = 0
        while place < len(lane.pending) and lane.pending[place].id < batch.id:
            place += 1
        lane.pending.insert(place, batch)
        batch.retried = True
        lane.recovering = True
        self._accumulator.ready[lane.tp] = lane

    def _backoff(self, lane: Lane) -> float:
        base = min(self._policy.backoff_s * 2.0 ** min(lane.backoffs, 16), self._policy.backoff_max_s)
        lane.backoffs += 1
        # 80 to 120 percent, so that a thousand producers do not reconnect to a broker at once.
        return base * (0.8 + 0.4 * self._jitter())

    # ------------------------------------------------------------------ time

    def expire(self, now: float) -> None:
        """Fail batches past their deadline, pending or on the wire."""
        for batch in self._accumulator.expired(now):
            lane = batch.lane
            # A batch on the wire still counts for P1 until its response, or until its stream breaks.
            if batch in lane.pending:
                lane.pending.remove(batch)
            waited_s = now - batch.created
            why = "was sent but not acknowledged" if batch.attempts else "could not be sent"
            self._settle(
                batch,
                Outcome(
                    error=DeliveryTimedOut(
                        f"A batch of {batch.count} records for {lane.tp} {why} within {waited_s:.1f} s "
                        "(delivery_timeout_ms). Check that the partition has a leader."
                    )
                ),
            )
            if lane.has_work:
                self._accumulator.ready[lane.tp] = lane

    def wakes_at(self) -> float | None:
        """When the next timer fires."""
        times = [lane.not_before for lane in self._backing_off]
        others = (self._accumulator.linger_ends(), self._accumulator.first_deadline())
        times.extend(when for when in others if when is not None)
        return min(times, default=None)

    def _end_backoff(self, now: float) -> None:
        for lane in [lane for lane in self._backing_off if lane.not_before <= now]:
            del self._backing_off[lane]
            if lane.has_work:
                self._accumulator.ready[lane.tp] = lane


def _too_large(size: int, taken: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"A request of {size} bytes is larger than the {taken} that the brokers accept (grpc.message.max.bytes). "
        "Send smaller records, or raise that setting."
    )
