"""Which reads from the page cache have their CRCs checked: those that repeat an earlier one. [P]

The page cache is served unchecked, because checking all of it costs up to twenty times the read (decision 13). A
consumer that meets a damaged batch asks for it again and again, so a range that is asked for twice is suspect: the
second read is checked, by a thread. Several consumers of one partition repeat each other's reads too; a range that
was found whole is not checked again for a while, so that they pay for one check a second and range at most.

Asked by `delayed_fetch` for each range that it is about to read, on the loop.
"""

from __future__ import annotations

from ottla_core.ids import TopicPartition

#: Ranges remembered, the oldest go first: about 4 MB. A client that meets damage asks again after half a second
#: (librdkafka) or less, and a broker serves fewer ranges than this in that time.
REMEMBERED_MAX = 16_384
#: A range that was whole is not checked again for so long.
WHOLE_FOR_S = 1.0

_NEVER = float("-inf")


class RereadCheck:
    __slots__ = ("_seen",)

    def __init__(self) -> None:
        #: (partition, first offset of the range) -> when it was last found whole. In order of insertion.
        self._seen: dict[tuple[TopicPartition, int], float] = {}

    def is_due(self, tp: TopicPartition, first_offset: int, now: float) -> bool:
        """Whether this read is to be checked. A range that was found damaged stays due, so each read of it fails."""
        checked = self._seen.get((tp, first_offset))
        return checked is not None and now - checked >= WHOLE_FOR_S

    def served(self, tp: TopicPartition, first_offset: int) -> None:
        """It was read from the page cache and is sent without a check."""
        if (key := (tp, first_offset)) not in self._seen:
            self._remember(key, _NEVER)

    def found_whole(self, tp: TopicPartition, first_offset: int, now: float) -> None:
        self._remember((tp, first_offset), now)

    def _remember(self, key: tuple[TopicPartition, int], checked: float) -> None:
        seen = self._seen
        if key not in seen and len(seen) >= REMEMBERED_MAX:
            del seen[next(iter(seen))]
        seen[key] = checked
