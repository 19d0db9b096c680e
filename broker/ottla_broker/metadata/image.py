"""The cluster as one broker knows it: an immutable picture at one revision of the metadata store. [P]

All components that use metadata (edges, services, the planner) read an image; none mutates one.
`watcher.py` makes the next image from a watched revision and tells subscribers what changed.

Each field names the section of the store that it shows (`section.py`); `table.py` reads that. A new kind of metadata
is a file in `sections/` and a field here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

from ottla_broker.acl import Pattern
from ottla_broker.authorizer import Rules
from ottla_broker.metadata.section import Family, Single
from ottla_broker.metadata.sections.acls import ACLS
from ottla_broker.metadata.sections.brokers import BROKERS, BrokerImage, Endpoint
from ottla_broker.metadata.sections.cluster import CLUSTER, RECOVERIES
from ottla_broker.metadata.sections.configs import BROKER_CONFIGS, GROUP_CONFIGS
from ottla_broker.metadata.sections.controller import CONTROLLER
from ottla_broker.metadata.sections.cordons import CORDONS
from ottla_broker.metadata.sections.members import MEMBERS, MemberImage
from ottla_broker.metadata.sections.partitions import PARTITIONS, PartitionImage
from ottla_broker.metadata.sections.quotas import QUOTAS
from ottla_broker.metadata.sections.removals import REMOVALS
from ottla_broker.metadata.sections.scram_credentials import SCRAM_CREDENTIALS, CredentialId
from ottla_broker.metadata.sections.topics import INTERNAL_TOPICS, TOPICS, TopicImage
from ottla_broker.metadata.values import Extra
from ottla_broker.quota import Entity
from ottla_core.ids import NO_BROKER, TopicPartition
from ottla_core.scram import Credential

__all__ = [
    "INTERNAL_TOPICS",
    "BrokerImage",
    "ClusterImage",
    "Endpoint",
    "MemberImage",
    "PartitionImage",
    "TopicImage",
]

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

#: In the metadata of a field: the sections that it shows, and for a Single which part of the value.
SECTIONS = "sections"
PART = "part"


def _nothing() -> Mapping[Any, Any]:
    return MappingProxyType({})


def _all_of(section: Family[K, V]) -> Mapping[K, V]:
    """A field that maps ids to values."""
    made: Any = field(default_factory=_nothing, metadata={SECTIONS: (section,)})
    return made  # type: ignore[no-any-return]


def _part_of(section: Single[V], part: Callable[[V], T], default: T) -> T:
    """A field with a part of the value, and the default without one."""
    made: Any = field(default=default, metadata={SECTIONS: (section,), PART: part})
    return made  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class ClusterImage:
    cluster_id: str = field(metadata={SECTIONS: (CLUSTER,), PART: str})
    revision: int = 0
    controller: int = _part_of(CONTROLLER, lambda elected: elected.broker_id, int(NO_BROKER))
    #: Create revision of `controller`: the controller epoch that fences every controller write.
    controller_revision: int = _part_of(CONTROLLER, lambda elected: elected.epoch, 0)
    brokers: Mapping[int, BrokerImage] = _all_of(BROKERS)
    #: Joined from two sections (`topic_update.py`), as are the names and what has no name.
    topics: Mapping[str, TopicImage] = field(
        default_factory=_nothing, metadata={SECTIONS: (TOPICS, PARTITIONS)}
    )
    names_by_id: Mapping[UUID, str] = field(default_factory=_nothing)
    #: Broker configuration set at run time; key "" holds what counts for all brokers.
    broker_configs: Mapping[str, Mapping[str, str]] = _all_of(BROKER_CONFIGS)
    #: Settings of consumer groups, by group id; a group with settings need not exist.
    group_configs: Mapping[str, Mapping[str, str]] = _all_of(GROUP_CONFIGS)

    members: Mapping[int, MemberImage] = _all_of(MEMBERS)
    #: Incarnation of the controller: its broker id alone would not distinguish it from its predecessor.
    controller_incarnation: UUID | None = _part_of(CONTROLLER, lambda elected: elected.incarnation, None)  # noqa: RUF009 (a Field)
    #: Mod revision of `removals`: each removal of a dead broker compares it, so that none goes unseen.
    removals_revision: int = _part_of(REMOVALS, lambda removal: removal.revision, 0)
    #: How often the store lost history for good and was made usable again (`recovery.py`).
    recoveries: int = _part_of(RECOVERIES, int, 0)
    #: Partitions by topic id and number that no topic has: about to be created, or left over.
    unnamed: Mapping[UUID, Mapping[int, PartitionImage]] = field(default_factory=_nothing)
    #: Brokers that get no new replicas.
    cordons: Mapping[int, Extra] = _all_of(CORDONS)
    #: What passwords of users are checked with.
    scram_credentials: Mapping[CredentialId, Credential] = _all_of(SCRAM_CREDENTIALS)
    #: Quotas of users and client ids, by name.
    quotas: Mapping[Entity, Mapping[str, float]] = _all_of(QUOTAS)
    #: The ACLs of each pattern that has any.
    acls: Mapping[Pattern, Rules] = _all_of(ACLS)

    def is_admitted(self, broker_id: int, incarnation: UUID | None = None) -> bool:
        """Whether the controller has admitted the broker as it is registered now (design rule 1)."""
        broker, member = self.brokers.get(broker_id), self.members.get(broker_id)
        if broker is None or member is None or broker.incarnation != member.incarnation:
            return False
        return incarnation is None or incarnation == broker.incarnation

    def admitted(self) -> list[BrokerImage]:
        """Brokers that are online and may get work, by id."""
        return [self.brokers[i] for i in sorted(self.brokers) if self.is_admitted(i)]

    def staying(self) -> list[BrokerImage]:
        """Admitted brokers that are not stopping, by id."""
        return [broker for broker in self.admitted() if not broker.stopping]

    def rack_of(self, broker_id: int) -> str | None:
        """Of an offline broker the one it was in when it was last online."""
        found = self.brokers.get(broker_id) or self.members.get(broker_id)
        return None if found is None else found.rack

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        name = self.names_by_id.get(topic_id)
        return None if name is None else self.topics.get(name)

    def partition(self, tp: TopicPartition) -> PartitionImage | None:
        topic = self.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic.partitions[tp.partition]
