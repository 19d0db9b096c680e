"""Positions of the consumer, what to fetch next, and which records to return. [P]

Theory of operation. Each assigned partition has a `position`, the offset of the next record to return. If it
is missing, a *reset* is due, and the shell looks an offset up. Fetched data waits in chunks,
and the next fetch continues where the chunks end, so fetching runs ahead of polling, within
bounds. Every seek, reset and assignment raises the partition's generation; a response with an older
generation is dropped.

Invariants:
C1. Records are returned in offset order, starting at `position`, each once, until a seek.
C2. At most one fetch per partition is on the wire.
C3. A partition is fetched only while less than `partition_bytes` of it, and less than `buffer_bytes` of
all partitions, are buffered.
C4. Paused partitions are neither fetched nor returned; data that was fetched before is kept.
C5. After a change of the leader epoch since the last fetch, or since an offset was committed, a partition is fetched
only once the leader has confirmed that its log contains what was read before (KIP-320). If it does not, the position
moves back to where the logs diverge, or with `auto_offset_reset="none"` the next poll raises LogTruncated.

Fetches go to the leader, or to the replica that the leader has named (KIP-392), until that replica fails, the leader
epoch changes, or `replica_lease_s` has passed.

A group membership uses this from above: it calls `assign` with the coordinator's assignment, and commits
`positions`. New partitions of a group start with a lookup of the committed offset; if there is none, the
reset policy decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ottla_client.errors import LogTruncated, NoOffset, NotAssigned
from ottla_client.fetched import Chunk, Decoding
from ottla_client.read_ahead import ReadAhead
from ottla_client.record import ConsumerRecord
from ottla_client.seen_epochs import SeenEpochs
from ottla_core.errors import OffsetOutOfRange, RequestError, UnknownTopicOrPartition
from ottla_core.ids import NO_BROKER, NO_EPOCH, TopicPartition

EARLIEST = -2
LATEST = -1
#: Pseudo-timestamp: look up the committed offset of the group.
COMMITTED = -1000
_RESETS = {"earliest": EARLIEST, "latest": LATEST, "none": None}


class Want(NamedTuple):
    """One partition to fetch."""

    tp: TopicPartition
    offset: int
    generation: int
    max_bytes: int
    #: The leader epoch that the client knows: brokers refuse other ones.
    leader_epoch: int = NO_EPOCH
    #: Sent to a follower, not to the leader.
    from_replica: bool = False


class Validation(NamedTuple):
    """A position to validate: does the log of the new leader contain everything before `offset`?"""

    tp: TopicPartition
    leader: int
    leader_epoch: int
    offset: int
    #: Epoch of the record before `offset`.
    epoch: int
    generation: int


class Lookup(NamedTuple):
    """An offset to look up: EARLIEST, LATEST or COMMITTED."""

    tp: TopicPartition
    timestamp_ms: int
    generation: int


@dataclass(frozen=True, slots=True)
class ConsumerPolicy:
    partition_bytes: int = 1 << 20
    buffer_bytes: int = 64 << 20
    backoff_s: float = 0.1
    backoff_max_s: float = 1.0
    #: How long a topic may be unknown before the user gets an error: it may just have been created.
    unknown_topic_s: float = 3.0
    #: How long to read from the replica that the leader has named before the leader is asked again.
    replica_lease_s: float = 30.0
    #: Fetches on the wire per broker: the second makes the broker answer a waiting first one.
    fetches_per_broker: int = 2


class PartitionState:
    """One assigned partition."""

    __slots__ = (
        "backoffs",
        "buffered_bytes",
        "chunks",
        "error",
        "fetch_epoch",
        "fetch_offset",
        "fetching",
        "generation",
        "high_watermark",
        "leader",
        "leader_epoch",
        "looking_up",
        "not_before",
        "paused",
        "position",
        "replica",
        "replica_until",
        "reset",
        "seen_epochs",
        "tp",
        "unknown_since",
        "unvalidated",
        "validating",
    )

    def __init__(self, tp: TopicPartition, generation: int) -> None:
        self.tp = tp
        #: Next offset to return; None until a reset is done.
        self.position: int | None = None
        #: Next offset to fetch, after the buffered data.
        self.fetch_offset = 0
        #: Leader epoch of the last batch before it.
        self.fetch_epoch = NO_EPOCH
        self.seen_epochs = SeenEpochs()
        #: EARLIEST, LATEST or COMMITTED if the position has to be looked up.
        self.reset: int | None = None
        self.looking_up = False
        self.paused = False
        self.generation = generation
        self.fetching = False
        self.chunks: deque[Chunk] = deque()
        self.buffered_bytes = 0
        self.high_watermark: int | None = None
        self.leader: int = NO_BROKER
        self.leader_epoch = NO_EPOCH
        #: The replica to read from instead of the leader, and until when.
        self.replica: int = NO_BROKER
        self.replica_until = 0.0
        #: The leader epoch changed since the last fetch (C5), and whether the leader is being asked.
        self.unvalidated = False
        self.validating = False
        self.not_before = 0.0
        self.backoffs = 0
        #: The next poll raises it.
        self.error: Exception | None = None
        self.unknown_since: float | None = None


def _needs_validation(state: PartitionState) -> bool:
    """C5."""
    return state.position is not None and NO_EPOCH < state.fetch_epoch < state.leader_epoch


class ConsumerMachine:
    def __init__(
        self, policy: ConsumerPolicy, decoding: Decoding, reset: str, jitter: Callable[[], float]
    ) -> None:
        if reset not in _RESETS:
            raise ValueError(f"auto_offset_reset={reset!r}: choose earliest, latest or none.")
        self._policy = policy
        self._decoding = decoding
        self._reset = _RESETS[reset]
        self._jitter = jitter
        self._generation = 0
        self._states: dict[TopicPartition, PartitionState] = {}
        self._buffered_bytes = 0
        self.stale_topics: dict[str, None] = {}
        #: Records that an iteration has taken and not yielded yet.
        self.ahead = ReadAhead()
        #: Since the start, for the consumer's metrics.
        self.records_total = self.bytes_total = self.fetches_total = 0

    # ------------------------------------------------------------------ calls of the user

    def assign(self, partitions: Iterable[TopicPartition], *, committed: bool = False) -> None:
        """Replace the assignment. Partitions that stay keep their position, pause and fetched data.

        `committed`: new partitions start at the committed offsets of the group.
        """
        wanted = list(dict.fromkeys(partitions))
        kept = {tp: self._states[tp] for tp in wanted if tp in self._states}
        for tp, state in self._states.items():
            if tp not in kept:
                self._drop_chunks(state)
                self.ahead.drop(tp)
        self._states = {tp: kept[tp] if tp in kept else self._new_state(tp, committed) for tp in wanted}

    def _new_state(self, tp: TopicPartition, committed: bool) -> PartitionState:
        self._generation += 1
        state = PartitionState(tp, self._generation)
        if committed:
            state.reset = COMMITTED
        else:
            self._want_reset(state, "it has not been read before")
        self.stale_topics[tp.topic] = None
        return state

    def assignment(self) -> list[TopicPartition]:
        return list(self._states)

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset to return, of all partitions where it is known."""
        return {tp: state.position for tp, state in self._states.items() if state.position is not None}

    def epoch_before(self, tp: TopicPartition, offset: int) -> int:
        """Leader epoch of the record before an offset that was read; NO_EPOCH if unknown."""
        state = self._states.get(tp)
        return NO_EPOCH if state is None else state.seen_epochs.before(offset)

    def lags(self) -> dict[TopicPartition, int]:
        """Records between position and high watermark, where both are known."""
        return {
            tp: max(0, state.high_watermark - state.position)
            for tp, state in self._states.items()
            if state.high_watermark is not None and state.position is not None
        }

    def seek(self, tp: TopicPartition, offset: int) -> None:
        if offset < 0:
            raise ValueError(f"Offsets start at 0, not at {offset}.")
        state = self.state(tp)
        self._drop_position(state)
        state.position = state.fetch_offset = offset

    def pause(self, tp: TopicPartition) -> None:
        self.state(tp).paused = True
        self.ahead.pause(tp)

    def resume(self, tp: TopicPartition) -> None:
        self.state(tp).paused = False
        self.ahead.resume(tp)

    def paused(self) -> list[TopicPartition]:
        return [tp for tp, state in self._states.items() if state.paused]

    def state(self, tp: TopicPartition) -> PartitionState:
        try:
            return self._states[tp]
        except KeyError:
            raise NotAssigned(f"{tp} is not assigned to this consumer; call assign([...]) with it.") from None

    def generation_of(self, tp: TopicPartition) -> int:
        state = self._states.get(tp)
        return -1 if state is None else state.generation

    def _drop_position(self, state: PartitionState) -> None:
        """Drop the position and the fetched data."""
        self._drop_chunks(state)
        self.ahead.drop(state.tp)
        self._generation += 1
        state.generation = self._generation
        state.fetching = False
        state.looking_up = False
        state.unvalidated = False
        state.validating = False
        state.fetch_epoch = NO_EPOCH
        state.seen_epochs.start_at(0, NO_EPOCH)
        state.position = None
        state.reset = None
        state.error = None

    def _drop_chunks(self, state: PartitionState) -> None:
        self._buffered_bytes -= state.buffered_bytes
        state.buffered_bytes = 0
        state.chunks.clear()

    def _want_reset(self, state: PartitionState, why: str) -> None:
        if self._reset is None:
            state.error = NoOffset(
                f"There is no position for {state.tp}: {why}, and auto_offset_reset is 'none'. Call seek()."
            )
        else:
            state.reset = self._reset

    # ------------------------------------------------------------------ decisions for the shell

    def lookups(self, now: float) -> list[Lookup]:
        """Offsets to look up now; they are marked as in progress."""
        found: list[Lookup] = []
        for tp, state in self._states.items():
            if state.reset is None or state.looking_up or state.not_before > now:
                continue
            if state.leader == NO_BROKER and state.reset != COMMITTED:
                # Without a known leader, refresh; lookups at other leaders must not wait for it.
                self.stale_topics[tp.topic] = None
                continue
            state.looking_up = True
            found.append(Lookup(tp, state.reset, state.generation))
        return found

    def plan(self, now: float, outstanding: Callable[[int], int]) -> dict[int, list[Want]]:
        """Partitions to fetch now, by broker; they are marked as in flight."""
        plan: dict[int, list[Want]] = {}
        room = self._buffered_bytes < self._policy.buffer_bytes
        for tp, state in self._states.items():
            if (
                not room
                or state.fetching
                or state.paused
                or state.position is None
                or state.unvalidated
                or state.error is not None
                or state.not_before > now
                or state.buffered_bytes >= self._policy.partition_bytes
            ):
                continue
            if state.leader == NO_BROKER:
                self.stale_topics[tp.topic] = None
                continue
            if state.replica != NO_BROKER and state.replica_until <= now:
                state.replica = NO_BROKER
            from_replica = state.replica != NO_BROKER
            source = state.replica if from_replica else state.leader
            wants = plan.get(source)
            if wants is None:
                if outstanding(source) >= self._policy.fetches_per_broker:
                    continue
                wants = plan[source] = []
            state.fetching = True
            size = self._policy.partition_bytes
            wants.append(
                Want(tp, state.fetch_offset, state.generation, size, state.leader_epoch, from_replica)
            )
        return plan

    def validations(self, now: float) -> list[Validation]:
        """Positions to validate now (C5); they are marked as in progress."""
        found: list[Validation] = []
        for tp, state in self._states.items():
            if not state.unvalidated or state.validating or state.fetching or state.not_before > now:
                continue
            if state.leader == NO_BROKER:
                self.stale_topics[tp.topic] = None
                continue
            state.validating = True
            found.append(
                Validation(
                    tp,
                    state.leader,
                    state.leader_epoch,
                    state.fetch_offset,
                    state.fetch_epoch,
                    state.generation,
                )
            )
        return found

    def wakes_at(self, now: float) -> float | None:
        """When the next backoff ends."""
        return min((s.not_before for s in self._states.values() if s.not_before > now), default=None)

    # ------------------------------------------------------------------ events from the shell

    def leaders_changed(self, topic: str, leaders: Sequence[int], epochs: Sequence[int] = ()) -> None:
        for tp, state in self._states.items():
            if tp.topic == topic:
                state.unknown_since = None
                if 0 <= tp.partition < len(epochs) and epochs[tp.partition] != state.leader_epoch:
                    state.leader_epoch = epochs[tp.partition]
                    state.replica = NO_BROKER
                    state.unvalidated = _needs_validation(state)
                state.leader = leaders[tp.partition] if 0 <= tp.partition < len(leaders) else NO_BROKER
                if not 0 <= tp.partition < len(leaders):
                    state.error = UnknownTopicOrPartition(
                        f"Topic {topic!r} has partitions 0 to {len(leaders) - 1}, not {tp.partition}."
                    )

    def topic_unknown(self, topic: str, error: RequestError, now: float) -> None:
        """No broker knows the topic. After `unknown_topic_s`, every poll raises the error."""
        for tp, state in self._states.items():
            if tp.topic == topic:
                state.leader = NO_BROKER
                if state.unknown_since is None:
                    state.unknown_since = now
                elif now - state.unknown_since >= self._policy.unknown_topic_s:
                    state.error = error
                self._back_off(state, now)

    def found(self, lookup: Lookup, offset: int, epoch: int = NO_EPOCH) -> None:
        """`epoch`: of the record before a committed offset. The log may have been truncated since the commit."""
        state = self._current(lookup.tp, lookup.generation)
        if state is not None:
            state.looking_up = False
            state.reset = None
            state.position = state.fetch_offset = offset
            state.fetch_epoch = epoch
            state.seen_epochs.start_at(offset, epoch)
            state.unvalidated = _needs_validation(state)
            state.backoffs = 0

    def nothing_committed(self, lookup: Lookup) -> None:
        state = self._current(lookup.tp, lookup.generation)
        if state is not None:
            state.looking_up = False
            state.reset = None
            self._want_reset(state, "its group has no committed offset")

    def lookup_failed(self, lookup: Lookup, error: Exception, now: float) -> None:
        state = self._current(lookup.tp, lookup.generation)
        if state is not None:
            state.looking_up = False
            self._troubled(state, error, now)

    def validated(self, asked: Validation, epoch: int, end_offset: int) -> str | None:
        """The leader's log has `epoch`, the greatest one not above the asked, up to `end_offset`.

        Returns a sentence if records that were returned to the user are no longer in the log.
        """
        state = self._current(asked.tp, asked.generation)
        if state is None:
            return None
        state.validating = False
        if state.leader_epoch != asked.leader_epoch:
            return None  # The leader has changed again: ask the new one.
        state.unvalidated = False
        state.backoffs = 0
        position = state.position
        # The same epoch up to this offset is the same log. Another epoch means another log, however long it is.
        if position is None or (end_offset >= asked.offset and epoch == asked.epoch):
            return None
        self._drop_chunks(state)
        state.fetch_offset, state.fetch_epoch = position, epoch
        state.seen_epochs.start_at(position, state.seen_epochs.before(position))
        if epoch == asked.epoch and position <= end_offset:
            return None  # Only records that were fetched ahead are lost.
        lost = (
            f"The log of {state.tp} no longer contains all records that were read before offset {position}: they "
            "expired, or were lost in an unclean leader election"
        )
        if self._reset is None:
            state.error = LogTruncated(f"{lost}. Call seek() to say where to continue.")
            return None
        if end_offset < 0:
            self._drop_position(state)
            state.reset = self._reset
            return f"{lost}. auto_offset_reset decides where to continue."
        state.position = state.fetch_offset = min(position, end_offset)
        state.seen_epochs.start_at(state.position, epoch)
        return f"{lost}. Continuing at offset {state.position}."

    def validation_failed(self, asked: Validation, error: Exception, now: float) -> None:
        state = self._current(asked.tp, asked.generation)
        if state is not None:
            state.validating = False
            self._troubled(state, error, now)

    def fetched(
        self,
        want: Want,
        *,
        error: RequestError | None,
        data: bytes,
        aborted: Sequence[tuple[int, int]],
        high_watermark: int,
        now: float,
        preferred_replica: int = NO_BROKER,
    ) -> None:
        state = self._current(want.tp, want.generation)
        if state is None:
            return
        state.fetching = False
        if error is None and preferred_replica != NO_BROKER:
            state.replica = preferred_replica
            state.replica_until = now + self._policy.replica_lease_s
            return
        if error is not None:
            if want.from_replica:
                # Whatever it is, the leader knows better: a follower may lag, and then its log ends earlier.
                state.replica = NO_BROKER
                if isinstance(error, OffsetOutOfRange):
                    self._back_off(state, now)
                    return
            if isinstance(error, OffsetOutOfRange):
                self._out_of_range(state, error, now)
            else:
                self._troubled(state, error, now)
            return
        state.backoffs = 0
        state.high_watermark = high_watermark
        self.fetches_total += 1
        self.bytes_total += len(data)
        if not data:
            return
        try:
            chunk = Chunk(want.tp, data, want.offset, aborted, self._decoding)
        except RequestError as damaged:
            self._troubled(state, damaged, now)
            return
        if chunk.is_empty:
            state.error = RequestError(
                f"The batch at offset {want.offset} of {want.tp} is larger than the {len(data)} bytes "
                "of the fetch; raise max_partition_fetch_bytes."
            )
            return
        state.chunks.append(chunk)
        state.buffered_bytes += chunk.size_bytes
        self._buffered_bytes += chunk.size_bytes
        state.fetch_offset = chunk.next_offset
        state.fetch_epoch = chunk.leader_epoch
        for offset, epoch in chunk.epoch_starts():
            state.seen_epochs.note(offset, epoch)

    def lost(self, want: Want, now: float) -> None:
        """The fetch got no response, and will not get one."""
        state = self._current(want.tp, want.generation)
        if state is not None:
            state.fetching = False
            if want.from_replica:
                state.replica = NO_BROKER
            self.stale_topics[want.tp.topic] = None
            self._back_off(state, now)

    def _current(self, tp: TopicPartition, generation: int) -> PartitionState | None:
        state = self._states.get(tp)
        return state if state is not None and state.generation == generation else None

    def _out_of_range(self, state: PartitionState, error: RequestError, now: float) -> None:
        """The log was cut at either end. Buffered records are still valid, so return them first."""
        if state.chunks:
            # The user may need long for the buffered records; do not fetch in a tight loop meanwhile.
            self._back_off(state, now)
            return
        asked = state.fetch_offset
        self._drop_position(state)
        self._want_reset(state, f"offset {asked} is out of range ({error.message})")

    def _troubled(self, state: PartitionState, error: Exception, now: float) -> None:
        retriable = not isinstance(error, RequestError) or error.retriable
        if not retriable:
            state.error = error
        self.stale_topics[state.tp.topic] = None
        self._back_off(state, now)

    def _back_off(self, state: PartitionState, now: float) -> None:
        base = min(self._policy.backoff_s * 2.0 ** min(state.backoffs, 16), self._policy.backoff_max_s)
        state.backoffs += 1
        state.not_before = now + base * (0.8 + 0.4 * self._jitter())

    # ------------------------------------------------------------------ returning records

    def take(self, limit: int) -> list[ConsumerRecord]:
        """Up to `limit` records. Raises a partition's error at its turn, if no records were taken before."""
        taken: list[ConsumerRecord] = []
        for tp in list(self._states):
            if len(taken) >= limit:
                break
            state = self._states[tp]
            if state.paused or not (state.chunks or state.error):
                continue
            try:
                if state.chunks:
                    self._take_from(state, taken, limit)
                elif not taken:
                    self._raise_error(state)
                else:
                    break
            except Exception:
                if taken:
                    break  # return what was taken; the next call raises the error
                self._to_the_end(tp)
                raise
            self._to_the_end(tp)
        self.records_total += len(taken)
        return taken

    def _to_the_end(self, tp: TopicPartition) -> None:
        """Move it to the end of the order: neither a busy nor a failing partition may starve the others."""
        self._states[tp] = self._states.pop(tp)

    def _take_from(self, state: PartitionState, taken: list[ConsumerRecord], limit: int) -> None:
        while state.chunks and len(taken) < limit:
            chunk = state.chunks[0]
            try:
                taken.extend(chunk.take(limit - len(taken)))
            finally:
                state.position = chunk.position
            if chunk.exhausted:
                state.chunks.popleft()
                state.buffered_bytes -= chunk.size_bytes
                self._buffered_bytes -= chunk.size_bytes

    def _raise_error(self, state: PartitionState) -> None:
        error = state.error
        if error is None:
            return
        if not isinstance(error, NoOffset):  # NoOffset stays until a seek
            state.error = None
        raise error
