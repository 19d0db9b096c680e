"""Deletes topics with all their records. [P]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from ottla_broker.controller.command import Command, Tools
from ottla_broker.controller.planner import Plan, TopicDeleted, plan
from ottla_broker.controller.topic_checks import find_topic
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.requests import TopicResult
from ottla_core.errors import RequestError, UnknownTopicOrPartition


@dataclass(frozen=True, slots=True)
class DeleteTopics(Command[list[TopicResult]]):
    names: tuple[str, ...]

    result_type = list[TopicResult]

    def changes(self, image: ClusterImage, tools: Tools) -> Sequence[_Deletion]:
        return [_Deletion(name) for name in self.names]

    def answer(self, results: list[TopicResult]) -> list[TopicResult]:
        return results

    def after_retry(
        self, result: list[TopicResult], before: ClusterImage, now: ClusterImage
    ) -> list[TopicResult]:
        return [
            replace(each, error=None)
            if each.name in before.topics and isinstance(each.error, UnknownTopicOrPartition)
            else each
            for each in result
        ]


@dataclass(slots=True)
class _Deletion:
    name: str
    #: Of the topic found by the first plan: another one of that name is left alone.
    topic_id: UUID | None = None

    def plan(self, image: ClusterImage) -> Plan:
        if self.topic_id is None:
            self.topic_id = find_topic(image, self.name).id
        found = image.topics.get(self.name)
        gone = found is None or found.id != self.topic_id
        return Plan() if gone else plan(image, TopicDeleted(self.name))

    def result(self, error: RequestError | None) -> TopicResult:
        return TopicResult(self.name, error, None if error is not None else self.topic_id)


COMMAND = DeleteTopics
