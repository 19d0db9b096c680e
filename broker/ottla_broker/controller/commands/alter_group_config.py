"""Changes the settings of a consumer group, whether it exists or not. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla_broker.controller.command import SimpleCommand, Tools
from ottla_broker.controller.config_edits import edit_of, group_edit
from ottla_broker.controller.planner import Plan, set_key
from ottla_broker.group_config import GroupSettings
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.sections.configs import GROUP_CONFIGS
from ottla_broker.requests import ConfigChange
from ottla_core.errors import PolicyViolation

#: Every broker keeps all of them in memory, and only clients delete them.
GROUP_CONFIGS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class AlterGroupConfig(SimpleCommand):
    """Either changes of the settings, or the complete settings."""

    group: str
    edits: tuple[ConfigChange, ...] | None = None
    values: Mapping[str, str] | None = None

    def plan(self, image: ClusterImage, tools: Tools) -> Plan:
        now = image.group_configs.get(self.group, {})
        config = edit_of(group_edit, self.edits, self.values)(now)
        GroupSettings.of(config)
        if config and not now and len(image.group_configs) >= GROUP_CONFIGS_MAX:
            raise PolicyViolation(f"{GROUP_CONFIGS_MAX} groups have settings already; delete some.")
        if config == now:
            return Plan()
        return set_key(GROUP_CONFIGS.key(self.group), GROUP_CONFIGS.encode(config) if config else None)


COMMAND = AlterGroupConfig
