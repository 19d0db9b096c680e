"""Moves partitions to other replicas, or cancels their moves (`reassignment.py`). [P]"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ottla_broker.controller.command import SimpleCommand, Tools
from ottla_broker.controller.planner import PartitionsMoved, Plan, plan
from ottla_broker.metadata.image import ClusterImage


class Move(NamedTuple):
    topic: str
    partition: int
    #: The replicas, the preferred leader first; None cancels a move.
    target: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class MovePartitions(SimpleCommand):
    moves: tuple[Move, ...]

    def plan(self, image: ClusterImage, tools: Tools) -> Plan:
        targets: dict[str, dict[int, tuple[int, ...] | None]] = {}
        for move in self.moves:
            targets.setdefault(move.topic, {})[move.partition] = move.target
        return plan(image, PartitionsMoved(targets))


COMMAND = MovePartitions
