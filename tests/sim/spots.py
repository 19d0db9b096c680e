"""Which partition is meant: by topic id, because a name may be given again (rule 4)."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from ottla_core.ids import TopicPartition


class Spot(NamedTuple):
    topic: str
    topic_id: UUID
    partition: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
