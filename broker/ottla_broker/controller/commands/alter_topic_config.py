"""Changes the settings of a topic. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla_broker.controller.command import SimpleCommand, Tools
from ottla_broker.controller.config_edits import edit_of, topic_edit
from ottla_broker.controller.planner import Plan, TopicConfigChanged, plan
from ottla_broker.controller.topic_checks import check_config, find_topic
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.requests import ConfigChange


@dataclass(frozen=True, slots=True)
class AlterTopicConfig(SimpleCommand):
    """Either changes of the settings, or the complete settings."""

    topic: str
    edits: tuple[ConfigChange, ...] | None = None
    values: Mapping[str, str] | None = None

    def plan(self, image: ClusterImage, tools: Tools) -> Plan:
        topic = find_topic(image, self.topic)
        edit = edit_of(topic_edit, self.edits, self.values)
        config = check_config(edit(topic.config), tools.validate)
        return Plan() if topic.config == config else plan(image, TopicConfigChanged(self.topic, config))


COMMAND = AlterTopicConfig
