"""The cluster as one broker knows it: an immutable picture at one revision of the metadata store. [P]

All components that use metadata (edges, services, the planner) read an image; none mutates one.
`metadata.py` makes the next image from a watched revision and tells subscribers what changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID

from ottla_core.ids import NO_BROKER, TopicPartition

#: Name and JSON value of each field that this version does not know.
Extra: TypeAlias = tuple[tuple[str, object], ...]

#: Topics that belong to the cluster itself: never auto-created by a client, never grown.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One advertised address. `listener` names it; Metadata answers with the listener it was asked on."""

    listener: str
    protocol: str  # "kafka" or "grpc"
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerImage:
    id: int
    incarnation: UUID
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    #: Create revision of `brokers/<id>`: names this registration.
    revision: int = 0
    #: Ids of its log directories, and those of them whose logs may lack their tail (design rule 2).
    directories: tuple[UUID, ...] = ()
    torn: tuple[UUID, ...] = ()
    #: Fields of a newer version, kept so that rewriting the value does not lose them.
    extra: Extra = ()
    #: It is about to stop: it gets no new work, and its leaderships move to other brokers.
    stopping: bool = False
    #: Partitions that it cannot serve because their log directory has failed: numbers by topic id. For these it is
    #: treated as offline, whatever else it serves.
    offline: Mapping[UUID, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    #: Mod revision: changes with every announcement of the same registration.
    told_at: int = 0

    def has_lost(self, topic_id: UUID, partition: int) -> bool:
        """Whether its log directory with this partition has failed."""
        return partition in self.offline.get(topic_id, ())

    def endpoint(self, protocol: str, listener: str | None = None) -> Endpoint | None:
        """The address for a protocol, preferring the listener that was asked."""
        matching = [e for e in self.endpoints if e.protocol == protocol]
        named = [e for e in matching if e.listener == listener]
        return next(iter(named or matching), None)


@dataclass(frozen=True, slots=True)
class MemberImage:
    """The cluster's record of a broker, online or not: `members/<id>` has no lease."""

    id: int
    #: The last incarnation that the controller admitted.
    incarnation: UUID
    directories: tuple[UUID, ...] = ()
    #: Mod revision: compared by writers that elect this broker or add it to an ISR.
    revision: int = 0
    extra: Extra = ()


@dataclass(frozen=True, slots=True)
class PartitionImage:
    replicas: tuple[int, ...]
    leader: int = NO_BROKER
    leader_epoch: int = 0
    isr: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    #: Mod revision of `partitions/<topic id>/<n>`: what the next writer compares. 0: the key is missing.
    revision: int = 0
    extra: Extra = ()
    #: Of ISR and ELR, those that came back with a torn log, while no whole replica is online (rule 2).
    torn: tuple[int, ...] = ()
    #: Replicas that the controller removed from ISR or ELR, until a leader has written after that: used only when all
    #: of ISR and ELR are torn (decision 9).
    dropped: tuple[int, ...] = ()

    def needed_in_sync(self, min_insync: int) -> int:
        """Effective `min.insync.replicas`: a broker's default may ask for more than there are replicas, and
        then nothing could ever be written. As in Kafka, the number of replicas is the maximum."""
        return min(min_insync, len(self.replicas))


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    id: UUID
    #: Only what was set for this topic; defaults come from the broker and from Kafka.
    config: Mapping[str, str]
    partitions: tuple[PartitionImage, ...]
    #: Mod revision of `topics/<name>`.
    revision: int = 0
    extra: Extra = ()

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class ClusterImage:
    cluster_id: str
    revision: int = 0
    controller: int = NO_BROKER
    #: Create revision of `controller`: the controller epoch that fences every controller write.
    controller_revision: int = 0
    brokers: Mapping[int, BrokerImage] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicImage] = field(default_factory=lambda: MappingProxyType({}))
    names_by_id: Mapping[UUID, str] = field(default_factory=lambda: MappingProxyType({}))
    #: Broker configuration set at run time; key "" holds what counts for all brokers.
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    #: Settings of consumer groups, by group id; a group with settings need not exist.
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))

    members: Mapping[int, MemberImage] = field(default_factory=lambda: MappingProxyType({}))
    #: Incarnation of the controller: its broker id alone would not distinguish it from its predecessor.
    controller_incarnation: UUID | None = None
    #: Mod revision of `removals`: each removal of a dead broker compares it, so that none goes unseen.
    removals_revision: int = 0
    #: How often the store lost history for good and was made usable again (`recovery.py`).
    recoveries: int = 0
    #: Partitions by topic id and number that no topic has: about to be created, or left over.
    unnamed: Mapping[UUID, Mapping[int, PartitionImage]] = field(default_factory=lambda: MappingProxyType({}))

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

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        name = self.names_by_id.get(topic_id)
        return None if name is None else self.topics.get(name)

    def partition(self, tp: TopicPartition) -> PartitionImage | None:
        topic = self.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic.partitions[tp.partition]
