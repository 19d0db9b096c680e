"""Reads and changes the brokers' state, through Ottla's own client. [A]

One connection per Cluster, kept while it answers. Callers use the protocols `TopicAdmin`, `GroupAdmin`
and `ClusterAdmin`, values of the pure modules, and two kinds of failure: `RequestError` (a broker refused) and
`BrokersAway` (no broker answered).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from ottla_client import Admin, NewTopic, Security, TopicPartition
from ottla_client.admin import TopicDescription
from ottla_client.errors import ClientError
from ottla_client.group_admin import GroupDescription
from ottla_client.rebalance import CannotPlace, Move
from ottla_client.rebalance import plan as plan_moves
from ottla_client.rebalance_layout import read_layout, start_moves
from ottla_client.rebalance_pace import Layout
from ottla_core.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    InvalidReplicationFactor,
    RequestTimedOut,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from ottla_operator import broker_users, rebalance_plan, user_plan
from ottla_operator.group_plan import Partition, SeenGroup, SeenMember
from ottla_operator.metrics import ACTIONS
from ottla_operator.plan import (
    Action,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    PlaceTopic,
    ResizeTopic,
    SeenPartition,
    SeenTopic,
)
from ottla_operator.rolling import Hosted
from ottla_operator.scaling import Step
from ottla_operator.user_plan import SeenUser

T = TypeVar("T")
#: A bootstrap address, and how to connect to it.
Way = tuple[str, Security | None]

#: A broker that is up answers in milliseconds; a change waits for etcd.
_TIMEOUT_S = 10.0
_MIN_ISR = "min.insync.replicas"


class BrokersAway(Exception):
    """No broker answered; the sentence says what was tried."""


@dataclass(frozen=True, slots=True)
class SeenCluster:
    cluster_id: str
    controller: int
    brokers: tuple[int, ...]
    #: Ids of the log directories of each live broker.
    directories: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Beat:
    """State that changes without the operator: live brokers, leaders, ISRs. Compared, never shown."""

    brokers: tuple[int, ...]
    controller: int
    #: Topic -> a digest of its partitions; small, because one is kept for each Cluster.
    topics: Mapping[str, int]
    partitions: int


class TopicAdmin(Protocol):
    async def topic(self, name: str) -> SeenTopic | None: ...

    async def do(self, action: Action) -> None: ...


class GroupAdmin(Protocol):
    async def group(self, group: str, topics: Sequence[str]) -> SeenGroup:
        """With committed offsets, and the ranges of all partitions of these topics and of what it reads."""

    async def offsets_at(self, partitions: Sequence[Partition], time_ms: int) -> dict[Partition, int]: ...

    async def commit(self, group: str, offsets: Mapping[Partition, int]) -> None: ...

    async def group_settings(self, group: str) -> dict[str, str]: ...

    async def set_group(self, group: str, changes: Mapping[str, str | None]) -> None:
        """None: unset."""


class UserAdmin(Protocol):
    async def user(self, user: str) -> SeenUser: ...

    async def change_user(self, action: user_plan.Action) -> None: ...


class ClusterAdmin(Protocol):
    async def cluster(self) -> SeenCluster: ...

    async def hosted(self) -> list[Hosted]: ...

    async def beat(self) -> Beat: ...

    async def layout(self) -> Layout: ...

    async def scale(self, step: Step) -> None:
        """Everything in the step but the pods."""

    async def rebalance(self, step: rebalance_plan.Step) -> None: ...


class Brokers(TopicAdmin, GroupAdmin, UserAdmin, ClusterAdmin):
    """The implementation, through `Admin`."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    @classmethod
    async def connect(cls, bootstrap: str, security: Security | None = None) -> Brokers:
        admin = Admin(
            bootstrap,
            request_timeout_ms=int(_TIMEOUT_S * 1000),
            security=security,
            client_id="ottla-operator",
        )
        try:
            await admin.start()
        except BaseException:
            await admin.stop()
            raise
        return cls(admin)

    async def close(self) -> None:
        await self._admin.stop()

    # ------------------------------------------------------------------ topics

    async def topic(self, name: str) -> SeenTopic | None:
        found = await self._describe(name)
        if found is None:
            return None
        entries = await self._admin.describe_configs(topic=name)
        overrides = {each.name: each.value or "" for each in entries if each.source == "topic"}
        moving = {each.tp: each for each in await self._admin.list_partition_reassignments([name])}
        seen = _seen(found)
        partitions = tuple(
            replace(
                each,
                removing=move.removing,
                adding=() if move.waiting else move.adding,
                planned=move.target if move.waiting else (),
            )
            if (move := moving.get(TopicPartition(name, each.partition))) is not None
            else each
            for each in seen.partitions
        )
        return replace(seen, partitions=partitions, overrides=overrides)

    async def do(self, action: Action) -> None:
        ACTIONS.labels("Topic", type(action).__name__).inc()
        match action:
            case CreateTopic():
                try:
                    await self._admin.create_topics([_new_topic(action)])
                except TopicAlreadyExists:
                    return  # a lost response, or another client created it: the next reconciliation checks
            case GrowTopic(name, total, assignment):
                await self._admin.create_partitions(name, total, replica_assignments=assignment)
            case AlterTopic(name, changes):
                await self._admin.alter_configs(changes, topic=name)
            case PlaceTopic(name, targets):
                await start_moves(self._admin, [Move(name, number, (), to) for number, to in targets.items()])
            case ResizeTopic(name, replicas):
                await self._resize(name, replicas)
            case DeleteTopic(name):
                try:
                    await self._admin.delete_topics([name])
                except UnknownTopicOrPartition:
                    return

    async def _resize(self, name: str, replicas: int) -> None:
        layout = await read_layout(self._admin)
        try:
            # On a thread: it takes a second with 50,000 partitions.
            moves = await asyncio.to_thread(
                plan_moves, layout.planned(), layout.partitions, replication={name: replicas}, balance=False
            )
        except CannotPlace as refused:
            raise InvalidReplicationFactor(str(refused)) from None
        await start_moves(self._admin, [move for move in moves if move.topic == name])

    async def _describe(self, name: str) -> TopicDescription | None:
        try:
            return (await self._admin.describe_topics([name]))[0]
        except UnknownTopicOrPartition:
            return None

    # ------------------------------------------------------------------ groups

    async def group(self, group: str, topics: Sequence[str]) -> SeenGroup:
        (found,) = await self._admin.describe_groups([group])
        committed = await self._admin.group_offsets(group)
        read = [tp for member in found.members for tp in member.partitions]
        partitions = await self._existing(sorted({*topics, *(tp.topic for tp in [*committed, *read])}))
        ends = await self._admin.list_offsets(dict.fromkeys(partitions, "latest"))
        starts = await self._admin.list_offsets(dict.fromkeys(partitions, "earliest"))
        seconds = await self._admin.group_lag_seconds(group, topics)
        return replace(
            _seen_group(found),
            seconds={(tp.topic, tp.partition): each for tp, each in seconds.items()},
            committed={(tp.topic, tp.partition): each.offset for tp, each in committed.items()},
            committed_ms={
                (tp.topic, tp.partition): each.commit_timestamp_ms for tp, each in committed.items()
            },
            ends={(tp.topic, tp.partition): at.offset for tp, at in ends.items()},
            starts={(tp.topic, tp.partition): at.offset for tp, at in starts.items()},
            settings=await self.group_settings(group),
        )

    async def offsets_at(self, partitions: Sequence[Partition], time_ms: int) -> dict[Partition, int]:
        wanted = {TopicPartition(*tp): time_ms for tp in partitions}
        found = await self._admin.list_offsets(wanted)
        return {(tp.topic, tp.partition): at.offset for tp, at in found.items()}

    async def commit(self, group: str, offsets: Mapping[Partition, int]) -> None:
        ACTIONS.labels("ConsumerGroup", "reset").inc()
        await self._admin.alter_group_offsets(group, {TopicPartition(*tp): at for tp, at in offsets.items()})

    async def group_settings(self, group: str) -> dict[str, str]:
        entries = await self._admin.describe_configs(group=group)
        return {each.name: each.value or "" for each in entries if each.source == "group"}

    async def set_group(self, group: str, changes: Mapping[str, str | None]) -> None:
        ACTIONS.labels("ConsumerGroup", "settings").inc()
        await self._admin.alter_configs(changes, group=group)

    async def _existing(self, topics: Sequence[str]) -> list[TopicPartition]:
        """Partitions of the topics that exist: a group may have committed offsets for a deleted topic."""
        found = []
        for topic in topics:
            described = await self._describe(topic)
            if described is not None:
                found += [TopicPartition(topic, each.partition) for each in described.partitions]
        return found

    async def user(self, user: str) -> SeenUser:
        return await broker_users.read_user(self._admin, user)

    async def change_user(self, action: user_plan.Action) -> None:
        await broker_users.change_user(self._admin, action)

    # ------------------------------------------------------------------ the cluster

    async def cluster(self) -> SeenCluster:
        found = await self._admin.describe_cluster()
        directories = {each.id: each.directories for each in found.brokers}
        return SeenCluster(found.cluster_id, found.controller_id, tuple(directories), directories)

    async def beat(self) -> Beat:
        cluster = await self._admin.describe_cluster()
        topics = await self._admin.describe_topics()
        digests = {
            topic.name: hash((topic.topic_id, tuple((p.leader, p.isr) for p in topic.partitions)))
            for topic in topics
        }
        live = tuple(sorted(each.id for each in cluster.brokers))
        return Beat(live, cluster.controller_id, digests, sum(len(topic.partitions) for topic in topics))

    async def layout(self) -> Layout:
        return await read_layout(self._admin)

    async def scale(self, step: Step) -> None:
        for broker in step.cordon:
            await self._admin.cordon_broker(broker)
        for broker in step.uncordon:
            await self._admin.uncordon_broker(broker)
        await start_moves(self._admin, step.moves)
        for broker in step.unregister:
            await self._admin.unregister_broker(broker)

    async def rebalance(self, step: rebalance_plan.Step) -> None:
        for broker in step.cordon:
            await self._admin.cordon_broker(broker)
        await start_moves(self._admin, step.moves)
        if step.cancel:
            # A move that ended meanwhile is an error of its partition only.
            await self._admin.alter_partition_reassignments({TopicPartition(*tp): None for tp in step.cancel})

    async def hosted(self) -> list[Hosted]:
        """Every partition, also internal ones, with its min.insync.replicas. Read only while pods are replaced."""
        made = []
        for topic in await self._admin.describe_topics():
            entries = await self._admin.describe_configs(topic=topic.name)
            min_isr = next((int(each.value or 1) for each in entries if each.name == _MIN_ISR), 1)
            made += [
                Hosted(f"{topic.name}-{each.partition}", each.replicas, each.isr, min_isr)
                for each in topic.partitions
            ]
        return made


