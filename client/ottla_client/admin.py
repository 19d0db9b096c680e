"""Administration: topics, partitions, configuration, offsets, brokers, groups, transactions. [S]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from ottla_client.connected import Connected
from ottla_client.connection import exception_of
from ottla_client.leaders import Producers, delete_records, list_offsets
from ottla_client.record import CommittedOffset, OffsetAndMetadata, OffsetAndTimestamp
from ottla_client.security import Security
from ottla_core.errors import UnknownTopicOrPartition
from ottla_core.ids import TopicPartition
from ottla_core.pb import broker_pb2 as pb

if TYPE_CHECKING:
    from ottla_client.acl_admin import Acl, AclAdmin, AclFilter
    from ottla_client.cluster_admin import (
        ClusterAdmin,
        ClusterLoad,
        LogDir,
        PartitionOutcome,
        Reassignment,
        ReplicaSize,
    )
    from ottla_client.group_admin import GroupAdmin, GroupDescription, GroupListing, PartitionLag
    from ottla_client.quota_admin import Quota, QuotaAdmin, QuotaEntity
    from ottla_client.transaction_admin import (
        HangingTransaction,
        TransactionAdmin,
        TransactionDescription,
        TransactionListing,
    )
    from ottla_client.user_admin import UserAdmin, UserDescription

Named = TypeVar("Named")

_KINDS = {
    "set": pb.ConfigChange.KIND_SET,
    "delete": pb.ConfigChange.KIND_DELETE,
    "append": pb.ConfigChange.KIND_APPEND,
    "subtract": pb.ConfigChange.KIND_SUBTRACT,
}
_SPECS = {"earliest": -2, "latest": -1, "max_timestamp": -3}


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 takes the broker's default."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    #: Explicit replica placement: broker ids per partition.
    replica_assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: str
    internal: bool
    partitions: tuple[PartitionDescription, ...]

    @property
    def replication_factor(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    id: int
    host: str
    port: int
    rack: str
    kafka_host: str
    kafka_port: int
    #: Ids of its log directories; a broker that returns with other ids has lost its data.
    directories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerDescription, ...]


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    #: "topic", "group", "dynamic-broker", "static-broker" or "default".
    source: str
    type: str
    read_only: bool
    sensitive: bool
    documentation: str

    @property
    def is_default(self) -> bool:
        return self.source == "default"


class Admin(Connected):
    """Administration.

    >>> async with Admin("127.0.0.1:9192") as admin:
    ...     await admin.create_topics([NewTopic("greetings", num_partitions=3)])
    ...     print(await admin.list_topics())

    Methods that take several topics process all of them, then raise the first error.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "127.0.0.1:9192",
        *,
        request_timeout_ms: int = 30_000,
        client_id: str = "ottla-admin",
        security: Security | Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            bootstrap_servers,
            request_timeout_ms=request_timeout_ms,
            security=security,
            client_id=client_id,
        )

    # ------------------------------------------------------------------ areas, imported at their first use
    # A command of `ottla` needs one of them, and each costs some ten milliseconds.

    @cached_property
    def _users(self) -> UserAdmin:
        from ottla_client.user_admin import UserAdmin

        return UserAdmin(self._ask, self._change, self._timeout_ms)

    @cached_property
    def _groups(self) -> GroupAdmin:
        from ottla_client.group_admin import GroupAdmin

        return GroupAdmin(self._cluster, self._clock, self._request_timeout_s)

    @cached_property
    def _transactions(self) -> TransactionAdmin:
        from ottla_client.transaction_admin import TransactionAdmin

        return TransactionAdmin(self._cluster, self._clock, self._request_timeout_s)

    @cached_property
    def _moves(self) -> ClusterAdmin:
        from ottla_client.cluster_admin import ClusterAdmin

        return ClusterAdmin(self._cluster, self._ask, self._change, self._timeout_ms)

    @cached_property
    def _acls(self) -> AclAdmin:
        from ottla_client.acl_admin import AclAdmin

        return AclAdmin(self._ask, self._change)

    @cached_property
    def _quotas(self) -> QuotaAdmin:
        from ottla_client.quota_admin import QuotaAdmin

        return QuotaAdmin(self._ask, self._change)

    # ------------------------------------------------------------------ topics

    async def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False
    ) -> list[TopicDescription]:
        """Create topics in one call; a bare name takes the broker's defaults. Returns their descriptions."""
        wanted = [NewTopic(topic) if isinstance(topic, str) else topic for topic in _several(topics)]
        request = pb.CreateTopicsRequest(validate_only=validate_only, timeout_ms=self._timeout_ms)
        for topic in wanted:
            made = request.topics.add(
                name=topic.name,
                partitions=topic.num_partitions,
                replication_factor=topic.replication_factor,
                configs=topic.configs,
            )
            for partition, brokers in topic.replica_assignments.items():
                made.assignments.add(partition=partition, brokers=brokers)
        answer = await self._change("CreateTopics", request)
        _raise_first(answer.topics)
        if validate_only:
            return []
        return await self.describe_topics([topic.name for topic in wanted])

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics with all their records."""
        request = pb.DeleteTopicsRequest(names=_several(names), timeout_ms=self._timeout_ms)
        _raise_first((await self._change("DeleteTopics", request)).topics)

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """The names of all topics, in order."""
        answer = await self._ask("Metadata", pb.MetadataRequest())
        return [topic.name for topic in answer.topics if include_internal or not topic.internal]

    async def describe_topics(
        self, names: Iterable[str] | None = None, *, missing_ok: bool = False
    ) -> list[TopicDescription]:
        """Partitions, leaders and replicas; of all topics if none are named. With `missing_ok`, topics that do not
        exist are left out."""
        wanted = None if names is None else _several(names)
        if wanted is not None and not wanted:
            return []
        answer = await self._ask("Metadata", pb.MetadataRequest(topics=wanted))
        missing = UnknownTopicOrPartition.code
        there = [
            topic
            for topic in answer.topics
            if not (missing_ok and topic.HasField("error") and topic.error.code == missing)
        ]
        _raise_first(there)
        return [_description(topic) for topic in there]

    async def create_partitions(
        self,
        topic: str,
        total: int,
        *,
        replica_assignments: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Raise the number of a topic's partitions to `total`. Keys then map to other partitions.

        `replica_assignments` places the new partitions explicitly: broker ids by partition number.
        """
        request = pb.CreatePartitionsRequest(
            topic=topic, total=total, validate_only=validate_only, timeout_ms=self._timeout_ms
        )
        for partition, brokers in (replica_assignments or {}).items():
            request.assignments.add(partition=partition, brokers=brokers)
        _raise_first([(await self._change("CreatePartitions", request)).topic])

    # ------------------------------------------------------------------ configuration

    async def describe_configs(
        self, *, topic: str | None = None, broker: int | None = None, group: str | None = None
    ) -> list[ConfigEntry]:
        """All settings of a topic, a broker or a consumer group, with the source of each value."""
        request = pb.DescribeConfigsRequest(resources=[_resource(topic, broker, group)])
        resource = (await self._ask("DescribeConfigs", request)).resources[0]
        if resource.HasField("error"):
            raise exception_of(resource.error)
        return [
            ConfigEntry(
                entry.name,
                entry.value if entry.HasField("value") else None,
                entry.source,
                entry.type,
                entry.read_only,
                entry.sensitive,
                entry.documentation,
            )
            for entry in resource.entries
        ]

    async def alter_configs(
        self,
        configs: Mapping[str, str | None],
        *,
        topic: str | None = None,
        broker: int | None = None,
        group: str | None = None,
        all_brokers: bool = False,
        kind: str = "set",
        validate_only: bool = False,
    ) -> None:
        """Set values; None resets a setting to its default. Settings that are not named keep their values.

        `kind` may be "append" or "subtract" for settings that are lists, such as cleanup.policy.
        """
        if kind not in _KINDS:
            raise ValueError(f"kind={kind!r}: choose one of {', '.join(_KINDS)}.")
        request = pb.AlterConfigsRequest(
            resource=_resource(topic, broker, group, all_brokers=all_brokers), validate_only=validate_only
        )
        for name, value in configs.items():
            chosen = _KINDS["delete"] if value is None else _KINDS[kind]
            request.changes.add(kind=chosen, name=name, value=value or "")
        answer = await self._change("AlterConfigs", request)
        if answer.HasField("error"):
            raise exception_of(answer.error)

    # ------------------------------------------------------------------ offsets and records

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, str | int], *, isolation_level: str = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The offset for "earliest", "latest", "max_timestamp", or a time in ms; -1 if no record is that new."""
        timestamps: dict[TopicPartition, int] = {}
        for tp, spec in wanted.items():
            if isinstance(spec, str) and spec not in _SPECS:
                raise ValueError(f"{spec!r}: choose {', '.join(_SPECS)}, or a time in milliseconds.")
            timestamps[TopicPartition(*tp)] = _SPECS[spec] if isinstance(spec, str) else spec
        return await list_offsets(
            self._cluster,
            self._clock,
            timestamps,
            timeout_s=self._request_timeout_s,
            read_committed=isolation_level == "read_committed",
        )

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete all records before these offsets (-1: all records). Returns the new first offset of each partition."""
        wanted = {TopicPartition(*tp): offset for tp, offset in before.items()}
        return await delete_records(self._cluster, self._clock, wanted, timeout_s=self._request_timeout_s)

    # ------------------------------------------------------------------ groups

    async def list_groups(
        self, *, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> list[GroupListing]:
        """All groups of all brokers, or only those in the given states and of the given types (classic, consumer)."""
        return await self._groups.list_groups(states, types)

    async def describe_groups(self, groups: Iterable[str]) -> list[GroupDescription]:
        """State and members with their partitions. A group that does not exist is "Dead"."""
        return await self._groups.describe_groups(_several(groups, "group"))

    async def group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Committed offsets of these partitions, or of all. Partitions without one are omitted."""
        return await self._groups.offsets(group, partitions)

    async def group_lag(self, group: str) -> dict[TopicPartition, PartitionLag]:
        """The lag of the group, in all partitions that it reads or has committed offsets for."""
        return await self._groups.lag(group)

    async def group_lag_seconds(self, group: str, topics: Iterable[str] = ()) -> dict[TopicPartition, float]:
        """The lag of the group in time, where it is known: the age of the oldest record that is not committed. In
        partitions of `topics` without a committed offset, the age of their first record."""
        return await self._groups.lag_seconds(group, topics)

    async def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Set committed offsets of a group without members (else NonEmptyGroup). Creates the group if needed."""
        await self._groups.alter_offsets(group, offsets)

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete committed offsets of the group. Refused for topics that members subscribe to."""
        await self._groups.delete_offsets(group, partitions)

    async def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups with their offsets; only groups without members."""
        await self._groups.delete_groups(_several(groups, "group"))

    # ------------------------------------------------------------------ transactions

    async def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        min_duration_ms: int = 0,
        prefix: str = "",
    ) -> list[TransactionListing]:
        """All transactional ids of all brokers, or only those in the given states, of the given producer ids, whose
        transaction began at least so long ago, or whose id starts with `prefix`."""
        return await self._transactions.list_transactions(states, producer_ids, min_duration_ms, prefix)

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> list[TransactionDescription]:
        """State, producer and partitions of transactional ids; TransactionalIdNotFound if one does not exist."""
        return await self._transactions.describe_transactions(_several(transactional_ids, "transactional_id"))

    async def fence_producers(self, transactional_ids: Iterable[str]) -> None:
        """Fence the producers of these transactional ids; their open transactions are aborted."""
        await self._transactions.fence_producers(_several(transactional_ids, "transactional_id"))

    async def describe_producers(self, partitions: Iterable[TopicPartition]) -> Producers:
        """The producers that each partition remembers, with the first offsets of their open transactions."""
        return await self._transactions.describe_producers(TopicPartition(*tp) for tp in partitions)

    async def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], *, min_duration_ms: int = 900_000
    ) -> list[HangingTransaction]:
        """Transactions that are open in these partitions and that no coordinator knows there, whose last record is at
        least so old. The default is the longest timeout that brokers allow by default."""
        wanted = [TopicPartition(*tp) for tp in partitions]
        return await self._transactions.find_hanging_transactions(wanted, min_duration_ms)

    async def abort_transaction(self, partition: TopicPartition | tuple[str, int], first_offset: int) -> None:
        """Abort a hanging transaction in one partition. One that has a coordinator is aborted by `fence_producers`.

        If its coordinator has decided to commit it and its marker is late, this loses records of the transaction.
        """
        await self._transactions.abort_transaction(TopicPartition(*partition), first_offset)

    # ------------------------------------------------------------------ the cluster

    async def describe_cluster(self) -> ClusterDescription:
        """The cluster id, the controller (-1 if there is none), and the online brokers with their addresses."""
        answer = await self._ask("Metadata", pb.MetadataRequest(no_topics=True))
        return ClusterDescription(
            answer.cluster_id,
            answer.controller_id,
            tuple(
                BrokerDescription(
                    b.id, b.host, b.port, b.rack, b.kafka_host, b.kafka_port, tuple(b.directories)
                )
                for b in answer.brokers
            ),
        )

    async def describe_brokers(self, *, sizes: bool = True) -> ClusterLoad:
        """Every broker, online or not: whether it is cordoned, and its replicas, leaders and bytes.

        `sizes` asks each broker for the sizes of its logs; without it all bytes are -1.
        """
        return await self._moves.describe_brokers(sizes=sizes)

    async def describe_replicas(self, topics: Iterable[str] | None = None) -> list[ReplicaSize]:
        """Sizes of all replicas on the online brokers that answer, or only of these topics."""
        return await self._moves.describe_replicas(None if topics is None else _several(topics))

    async def describe_log_dirs(self, topics: Iterable[str] | None = None) -> list[LogDir]:
        """Log directories of the online brokers that answer, with all partitions in them, or only these topics'."""
        return await self._moves.describe_log_dirs(None if topics is None else _several(topics))

    async def describe_metrics(
        self, names: Iterable[str] = (), *, timeout_s: float | None = None
    ) -> dict[int, str]:
        """Metrics of each online broker that answers, by broker id, as text in Prometheus' format.

        `names` are metric families; without them all are returned. It needs the right Describe on the cluster.
        """
        wanted = self._request_timeout_s if timeout_s is None else timeout_s
        return await self._moves.describe_metrics(_several(names), wanted)

    async def alter_replica_log_dirs(
        self, targets: Mapping[tuple[int, TopicPartition], str]
    ) -> list[PartitionOutcome]:
        """Move partitions of brokers to other log directories: (broker, partition) to path.

        Returns when the copies have begun, with the outcome of each; raises nothing for single partitions.
        `describe_log_dirs` shows the copies while they are on their way.
        """
        return await self._moves.alter_log_dirs(targets)

    async def alter_partition_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        keep_replication_factor: bool = False,
    ) -> list[PartitionOutcome]:
        """Move partitions to these brokers, the preferred leader first; None cancels a move.

        Returns when the moves have begun, with the outcome of each partition; raises nothing for single partitions.
        """
        return await self._moves.alter_reassignments(targets, keep_replication_factor=keep_replication_factor)

    async def list_partition_reassignments(self, topics: Iterable[str] | None = None) -> list[Reassignment]:
        """Partitions in motion, with the bytes that each added replica has copied."""
        return await self._moves.list_reassignments(None if topics is None else _several(topics))

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> list[PartitionOutcome]:
        """Elect the preferred replicas of these partitions, or of all. Outcomes of all that needed an election.

        `unclean` elects a replica that is not in sync for partitions without a leader: records may be lost.
        """
        return await self._moves.elect_leaders(partitions, unclean=unclean)

    async def cordon_broker(self, broker: int) -> None:
        """The broker gets no new replicas from now on; it keeps those that it has."""
        await self._moves.cordon(broker)

    async def uncordon_broker(self, broker: int) -> None:
        """The broker may get new replicas again."""
        await self._moves.uncordon(broker)

    async def unregister_broker(self, broker: int) -> None:
        """Remove an offline broker without replicas from the cluster's record."""
        await self._moves.unregister(broker)

    # ------------------------------------------------------------------ users

    async def describe_users(self, users: Iterable[str] = ()) -> list[UserDescription]:
        """These users, or all, with their mechanisms. ResourceNotFound if one does not exist."""
        return await self._users.describe(_several(users, "user"))

    async def set_password(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Iterable[str] = ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        iterations: int = 4096,
    ) -> None:
        """Create the user, or replace the password. The password itself is not sent."""
        await self._users.set_password(user, password, _several(mechanisms, "mechanism"), iterations)

    async def delete_user(self, user: str, mechanisms: Iterable[str] | None = None) -> None:
        """Delete the credentials of these mechanisms, or all of the user. ResourceNotFound if there are none."""
        if mechanisms is None:
            (found,) = await self._users.describe([user])
            mechanisms = found.mechanisms
        await self._users.delete(user, mechanisms)

    @property
    def _timeout_ms(self) -> int:
        return int(self._request_timeout_s * 1000)

    # ------------------------------------------------------------------ ACLs

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Create ACLs; those that exist already count as created."""
        await self._acls.create(acls)

    async def describe_acls(self, wanted: AclFilter | None = None) -> list[Acl]:
        """The ACLs that match, or all of them."""
        return await self._acls.describe(wanted or AclFilter())

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[Acl]:
        """Delete the ACLs that any of the filters matches. Returns them."""
        return await self._acls.delete(filters)

    # ------------------------------------------------------------------ quotas

    async def describe_quotas(self, entity: QuotaEntity | None = None) -> list[Quota]:
        """Quotas of the entities that have these names, whatever others they have; all of them without any."""
        from ottla_client.quota_admin import QuotaEntity

        return await self._quotas.describe(entity or QuotaEntity())

    async def alter_quotas(
        self, entity: QuotaEntity, values: Mapping[str, float], *, remove: Iterable[str] = ()
    ) -> None:
        """Set quotas of one entity and remove others."""
        await self._quotas.alter(entity, values, remove)

    # ------------------------------------------------------------------ calls

    async def _ask(self, method: str, request: Any) -> Any:
        """A read-only call: retried until a broker answers."""
        return await self._cluster.call(method, request, timeout_s=self._request_timeout_s)

    async def _change(self, method: str, request: Any) -> Any:
        """A change: tried once, because the change may have been made even if its response was lost."""
        return await self._cluster.call(method, request, timeout_s=self._request_timeout_s, patient=False)


def _several(named: Iterable[Named], what: str = "topic") -> list[Named]:
    """As a list; refuses a single str, which would be iterated by letters."""
    if isinstance(named, str):
        raise TypeError(f"Expected a list of {what} names, got the text {named!r}.")
    return list(named)


def _raise_first(outcomes: Iterable[Any]) -> None:
    for outcome in outcomes:
        if outcome.HasField("error"):
            raise exception_of(outcome.error)


def _resource(
    topic: str | None, broker: int | None, group: str | None, *, all_brokers: bool = False
) -> pb.ConfigResource:
    if (topic is not None) + (broker is not None) + (group is not None) + all_brokers != 1:
        raise ValueError("Name one of: topic, broker, group, all_brokers.")
    if group is not None:
        return pb.ConfigResource(type=pb.CONFIG_RESOURCE_TYPE_GROUP, name=group)
    if topic is not None:
        return pb.ConfigResource(type=pb.CONFIG_RESOURCE_TYPE_TOPIC, name=topic)
    return pb.ConfigResource(type=pb.CONFIG_RESOURCE_TYPE_BROKER, name="" if broker is None else str(broker))


def _description(topic: pb.TopicInfo) -> TopicDescription:
    return TopicDescription(
        topic.name,
        topic.topic_id,
        topic.internal,
        tuple(
            PartitionDescription(
                info.partition,
                info.leader,
                info.leader_epoch,
                tuple(info.replicas),
                tuple(info.isr),
                tuple(info.offline),
            )
            for info in topic.partitions
        ),
    )
