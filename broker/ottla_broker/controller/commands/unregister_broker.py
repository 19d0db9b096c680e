"""Removes an offline broker without replicas from the cluster's record. [P]

A broker that starts again after that is a new member: its earlier incarnation is unknown, so its log counts as torn,
and it is in no ISR (rules 1 and 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ottla_broker.controller.command import Command, Tools
from ottla_broker.controller.planner import Plan, Stage
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.configs import BROKER_CONFIGS
from ottla_broker.metadata.sections.cordons import CORDONS
from ottla_broker.metadata.sections.members import MEMBERS
from ottla_core.errors import BrokerIdNotRegistered, InvalidRequest, RequestError
from ottla_core.ports.store import Branch, CreateRevisionIs, Delete


@dataclass(frozen=True, slots=True)
class UnregisterBroker(Command[None]):
    broker: int

    result_type = None

    def changes(self, image: ClusterImage, tools: Tools) -> Sequence[_Removal]:
        if self.broker not in image.members:
            raise BrokerIdNotRegistered(f"There is no broker {self.broker}.")
        return [_Removal(self.broker)]

    def answer(self, results: list[None]) -> None:
        return None


@dataclass(frozen=True, slots=True)
class _Removal:
    broker: int

    def plan(self, image: ClusterImage) -> Plan:
        if self.broker not in image.members:
            return Plan()
        if self.broker in image.brokers:
            raise InvalidRequest(f"Broker {self.broker} is online; stop it first.")
        held = sum(
            self.broker in partition.replicas or self.broker in partition.planned
            for topic in image.topics.values()
            for partition in topic.partitions
        )
        if held:
            raise InvalidRequest(
                f"Broker {self.broker} still has replicas of {held} partitions, or is to get them; "
                "move them to other brokers first."
            )
        keys = (MEMBERS.key(self.broker), CORDONS.key(self.broker), BROKER_CONFIGS.key(str(self.broker)))
        # It may register meanwhile: its registration does not compare the controller's keys.
        guard = (CreateRevisionIs(BROKERS.key(self.broker), 0),)
        return Plan((Stage((Branch((), tuple(Delete(key) for key in keys)),), guard),))

    def result(self, error: RequestError | None) -> None:
        if error is not None:
            raise error


COMMAND = UnregisterBroker
