"""Removes segments by retention, and their files after a delay. [S]

A segment that retention removes is renamed to `.deleted` at once and its files are removed after
`file.delete.delay.ms`, as in Kafka: long enough for running reads. A broker that stops in between removes
them at the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla_broker.log.files import CLEANED, DELETED
from ottla_broker.log.retention import SegmentFacts, expired, wants_roll
from ottla_broker.log.segment import Segment
from ottla_broker.topic_config import TopicConfig
from ottla_core.ports.disk import Disk

if TYPE_CHECKING:
    from ottla_broker.log.log import Log

_NEVER = 1 << 63


class Doomed:
    """Files that wait for their removal.

    They go by their name, and a segment that is compacted again gets the same one: it takes the place of the earlier
    file, whose time must not be taken for its own.
    """

    __slots__ = ("_disk", "_going", "_waiting")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._waiting: list[tuple[int, list[str]]] = []
        #: Those that a thread is removing.
        self._going: list[str] = []

    def give_way(self, segments: Sequence[Segment]) -> bool:
        """Forget pending removals of names that will be reused. False: one of them is being removed now."""
        stems = {f"{segment.base_offset:020}" for segment in segments}
        if any(_stem(path) in stems for path in self._going):
            return False
        self._waiting = [
            (when, [path for path in paths if _stem(path) not in stems]) for when, paths in self._waiting
        ]
        return True

    def add(self, segment: Segment, due_ms: int, *, renamed: bool = False) -> None:
        segment.is_retired = True
        if not renamed:
            self.give_way((segment,))
        paths = segment.all_paths() if renamed else segment.rename_to(DELETED)
        self._waiting.append((due_ms, paths))

    def purge_work(self, now_ms: int) -> Callable[[], None] | None:
        due = [path for when, paths in self._waiting if when <= now_ms for path in paths]
        if not due:
            return None
        self._waiting = [entry for entry in self._waiting if entry[0] > now_ms]

        self._going = due

        def remove() -> None:
            try:
                for path in due:
                    self._disk.remove(path)
            finally:
                self._going = []

        return remove


def _stem(path: str) -> str:
    """The base offset in a file's name."""
    return path.rpartition("/")[2].partition(".")[0]


class _Looked(NamedTuple):
    """State of the log at the last retention check; while it is the same, only time can change the result."""

    end_offset: int
    start_offset: int
    committed_offset: int
    segments: int
    config: TopicConfig


class Housekeeper:
    """Asks `retention` at most as often as its answer can change: an idle partition costs one comparison."""

    __slots__ = ("_again_ms", "_looked")

    def __init__(self) -> None:
        self._looked: _Looked | None = None
        self._again_ms = 0

    def removable(self, log: Log, now_ms: int, committed_offset: int) -> int:
        """How many leading segments may go now. Rolls the active one if all that it holds has expired."""
        looked = _Looked(log.end_offset, log.start_offset, committed_offset, len(log.segments), log.config)
        if looked == self._looked and now_ms < self._again_ms:
            return 0
        facts = _facts(log)
        active = facts[-1]
        due = wants_roll(active, now_ms=now_ms, config=log.config, start_offset=log.start_offset)
        if due and active.end_offset <= committed_offset:
            log.roll(now_ms)
            facts = _facts(log)
        count = expired(
            facts,
            now_ms=now_ms,
            config=log.config,
            start_offset=log.start_offset,
            committed_offset=committed_offset,
        )
        self._looked = looked
        self._again_ms = _NEVER
        if log.config.deletes and log.config.retention_ms >= 0 and (len(facts) > 1 or active.size_bytes):
            self._again_ms = facts[0].max_timestamp_ms + log.config.retention_ms + 1
        return count

    def cleaned(self, disk: Disk, folder: str, base_offset: int, config: TopicConfig, now_ms: int) -> Segment:
        return Segment.create(
            disk, folder, base_offset, config.index_interval_bytes, now_ms=now_ms, suffix=CLEANED
        )


def _facts(log: Log) -> list[SegmentFacts]:
    found = []
    for at, segment in enumerate(log.segments):
        last = at + 1 == len(log.segments)
        end = log.end_offset if last else log.segments[at + 1].base_offset
        newest = segment.max_timestamp.timestamp_ms
        # Records without timestamps age from when this broker first saw them.
        found.append(
            SegmentFacts(
                segment.base_offset, end, segment.size, newest if newest >= 0 else segment.created_ms
            )
        )
    return found
