"""Names for the things that are counted: one spelling for both edges, the log and the client. [P]"""

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
#: Kafka's way of saying "this topic has no id": the all-zero UUID.
NO_TOPIC_ID: TopicId = UUID(int=0)


class TopicPartition(NamedTuple):
    """One partition by its topic's name: what clients say. The cluster itself goes by topic id."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
