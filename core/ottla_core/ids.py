"""Identifier types, shared by both edges, the log and the client. [P]"""

from __future__ import annotations

from typing import NamedTuple, NewType, TypeAlias
from uuid import UUID

BrokerId = NewType("BrokerId", int)
TopicId: TypeAlias = UUID

#: Offsets and epochs stay plain `int`: they are added and compared on every batch, and a NewType there
#: would cost a cast per arithmetic without catching a real mistake.
Offset: TypeAlias = int
Epoch: TypeAlias = int

#: "No leader", as Kafka spells it.
NO_BROKER = BrokerId(-1)
NO_EPOCH: Epoch = -1
#: The all-zero UUID: Kafka's value for "no topic id".
NO_TOPIC_ID: TopicId = UUID(int=0)


class TopicPartition(NamedTuple):
    """A partition by topic name, as clients use it. The cluster itself uses topic ids."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
