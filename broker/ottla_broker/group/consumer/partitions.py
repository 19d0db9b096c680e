"""Sets of partitions as the records have them: partition numbers by topic id. [P]

By id, because a topic that is deleted and created again is another topic. No value is an empty set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias
from uuid import UUID

Partitions: TypeAlias = Mapping[UUID, frozenset[int]]
#: Epochs by topic id and partition.
Since: TypeAlias = Mapping[UUID, Mapping[int, int]]

NONE: Partitions = {}


def size(partitions: Partitions) -> int:
    return sum(map(len, partitions.values()))


def union(one: Partitions, other: Partitions) -> Partitions:
    if not one or not other:
        return one or other
    return {**one, **{topic: one.get(topic, frozenset()) | found for topic, found in other.items()}}


def minus(one: Partitions, other: Partitions) -> Partitions:
    made = ((topic, found - other[topic] if topic in other else found) for topic, found in one.items())
    return {topic: found for topic, found in made if found}


def common(one: Partitions, other: Partitions) -> Partitions:
    made = ((topic, found & other[topic]) for topic, found in one.items() if topic in other)
    return {topic: found for topic, found in made if found}


def each(partitions: Partitions) -> Iterator[tuple[UUID, int]]:
    for topic, found in partitions.items():
        for index in found:
            yield topic, index
