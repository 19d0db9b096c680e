"""Creates topics, each completely or not at all. [P]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from ottla_broker.controller.command import Command, Tools
from ottla_broker.controller.names import collision_key
from ottla_broker.controller.planner import Plan, TopicWanted, plan
from ottla_broker.controller.topic_checks import Checked, check_new_topic
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.requests import NewTopic, TopicResult
from ottla_core.errors import InvalidRequest, RequestError, TopicAlreadyExists


@dataclass(frozen=True, slots=True)
class CreateTopics(Command[list[TopicResult]]):
    topics: tuple[NewTopic, ...]
    validate_only: bool = False

    result_type = list[TopicResult]
    places_replicas = True
    in_flight_max = 8

    def changes(self, image: ClusterImage, tools: Tools) -> Sequence[_Creation]:
        named = Counter(topic.name for topic in self.topics)
        taken = {collision_key(name): name for name in image.topics}
        made = []
        for topic in self.topics:
            checked: Checked | RequestError
            try:
                if named[topic.name] > 1:
                    raise InvalidRequest(f"Topic {topic.name!r} is named more than once.")
                checked = check_new_topic(image, topic, taken, tools.validate, tools.chance.below)
                taken[collision_key(topic.name)] = topic.name
            except RequestError as error:
                checked = error
            made.append(_Creation(topic.name, checked, tools, self.validate_only))
        return made

    def answer(self, results: list[TopicResult]) -> list[TopicResult]:
        return results

    def after_retry(
        self, result: list[TopicResult], before: ClusterImage, now: ClusterImage
    ) -> list[TopicResult]:
        return [each if each.name in before.topics else _found(each, now) for each in result]


@dataclass(slots=True)
class _Creation:
    name: str
    checked: Checked | RequestError
    tools: Tools
    validate_only: bool
    #: A new id for each attempt: leftovers of a lost attempt then belong to no topic, and are removed.
    tried: list[UUID] = field(default_factory=list)

    def plan(self, image: ClusterImage) -> Plan:
        if isinstance(self.checked, RequestError):
            raise self.checked
        if self.validate_only:
            return Plan()
        existing = image.topics.get(self.name)
        if existing is not None:
            if existing.id not in self.tried:
                raise TopicAlreadyExists(f"Topic {self.name!r} exists already.")
            self.tried.append(existing.id)
            return Plan()
        self.tried.append(self.tools.chance.uuid())
        return plan(
            image, TopicWanted(self.name, self.tried[-1], self.checked.placement, self.checked.config)
        )

    def result(self, error: RequestError | None) -> TopicResult:
        if error is not None or isinstance(self.checked, RequestError):
            return TopicResult(self.name, error)
        placement, topic_id = self.checked.placement, self.tried[-1] if self.tried else None
        return TopicResult(self.name, None, topic_id, len(placement), len(placement[0]), self.checked.config)


def _found(result: TopicResult, now: ClusterImage) -> TopicResult:
    """The retry found the topic, which did not exist before: the first attempt created it."""
    topic = now.topics.get(result.name)
    if topic is None or not isinstance(result.error, TopicAlreadyExists):
        return result
    factor = max((len(p.replicas) for p in topic.partitions), default=-1)
    return TopicResult(result.name, None, topic.id, len(topic.partitions), factor, topic.config)


COMMAND = CreateTopics
