"""Cordons a broker, which then gets no new replicas, or lifts the cordon. [P]"""

from __future__ import annotations

from dataclasses import dataclass

from ottla_broker.controller.command import SimpleCommand, Tools
from ottla_broker.controller.planner import Plan, set_key
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.sections.cordons import CORDONS
from ottla_core.errors import BrokerIdNotRegistered


@dataclass(frozen=True, slots=True)
class CordonBroker(SimpleCommand):
    broker: int
    cordoned: bool = True

    def plan(self, image: ClusterImage, tools: Tools) -> Plan:
        if self.broker not in image.members:
            raise BrokerIdNotRegistered(f"There is no broker {self.broker}.")
        if (self.broker in image.cordons) == self.cordoned:
            return Plan()
        return set_key(CORDONS.key(self.broker), CORDONS.encode(()) if self.cordoned else None)


COMMAND = CordonBroker
