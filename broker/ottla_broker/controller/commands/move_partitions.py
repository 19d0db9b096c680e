"""Moves partitions to other replicas, or cancels their moves (`reassignment.py`). [P]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla_broker.controller.command import Command, Tools
from ottla_broker.controller.planner import PartitionsMoved, Plan, plan
from ottla_broker.controller.topic_checks import check_not_cordoned
from ottla_broker.metadata.image import ClusterImage, PartitionImage
from ottla_broker.requests import PartitionResult
from ottla_core.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    NoReassignmentInProgress,
    RequestError,
    UnknownTopicOrPartition,
)
from ottla_core.ids import TopicPartition


class Move(NamedTuple):
    topic: str
    partition: int
    #: The replicas, the preferred leader first; None cancels a move.
    target: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class MovePartitions(Command[list[PartitionResult]]):
    moves: tuple[Move, ...]
    #: Refuse targets with another number of replicas.
    keep_replication_factor: bool = False

    result_type = list[PartitionResult]
    places_replicas = True

    def changes(self, image: ClusterImage, tools: Tools) -> Sequence[_Moves]:
        return [_Moves(self, self._refusals(image))]

    def answer(self, results: list[list[PartitionResult]]) -> list[PartitionResult]:
        return results[0]

    def after_retry(
        self, result: list[PartitionResult], before: ClusterImage, now: ClusterImage
    ) -> list[PartitionResult]:
        return [
            each._replace(error=None)
            if isinstance(each.error, NoReassignmentInProgress) and _was_moving(before, each)
            else each
            for each in result
        ]

    def _refusals(self, image: ClusterImage) -> dict[TopicPartition, RequestError]:
        refusals: dict[TopicPartition, RequestError] = {}
        seen: set[TopicPartition] = set()
        for move in self.moves:
            tp = TopicPartition(move.topic, move.partition)
            try:
                if tp in seen:
                    raise InvalidRequest(f"Partition {tp.partition} of {tp.topic!r} is named more than once.")
                check_move(image, move, keep_replication_factor=self.keep_replication_factor)
            except RequestError as error:
                refusals[tp] = error
            seen.add(tp)
        return refusals


def check_move(image: ClusterImage, move: Move, *, keep_replication_factor: bool = False) -> None:
    partition = image.partition(TopicPartition(move.topic, move.partition))
    if partition is None:
        raise UnknownTopicOrPartition(f"There is no partition {move.partition} of topic {move.topic!r}.")
    if move.target is None:
        if not partition.is_moving and not partition.planned:
            raise NoReassignmentInProgress
        return
    _check_target(image, partition, move.target)
    if keep_replication_factor and len(move.target) != len(partition.original):
        raise InvalidReplicationFactor(
            f"The partition has {len(partition.original)} replicas, the target {len(move.target)}; "
            "allow the change of the replication factor, or name as many brokers."
        )


def _check_target(image: ClusterImage, partition: PartitionImage, target: tuple[int, ...]) -> None:
    if not target:
        raise InvalidReplicaAssignment("The target names no brokers.")
    if len(set(target)) != len(target):
        raise InvalidReplicaAssignment(f"A broker is named twice in {list(target)}.")
    unknown = [r for r in target if r not in image.members]
    if unknown:
        raise InvalidReplicaAssignment(f"There is no broker {unknown[0]}.")
    check_not_cordoned(image, (r for r in target if r not in partition.replicas))


def _was_moving(image: ClusterImage, result: PartitionResult) -> bool:
    partition = image.partition(TopicPartition(result.topic, result.partition))
    return partition is not None and (partition.is_moving or bool(partition.planned))


@dataclass(slots=True)
class _Moves:
    """All moves in one change: a thousand of them are a few transactions.

    They are checked once. A cancelled move can complete before the change is planned again, and must not count as
    one that did not exist.
    """

    command: MovePartitions
    refusals: dict[TopicPartition, RequestError]
    targets: dict[str, dict[int, tuple[int, ...] | None]] = field(default_factory=dict)

    def plan(self, image: ClusterImage) -> Plan:
        if not self.targets:
            for move in self.command.moves:
                if TopicPartition(move.topic, move.partition) not in self.refusals:
                    self.targets.setdefault(move.topic, {})[move.partition] = move.target
        return plan(image, PartitionsMoved(self.targets))

    def result(self, error: RequestError | None) -> list[PartitionResult]:
        return [
            PartitionResult(
                move.topic,
                move.partition,
                self.refusals.get(TopicPartition(move.topic, move.partition), error),
            )
            for move in self.command.moves
        ]


COMMAND = MovePartitions
