"""All services in one object, seen by one caller: the only thing that an edge gets. [S]

`of` is the front door: an edge enters it once per connection and client id, and every request goes through what it
returns. Authorisation and quotas wrap services here, so that no handler can go around them
([decision 16](docs/decisions/0016-services-by-caller.md)).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ottla_broker.caller import BROKER, Caller
from ottla_broker.config import BrokerConfig
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.service.cluster import ClusterService
from ottla_broker.service.configs import ConfigService
from ottla_broker.service.groups import GroupService
from ottla_broker.service.log_dirs import LogDirService
from ottla_broker.service.producing import Producing
from ottla_broker.service.records import RecordService
from ottla_broker.service.topics import TopicService
from ottla_broker.service.transactions import TransactionService
from ottla_broker.service.users import UserService


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
    cluster: ClusterService
    transactions: TransactionService
    users: UserService
    caller: Caller = BROKER

    def of(self, caller: Caller) -> Services:
        """The services as this caller may use them."""
        return replace(self, caller=caller)

    @property
    def broker_id(self) -> int:
        return self.config.process.broker_id

    @property
    def image(self) -> ClusterImage:
        return self.metadata.image
