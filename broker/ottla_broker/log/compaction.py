"""Decides what compaction may remove: plans and verdicts from headers, keys and time, without file access. [P]

`cleaner.py` reads and copies; this module decides. It keeps Kafka's meaning:

* C1: of each key the newest record stays; offsets never change. A record without a key cannot be told from
  any other and goes.
* C2: nothing at or above the plan's end is touched: not the active segment, nothing above the last stable
  offset (rule 13), nothing younger than min.compaction.lag.ms.
* C3: a tombstone stays for delete.retention.ms after the first cleaning that saw it. That cleaning stamps its
  batch with the delete horizon (KIP-534): a flag in the attributes, and the time in place of the base
  timestamp.
* C4: the last batch of every known producer stays, if need be without records, so that its sequence number
  and its epoch survive; and the last batch of every segment written, so that a segment still ends where the
  next one begins and recovery can tell a hole from a gap.
* C5: records of aborted transactions go at once. A marker stays until nothing of its transaction is left, and
  then for delete.retention.ms, like a tombstone.
* C6: memory is bounded: when the key map is full, the round ends at the last batch that fitted, and the next
  round begins there.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from ottla_broker.log.aborted import AbortedTransaction
from ottla_broker.log.producers import LastRecord, Marker
from ottla_broker.topic_config import INT_MAX, TopicConfig
from ottla_core.records.batch import BatchHeader
from ottla_core.records.codec import delete_horizon_ms

#: What one key costs in the map: a bytes object, an int and its share of the dict's table.
KEY_COST_BYTES = 200
#: Room for some 300,000 keys a round.
KEY_MAP_BYTES = 64 << 20
#: Keys from this length on are kept as a digest, so that the cost of a key has a bound. Shorter ones cannot
#: be mistaken for a digest. 128 bits: a collision, which would lose a record, is not going to happen by
#: chance.
_DIGEST_BYTES = 16


class CleanableSegment(NamedTuple):
    base_offset: int
    #: The next segment's base offset.
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int
    #: Of its first batch: how long its oldest record has been waiting.
    first_timestamp_ms: int
    index_bytes: int = 0


class CleanPlan(NamedTuple):
    #: Below it the log has been cleaned before.
    first_dirty_offset: int
    #: C2: a segment boundary.
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    #: max.compaction.lag.ms has passed for some record.
    overdue: bool

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)


def plan(
    segments: Sequence[CleanableSegment],
    *,
    now_ms: int,
    config: TopicConfig,
    first_dirty_offset: int,
    start_offset: int,
    stable_offset: int,
) -> CleanPlan | None:
    """What a cleaning now would cover; None if it is not due. The last segment is the active one."""
    if not config.compacts or len(segments) < 2:
        return None
    if not start_offset <= first_dirty_offset <= segments[-1].end_offset:
        # The log was truncated or lost its front since the last cleaning; cleaning twice does no harm.
        first_dirty_offset = start_offset
    end = segments[0].base_offset
    for segment in segments[:-1]:
        too_young = (
            config.min_compaction_lag_ms > 0
            and segment.end_offset > first_dirty_offset
            and segment.max_timestamp_ms > now_ms - config.min_compaction_lag_ms
        )
        if segment.end_offset > stable_offset or too_young:
            break
        end = segment.end_offset
    covered = [s for s in segments[:-1] if s.end_offset <= end]
    dirty = [s for s in covered if s.end_offset > first_dirty_offset]
    dirty_bytes = sum(s.size_bytes for s in dirty)
    if not dirty_bytes:
        return None
    oldest_ms = min((s.first_timestamp_ms for s in dirty if s.first_timestamp_ms >= 0), default=now_ms)
    made = CleanPlan(
        first_dirty_offset,
        end,
        sum(s.size_bytes for s in covered) - dirty_bytes,
        dirty_bytes,
        now_ms - oldest_ms > config.max_compaction_lag_ms,
    )
    return made if made.overdue or made.dirty_ratio > config.min_cleanable_dirty_ratio else None


def group(segments: Sequence[CleanableSegment], config: TopicConfig) -> list[list[CleanableSegment]]:
    """PeerWiring that together stay a legal segment become one, or cleaning would leave ever smaller ones."""
    groups: list[list[CleanableSegment]] = []
    for segment in segments:
        if groups and _fits([*groups[-1], segment], config):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _fits(together: Sequence[CleanableSegment], config: TopicConfig) -> bool:
    return (
        sum(s.size_bytes for s in together) <= config.segment_bytes
        and sum(s.index_bytes for s in together) <= config.segment_index_bytes
        # Indexes hold offsets as 32-bit distances from the base offset.
        and together[-1].end_offset - 1 - together[0].base_offset <= INT_MAX
    )


class KeyMap:
    """Key -> newest offset, in bounded memory (C6)."""

    def __init__(self, limit_bytes: int = KEY_MAP_BYTES) -> None:
        self._newest: dict[bytes, int] = {}
        self._limit = max(1, limit_bytes // KEY_COST_BYTES)
        #: The last offset whose batch is in the map as a whole.
        self.latest_offset = -1

    def __len__(self) -> int:
        return len(self._newest)

    def add_batch(self, keys: Iterable[tuple[bytes, int]], last_offset: int) -> bool:
        """All keys of one batch with their offsets, or nothing: False when the map is full.

        The first batch is taken whatever its size, or a map smaller than one batch would never get on.
        """
        added = {_short(key): offset for key, offset in keys}
        if self._newest and len(self._newest.keys() | added.keys()) > self._limit:
            return False
        self._newest.update(added)
        self.latest_offset = last_offset
        return True

    def skip_to(self, offset: int) -> None:
        """There is nothing with a key up to `offset`."""
        self.latest_offset = max(self.latest_offset, offset)

    def newest(self, key: bytes) -> int:
        """-1 if the key is not in the part that was mapped."""
        return self._newest.get(_short(key), -1)


def _short(key: bytes) -> bytes:
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()


class Transactions:
    """Which transaction a batch belongs to, while the cleaner goes through the log in order (C5)."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        #: Producer -> its open transaction that will be aborted, and whether a batch of it is still there.
        self._aborting: dict[int, tuple[AbortedTransaction, bool]] = {}
        #: Producers with batches of a transaction that will be committed.
        self._committing: set[int] = set()
        #: Aborted transactions of which something is left: the cleaned segment's index.
        self.kept: list[AbortedTransaction] = []

    def is_aborted(self, header: BatchHeader) -> bool:
        """For a batch of data."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborting:
            self._aborting[header.producer_id] = (self._aborting[header.producer_id][0], True)
            return True
        self._committing.add(header.producer_id)
        return False

    def is_needless(self, header: BatchHeader, marker: Marker | None) -> bool:
        """For a marker (None: emptied by an earlier cleaning): whether nothing of its transaction is left."""
        self._advance(header.last_offset)
        if marker is None:
            return True
        if marker.is_commit:
            was_there = header.producer_id in self._committing
            self._committing.discard(header.producer_id)
            return not was_there
        entry, was_there = self._aborting.pop(header.producer_id, (None, False))
        if entry is not None and was_there:
            self.kept.append(entry)
        return not was_there

    def _advance(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            entry = self._coming.pop()
            self._aborting.setdefault(entry.producer_id, (entry, False))


class Fate(enum.Enum):
    #: The batch goes, records and all.
    DROP = "drop"
    #: Records are checked; if none stays, the batch is removed.
    KEEP_IF_ANY = "keep if any"
    #: Records are checked; if none stays, an empty batch stays (C4).
    KEEP_EMPTY = "keep empty"


class Verdict(NamedTuple):
    fate: Fate
    #: No record stays, whatever its key.
    drop_records: bool
    #: The batch is a marker of which the horizon begins to run now, if it does not run yet.
    starts_horizon: bool


def judge(
    header: BatchHeader,
    *,
    discardable: bool,
    now_ms: int,
    last_records: Mapping[int, LastRecord],
    end_offset: int,
) -> Verdict:
    """`discardable`: aborted data, or a marker of which nothing is left (`Transactions`). `end_offset`: where
    the segment that is being written ends."""
    horizon = delete_horizon_ms(header)
    drop_records = discardable
    if header.is_control:
        drop_records = discardable and horizon is not None and horizon <= now_ms
    if _is_last_of_producer(header, last_records) or header.next_offset == end_offset:
        fate = Fate.KEEP_EMPTY
    elif drop_records:
        fate = Fate.DROP
    else:
        fate = Fate.KEEP_IF_ANY
    return Verdict(fate, drop_records, starts_horizon=discardable and header.is_control)


def _is_last_of_producer(header: BatchHeader, last_records: Mapping[int, LastRecord]) -> bool:
    if not header.has_producer:
        return False
    last = last_records.get(header.producer_id)
    if last is None:
        return False
    if last.last_data_offset >= 0:
        return header.last_offset == last.last_data_offset
    # Only markers are left of this producer: the one of its epoch keeps the fence up.
    return header.is_control and header.producer_epoch == last.epoch


def keeps_record(
    key: bytes | None,
    has_value: bool,
    offset: int,
    header: BatchHeader,
    keys: KeyMap,
    now_ms: int,
) -> bool:
    """Whether a record of data stays (C1, C3)."""
    if offset > keys.latest_offset:
        return True  # C6: not mapped yet, the next round's business.
    if key is None or offset < keys.newest(key):
        return False
    horizon = delete_horizon_ms(header)
    return has_value or horizon is None or now_ms < horizon


def new_horizon(
    header: BatchHeader, verdict: Verdict, *, keeps_tombstone: bool, now_ms: int, config: TopicConfig
) -> int | None:
    """The delete horizon to stamp on what is kept of a batch; None to leave it as it is."""
    if delete_horizon_ms(header) is not None or not (keeps_tombstone or verdict.starts_horizon):
        return None
    return now_ms + config.delete_retention_ms
