"""Changes the run-time settings of a broker, or of all. [P]"""

from __future__ import annotations

from dataclasses import dataclass

from ottla_broker.controller.command import SimpleCommand, Tools
from ottla_broker.controller.config_edits import broker_edit
from ottla_broker.controller.planner import Plan, set_key
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.sections.configs import BROKER_CONFIGS
from ottla_broker.requests import ConfigChange
from ottla_core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class AlterBrokerConfig(SimpleCommand):
    #: A broker id as text, or "" for all brokers.
    broker: str
    edits: tuple[ConfigChange, ...]

    def plan(self, image: ClusterImage, tools: Tools) -> Plan:
        if self.broker and not (self.broker.isascii() and self.broker.isdigit()):
            raise InvalidRequest(f"{self.broker!r} is not a broker id.")
        now = image.broker_configs.get(self.broker, {})
        config = broker_edit(self.edits)(now)
        if config == now:
            return Plan()
        return set_key(BROKER_CONFIGS.key(self.broker), BROKER_CONFIGS.encode(config) if config else None)


COMMAND = AlterBrokerConfig