def _new_topic(action: CreateTopic) -> NewTopic:
    if action.assignment:  # it says how many partitions and replicas there are
        return NewTopic(action.name, configs=action.config, replica_assignments=action.assignment)
    replicas = -1 if action.replicas is None else action.replicas
    return NewTopic(action.name, action.partitions, replicas, action.config)


def _seen(found: TopicDescription) -> SeenTopic:
    partitions = tuple(
        SeenPartition(each.partition, each.leader, each.leader_epoch, each.replicas, each.isr)
        for each in found.partitions
    )
    return SeenTopic(found.name, found.topic_id, found.internal, partitions)


def _seen_group(found: GroupDescription) -> SeenGroup:
    members = tuple(
        SeenMember(
            each.member_id,
            each.group_instance_id or "",
            each.client_id,
            each.client_host,
            each.session_timeout_ms,
            each.rebalance_timeout_ms,
            tuple((tp.topic, tp.partition) for tp in each.partitions),
            each.protocols,
            each.topics,
            each.topic_regex is not None,
        )
        for each in found.members
    )
    seen = SeenGroup(
        found.group, found.state, found.protocol, found.generation, found.coordinator_id, members
    )
    return replace(seen, type=found.group_type, assignor_failure=found.assignor_failure)


class Links:
    """One `Brokers` per Cluster, created on first use and recreated when it no longer answers."""

    def __init__(self, ways_of: Callable[[str, str], Awaitable[Sequence[Way]]]) -> None:
        """`ways_of` gives the ways to the brokers of a Cluster, the best one first."""
        self._ways_of = ways_of
        self._links: dict[tuple[str, str], Brokers] = {}
        self._connecting: dict[tuple[str, str], asyncio.Lock] = {}

    async def ask(self, namespace: str, cluster: str, question: Callable[[Brokers], Awaitable[T]]) -> T:
        """The answer of the cluster's brokers; raises BrokersAway if none answers."""
        key = namespace, cluster
        try:
            async with asyncio.timeout(3 * _TIMEOUT_S):
                return await question(await self._link(key))
        except (ClusterAuthorizationFailed, TopicAuthorizationFailed, GroupAuthorizationFailed):
            await self.forget(key)  # connected without a login, when the brokers had no authoriser yet
            raise
        except (ClientError, RequestTimedOut, TimeoutError) as failed:
            await self.forget(key)
            sentence = str(failed) or "request timed out"
            raise BrokersAway(f"The brokers of {cluster} do not answer: {sentence}") from None

    async def _link(self, key: tuple[str, str]) -> Brokers:
        async with self._connecting.setdefault(key, asyncio.Lock()):
            if key not in self._links:
                self._links[key] = await self._connect(await self._ways_of(*key))
            return self._links[key]

    async def _connect(self, ways: Sequence[Way]) -> Brokers:
        """While a Cluster is being secured, some of its brokers have the operator's listener and some do not."""
        first: Exception | None = None
        for bootstrap, security in ways:
            try:
                return await Brokers.connect(bootstrap, security)
            except (ClientError, RequestTimedOut, TimeoutError) as failed:
                first = first or failed
        raise first or TimeoutError()

    async def forget(self, key: tuple[str, str]) -> None:
        link = self._links.pop(key, None)
        if link is not None:
            await link.close()

    async def close(self) -> None:
        for key in list(self._links):
            await self.forget(key)
