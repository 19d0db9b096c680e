"""Adds partitions to a topic. [P]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ottla_broker.controller.command import Command, Tools
from ottla_broker.controller.planner import Plan, TopicGrown, plan
from ottla_broker.controller.topic_checks import Placement, check_growth, find_topic
from ottla_broker.metadata.image import ClusterImage, TopicImage
from ottla_broker.requests import TopicResult
from ottla_core.errors import RequestError


@dataclass(frozen=True, slots=True)
class GrowTopic(Command[TopicResult]):
    topic: str
    total: int
    assignments: tuple[tuple[int, ...], ...] | None = None
    validate_only: bool = False

    result_type = TopicResult
    places_replicas = True

    def changes(self, image: ClusterImage, tools: Tools) -> Sequence[_Growth]:
        return [_Growth(self, tools)]

    def answer(self, results: list[TopicResult]) -> TopicResult:
        return results[0]

    def after_retry(self, result: TopicResult, before: ClusterImage, now: ClusterImage) -> TopicResult:
        old, new = before.topics.get(self.topic), now.topics.get(self.topic)
        if old is None or new is None or not len(old.partitions) < len(new.partitions) == self.total:
            return result
        return replace(result, error=None, topic_id=new.id, partitions=self.total)


@dataclass(slots=True)
class _Growth:
    command: GrowTopic
    tools: Tools
    #: As of the first plan: later ones must not place the new partitions differently.
    topic: TopicImage | None = None
    placement: Placement | None = None

    def plan(self, image: ClusterImage) -> Plan:
        name, total = self.command.topic, self.command.total
        if self.placement is None:
            draw = self.tools.chance.below
            self.placement = check_growth(image, name, total, self.command.assignments, draw)
            self.topic = find_topic(image, name)
        done = len(find_topic(image, name).partitions) >= total
        if done or self.command.validate_only:
            return Plan()
        return plan(image, TopicGrown(name, self.placement))

    def result(self, error: RequestError | None) -> TopicResult:
        if error is not None or self.topic is None or self.placement is None:
            return TopicResult(self.command.topic, error)
        total = self.command.total
        return TopicResult(self.command.topic, None, self.topic.id, total, len(self.placement[0]))


COMMAND = GrowTopic
