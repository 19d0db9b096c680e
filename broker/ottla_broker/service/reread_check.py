"""Decides which reads from the page cache have their CRCs checked: those that repeat an earlier one. [P]

The page cache is served unchecked, because checking all of it costs up to twenty times the read (decision 13). A
consumer that gets a damaged batch requests it again and again, so a range that is requested twice is suspect: the
second read is checked, by a thread. Several consumers of one partition repeat each other's reads too; a range that
was found whole is not checked again for a while, so that they pay for one check a second and range at most.

Asked by `delayed_fetch` for each range that it is about to read, on the loop.
"""

from __future__ import annotations

from ottla_core.ids import TopicPartition

#: Ranges remembered at least, and at most twice as many: 2 MB. A client that gets damage asks again after half a
#: second (librdkafka) or less, and a broker serves fewer ranges than this in that time.
REMEMBERED = 8_192
#: A range that was whole is not checked again for this time.
WHOLE_FOR_S = 1.0

_NEVER = float("-inf")


class RereadCheck:
    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        #: (partition, first offset of the range) -> when it was last found whole. Two generations: dropping the oldest
        #: of one large dict, one by one, costs a walk over those that were dropped before.
        self._young: dict[tuple[TopicPartition, int], float] = {}
        self._old: dict[tuple[TopicPartition, int], float] = {}

    def is_due(self, tp: TopicPartition, first_offset: int, now: float) -> bool:
        """Whether this read is to be checked. A range that was found damaged stays due."""
        key = (tp, first_offset)
        checked = self._young.get(key)
        if checked is None:
            checked = self._old.get(key)
        return checked is not None and now - checked >= WHOLE_FOR_S

    def served(self, tp: TopicPartition, first_offset: int) -> None:
        """Record a range that was read from the page cache and sent without a check."""
        key = (tp, first_offset)
        if key not in self._young and key not in self._old:
            self._remember(key, _NEVER)

    def found_whole(self, tp: TopicPartition, first_offset: int, now: float) -> None:
        self._remember((tp, first_offset), now)

    def _remember(self, key: tuple[TopicPartition, int], checked: float) -> None:
        if len(self._young) >= REMEMBERED:
            self._old, self._young = self._young, {}
        self._young[key] = checked
