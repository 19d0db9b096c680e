"""All services in one object, seen by one caller: the only thing that an edge gets. [S]

`of` is the front door: an edge enters it once per connection and client id, and every request goes through what it
returns. With an authoriser or an audit log, that is guarded services (`guarded/`), so that no handler can go around
them ([decision 16](docs/decisions/0016-services-by-caller.md)).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ottla_broker.caller import BROKER, Caller
from ottla_broker.config import BrokerConfig
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.service.access import FULL, Access, Authority, Bystander
from ottla_broker.service.acls import AclService
from ottla_broker.service.cluster import ClusterService
from ottla_broker.service.configs import ConfigService
from ottla_broker.service.group_lag import GroupLags
from ottla_broker.service.groups import GroupService
from ottla_broker.service.guarded.acls import GuardedAcls
from ottla_broker.service.guarded.cluster import GuardedCluster, GuardedLogDirs
from ottla_broker.service.guarded.configs import GuardedConfigs
from ottla_broker.service.guarded.groups import GuardedGroups
from ottla_broker.service.guarded.lags import GuardedLags
from ottla_broker.service.guarded.metrics_pages import GuardedMetricsPages
from ottla_broker.service.guarded.producing import GuardedProducing
from ottla_broker.service.guarded.quotas import GuardedQuotas
from ottla_broker.service.guarded.records import GuardedRecords
from ottla_broker.service.guarded.topics import GuardedTopics
from ottla_broker.service.guarded.transactions import GuardedTransactions
from ottla_broker.service.guarded.users import GuardedUsers
from ottla_broker.service.log_dirs import LogDirService
from ottla_broker.service.metrics_pages import MetricsPages
from ottla_broker.service.producing import Producing
from ottla_broker.service.quotas import QuotaService
from ottla_broker.service.records import RecordService
from ottla_broker.service.throttling import Throttling
from ottla_broker.service.topics import TopicService
from ottla_broker.service.transactions import TransactionService
from ottla_broker.service.users import UserService

#: The guard of each service, by the field of `Services`.
GUARDS: dict[str, Any] = {
    "records": GuardedRecords,
    "producing": GuardedProducing,
    "topics": GuardedTopics,
    "configs": GuardedConfigs,
    "groups": GuardedGroups,
    "log_dirs": GuardedLogDirs,
    "cluster": GuardedCluster,
    "transactions": GuardedTransactions,
    "users": GuardedUsers,
    "acls": GuardedAcls,
    "lags": GuardedLags,
    "quotas": GuardedQuotas,
    "metrics": GuardedMetricsPages,
}


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
    acls: AclService
    lags: GroupLags
    quotas: QuotaService
    metrics: MetricsPages
    #: For the edges: charges requests, answers nothing.
    throttling: Throttling
    #: None without an authoriser and without an audit log.
    authority: Authority | Bystander | None = None
    caller: Caller = BROKER
    #: For handlers that answer from the image: what the caller may see of it.
    access: Access = FULL

    def of(self, caller: Caller) -> Services:
        """The services as this caller may use them."""
        if self.authority is None:
            return replace(self, caller=caller)
        access = self.authority.of(caller)
        guarded = {name: guard(getattr(self, name), access) for name, guard in GUARDS.items()}
        return replace(self, authority=None, caller=caller, access=access, **guarded)

    @property
    def broker_id(self) -> int:
        return self.config.process.broker_id

    @property
    def image(self) -> ClusterImage:
        return self.metadata.image
