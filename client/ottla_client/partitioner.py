"""Which partition a record goes to. [P]

A partition given with the record wins; else the partitioner decides. The built-in ones:

* `default`: records with a key use the key's murmur2 hash, exactly as Java's (so producers in both
  languages choose the same partition); records without a key stay with one partition until its batch is full,
  then switch (KIP-480): full batches make small records cheap.
* `round_robin`: every record to the next partition, whatever its key.
* `sticky`: for every record, like `default` without a key.

A custom callable gets `(key, all_partitions, available_partitions)`, as in kafka-python and aiokafka,
and returns a partition. `available` are those with a leader; it is never empty.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from ottla_core.ports.chance import Chance

PartitionCallable: TypeAlias = Callable[[bytes | None, Sequence[int], Sequence[int]], int]

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C
#: Unpackers for keys of up to 63 words; longer keys create one per call.
_WORDS = [struct.Struct(f"<{count}I") for count in range(64)]


def murmur2(data: bytes) -> int:
    """MurmurHash2, 32 bits, with the seed and the byte order of `org.apache.kafka.common.utils.Utils.murmur2`."""
    length = len(data)
    words = length >> 2
    layout = _WORDS[words] if words < 64 else struct.Struct(f"<{words}I")
    h = (_SEED ^ length) & _MASK
    for k in layout.unpack_from(data):
        k = (k * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    tail = length & 3
    if tail:
        h ^= int.from_bytes(data[-tail:], "little")
        h = (h * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def partition_for_key(key: bytes, partitions: int) -> int:
    """Java's `toPositive(murmur2(key)) % partitions`: never depends on which partitions have a leader."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class Partitioner(Protocol):
    def choose(
        self, topic: str, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int]
    ) -> int:
        """The partition for a record. If `available` is empty, any partition."""

    def batch_closed(self, topic: str, partition: int) -> None:
        """A batch of this partition was closed: the partitioner may switch."""


class StickyPartitioner:
    """One partition at a time; after each full batch another random one."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._current: dict[str, int] = {}
        #: The previous partition: do not choose it again while its batch is in flight.
        self._left: dict[str, int] = {}

    def choose(
        self, topic: str, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int]
    ) -> int:
        current = self._current.get(topic)
        # A recreated topic may have fewer partitions.
        if current is None or current not in all_partitions:
            among = available or all_partitions
            turn = self._chance.below(len(among))
            if among[turn] == self._left.get(topic):
                turn = (turn + 1) % len(among)
            current = self._current[topic] = among[turn]
        return current

    def batch_closed(self, topic: str, partition: int) -> None:
        # Ignore batches of other partitions, which keyed records fill.
        if self._current.get(topic) == partition:
            self._left[topic] = self._current.pop(topic)


class DefaultPartitioner(StickyPartitioner):
    """By key hash; sticky for records without a key."""

    def choose(
        self, topic: str, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int]
    ) -> int:
        if key is not None:
            return partition_for_key(key, len(all_partitions))
        current = self._current.get(topic)
        if current is not None and current in all_partitions:
            return current  # nearly always: a second call would be a tenth of the cost of `send`
        return super().choose(topic, key, all_partitions, available)


class RoundRobinPartitioner:
    """Each record to the next available partition."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._turns: dict[str, int] = {}

    def choose(
        self, topic: str, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int]
    ) -> int:
        among = available or all_partitions
        turn = self._turns.get(topic)
        if turn is None:
            # A random start, so that many producers do not all start at partition 0.
            turn = self._chance.below(len(among))
        self._turns[topic] = turn + 1
        return among[turn % len(among)]

    def batch_closed(self, topic: str, partition: int) -> None:
        pass


class CallablePartitioner:
    """A partitioner function of the user."""

    def __init__(self, function: PartitionCallable) -> None:
        self._function = function

    def choose(
        self, topic: str, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int]
    ) -> int:
        return self._function(key, all_partitions, available or all_partitions)

    def batch_closed(self, topic: str, partition: int) -> None:
        pass


def partitioner_for(given: str | PartitionCallable, chance: Chance) -> Partitioner:
    if callable(given):
        return CallablePartitioner(given)
    if given == "default":
        return DefaultPartitioner(chance)
    if given == "sticky":
        return StickyPartitioner(chance)
    if given == "round_robin":
        return RoundRobinPartitioner(chance)
    raise ValueError(
        f"There is no partitioner {given!r}; choose default, sticky or round_robin, or pass a callable."
    )
