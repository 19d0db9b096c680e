"""Elects leaders on demand: the preferred replicas, or, for partitions without a leader, any replica. [P]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ottla_broker.controller.command import Command, Tools
from ottla_broker.controller.leaders import LiveBrokers, Policy, on_demand
from ottla_broker.controller.planner import LeadersElected, Plan, plan
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.requests import PartitionResult
from ottla_core.errors import ElectionNotNeeded, RequestError, UnknownTopicOrPartition
from ottla_core.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class ElectLeaders(Command[list[PartitionResult]]):
    #: Numbers of partitions by topic; None for all of the cluster. The result then omits those that need no election.
    partitions: Mapping[str, tuple[int, ...]] | None
    unclean: bool = False

    result_type = list[PartitionResult]

    def changes(self, image: ClusterImage, tools: Tools) -> Sequence[_Elections]:
        chosen: Mapping[str, Sequence[int]] = self.partitions or {}
        if self.partitions is None:
            chosen = {topic.name: range(len(topic.partitions)) for topic in image.topics.values()}
        live = LiveBrokers.of(image)
        results = [
            PartitionResult(name, index, self._refusal(image, live, TopicPartition(name, index)))
            for name, indexes in chosen.items()
            for index in dict.fromkeys(indexes)
        ]
        if self.partitions is None:
            results = [each for each in results if not isinstance(each.error, ElectionNotNeeded)]
        return [_Elections(self.unclean, results)]

    def answer(self, results: list[list[PartitionResult]]) -> list[PartitionResult]:
        return results[0]

    def after_retry(
        self, result: list[PartitionResult], before: ClusterImage, now: ClusterImage
    ) -> list[PartitionResult]:
        """A leader that was elected since the first attempt counts as elected by it."""
        return [
            each._replace(error=None)
            if isinstance(each.error, ElectionNotNeeded) and _leader(before, each) != _leader(now, each)
            else each
            for each in result
        ]

    def _refusal(self, image: ClusterImage, live: LiveBrokers, tp: TopicPartition) -> RequestError | None:
        partition, topic = image.partition(tp), image.topics.get(tp.topic)
        if partition is None or topic is None:
            return UnknownTopicOrPartition(f"There is no partition {tp.partition} of topic {tp.topic!r}.")
        able = live.for_partition(topic.id, tp.partition)
        wanted = on_demand(partition, able, Policy(), unclean=self.unclean)
        return wanted if isinstance(wanted, RequestError) else None


def _leader(image: ClusterImage, result: PartitionResult) -> int | None:
    partition = image.partition(TopicPartition(result.topic, result.partition))
    return None if partition is None else partition.leader


@dataclass(slots=True)
class _Elections:
    unclean: bool
    results: list[PartitionResult]
    wanted: dict[str, list[int]] = field(default_factory=dict)

    def plan(self, image: ClusterImage) -> Plan:
        if not self.wanted:
            for each in self.results:
                if each.error is None:
                    self.wanted.setdefault(each.topic, []).append(each.partition)
        return plan(image, LeadersElected(self.wanted, self.unclean))

    def result(self, error: RequestError | None) -> list[PartitionResult]:
        return [each._replace(error=each.error or error) for each in self.results]


COMMAND = ElectLeaders
