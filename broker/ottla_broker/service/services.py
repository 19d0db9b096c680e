"""All services in one object: the only thing that an edge gets. [S]"""

from __future__ import annotations

from dataclasses import dataclass

from ottla_broker.config import BrokerConfig
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.service.configs import ConfigService
from ottla_broker.service.groups import GroupService
from ottla_broker.service.log_dirs import LogDirService
from ottla_broker.service.producing import Producing
from ottla_broker.service.records import RecordService
from ottla_broker.service.topics import TopicService


@dataclass(frozen=True, slots=True)
class Services:
    config: BrokerConfig
    metadata: Metadata
    records: RecordService
    producing: Producing
    topics: TopicService
    configs: ConfigService
    groups: GroupService
    log_dirs: LogDirService

    @property
    def broker_id(self) -> int:
        return self.config.process.broker_id

    @property
    def image(self) -> ClusterImage:
        return self.metadata.image
