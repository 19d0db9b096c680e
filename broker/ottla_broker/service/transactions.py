"""Transactions, for both edges: finds the coordinator, validates requests, passes them to the id's shard. [S]

A transactional id belongs to one partition of `__transaction_state`; the broker that leads the partition coordinates it
(`internal_topic`). Leaders of other partitions ask the coordinator over the internal listener (`partitions_anywhere`);
markers go the other way (`txn_markers`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from uuid import UUID

from ottla_broker.config import BrokerConfig
from ottla_broker.coordination.runtime import Runtime
from ottla_broker.coordination.shard import TransactionMarker
from ottla_broker.event_loop import awaited, settled
from ottla_broker.group.messages import CommitReply, OffsetToCommit
from ottla_broker.membership.broker_rpc import Body, BrokerRpc
from ottla_broker.metadata.image import BrokerImage, ClusterImage
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.metrics import TransactionsProbe
from ottla_broker.partition.host import PartitionHost
from ottla_broker.requests import Maybe, ProducerIdentity
from ottla_broker.service.groups import OFFSETS_TOPIC, GroupService
from ottla_broker.service.internal_topic import InternalTopic
from ottla_broker.service.producer_ids import ProducerIds
from ottla_broker.service.topics import TopicService
from ottla_broker.service.transaction_owners import TransactionOwners
from ottla_broker.service.txn_markers import TransactionMarkers
from ottla_broker.steps import PARTITIONS_PER_STEP, Steps
from ottla_broker.txn.listing import EVERYTHING, ListingFilter
from ottla_broker.txn.messages import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    ForgetTransactionalId,
    InitProducer,
    KeptTransaction,
    ListedTransaction,
    ListTransactions,
    NeedsProducerId,
    PartitionsReply,
    PrepareTransaction,
    VerifyPartitions,
)
from ottla_broker.txn.shard import TransactionShard
from ottla_broker.txn.transaction import TRANSACTIONS_V2, TWO_PHASE_TIMEOUT_MS, State
from ottla_core.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidRequest,
    InvalidTransactionTimeout,
    NotCoordinator,
    RequestError,
    error_from_code,
)
from ottla_core.ids import TopicPartition
from ottla_core.ports.clock import Clock
from ottla_core.ports.offload import Offload
from ottla_core.ports.peers import PeerUnavailable

TRANSACTIONS_TOPIC = "__transaction_state"

_NO_IDS: Mapping[str, UUID] = MappingProxyType({})

_RPC = "transaction_partitions"
_RPC_TIMEOUT_S = 5.0
#: Requests to other coordinators at once; below the number that one accepts (`broker_rpc.ANSWERING_OF_KIND_MAX`).
_REQUESTS_MAX = 40
#: Records hold texts of up to 32,767 bytes, and a character has up to four.
_ID_CHARS_MAX = 8_000

#: Transactional ids that are filtered in one slice; one costs a microsecond.
_LISTED_PER_STEP = 8 * PARTITIONS_PER_STEP
#: The same with a pattern, which a client may have made costly (`linear_regex`).
_MATCHED_PER_STEP = 4


class TransactionService:
    def __init__(
        self,
        config: BrokerConfig,
        metadata: Metadata,
        topics: TopicService,
        groups: GroupService,
        host: PartitionHost,
        rpc: BrokerRpc,
        producer_ids: ProducerIds,
        clock: Clock,
        offload: Offload,
        probe: TransactionsProbe,
    ) -> None:
        settings = config.transactions
        self._broker_id = config.process.broker_id
        self._timeout_max_ms = config.log_dirs.transaction_max_timeout_ms
        self._metadata = metadata
        self._groups = groups
        self._rpc = rpc
        self._producer_ids = producer_ids
        self._probe = probe
        self._clock = clock
        self._asking = asyncio.Semaphore(_REQUESTS_MAX)
        self._markers = TransactionMarkers(self._broker_id, host, metadata, groups, rpc, clock)
        self._topic = InternalTopic(
            TRANSACTIONS_TOPIC,
            metadata,
            topics,
            partitions=settings.partitions,
            replication_factor=settings.replication_factor,
            config={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "segment.bytes": str(settings.segment_bytes),
            },
        )
        self._runtime = Runtime(
            TRANSACTIONS_TOPIC,
            host,
            clock,
            offload,
            probe,
            lambda: TransactionShard(settings, probe, self._state_bytes),
            commit_timeout_s=config.groups.commit_timeout_ms / 1000,
            perform=self._markers.deliver,
        )
        self.owners = TransactionOwners(
            TRANSACTIONS_TOPIC, self._broker_id, metadata, self._runtime, rpc, clock, self._markers.abort_at
        )
        rpc.answered_by(_RPC, self._answer_partitions)

    # ------------------------------------------------------------------ life

    def on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """Called after the partitions were reconciled with the image."""
        self._runtime.on_image(old, new)

    def close(self) -> None:
        self._runtime.close()

    def _state_bytes(self) -> int:
        return sum(shard.bytes for _, shard in self._runtime.ready() if isinstance(shard, TransactionShard))

    def refresh_metrics(self) -> None:
        states = dict.fromkeys(State, 0)
        for _, shard in self._runtime.ready():
            if isinstance(shard, TransactionShard):
                for state, count in shard.states().items():
                    states[state] += count
        self._probe.shards = len(self._runtime)
        self._probe.state_bytes = self._state_bytes()
        for state, count in states.items():
            self._probe.transactions.of(state.title).n = count

    # ------------------------------------------------------------------ producers

    def find_coordinator(self, transactional_id: str) -> Maybe[BrokerImage]:
        """The broker that coordinates the transactional id, whether it exists or not."""
        _check_id(transactional_id)
        return self._topic.locate(transactional_id)

    async def init_producer(
        self,
        transactional_id: str,
        timeout_ms: int,
        current: ProducerIdentity | None = None,
    ) -> ProducerIdentity:
        """An identity that fences all earlier producers of this transactional id."""
        made = await self.init_or_keep(transactional_id, timeout_ms, current, keep_prepared=False)
        return made.producer if isinstance(made, KeptTransaction) else made

    async def init_or_keep(
        self,
        transactional_id: str,
        timeout_ms: int,
        current: ProducerIdentity | None,
        *,
        keep_prepared: bool,
    ) -> ProducerIdentity | KeptTransaction:
        """The same; with `keep_prepared`, a prepared transaction stays open and its identity is returned."""
        _check_id(transactional_id)
        # The longest timeout of all stands for a prepared transaction (KIP-939).
        longest_ms = min(self._timeout_max_ms, TWO_PHASE_TIMEOUT_MS - 1)
        if not 0 < timeout_ms <= longest_ms:
            raise InvalidTransactionTimeout(
                f"A transaction timeout of {timeout_ms} ms is not within 1 and {longest_ms} ms "
                "(transaction.max.timeout.ms)."
            )
        reply: ProducerIdentity | KeptTransaction = await self._ask_with_id(
            InitProducer(transactional_id, timeout_ms, current, keep_prepared)
        )
        return reply

    async def prepare(self, transactional_id: str, producer: ProducerIdentity) -> None:
        """Hold the transaction open without its producer, until any process ends it by name."""
        _check_id(transactional_id)
        await self._ask(PrepareTransaction(transactional_id, producer))

    async def end(
        self, transactional_id: str, producer: ProducerIdentity, *, commits: bool, v2: bool = False
    ) -> ProducerIdentity:
        """Decide the transaction. The identity is the one to continue with, a new one with transactions v2."""
        _check_id(transactional_id)
        request = EndTransaction(transactional_id, producer, commits, TRANSACTIONS_V2 if v2 else 0)
        identity: ProducerIdentity = await self._ask_with_id(request)
        return identity

    async def _ask_with_id(self, request: InitProducer | EndTransaction) -> Any:
        reply = await self._ask(request)
        if isinstance(reply, NeedsProducerId):
            reply = await self._ask(replace(request, fresh_id=await self._producer_ids.next()))
        return reply

    # ------------------------------------------------------------------ partitions and offsets

    async def partitions_here(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
        v2: bool = False,
        topic_ids: Mapping[str, UUID] = _NO_IDS,
    ) -> Sequence[RequestError | None]:
        """Add partitions to a transaction that this broker coordinates, or verify that they are part of it.

        `topic_ids` are those that the leader of the partitions knows. A partition that this broker's image does not
        show yet is refused: its marker would be taken for one of a deleted topic (`txn_markers`), and never written.
        """
        _check_id(transactional_id)
        known = tuple(tp for tp in partitions if self._shows(tp, topic_ids.get(tp.topic)))
        errors = dict[TopicPartition, RequestError | None]()
        if known:
            request: AddPartitions | VerifyPartitions = VerifyPartitions(transactional_id, producer, known)
            if adds:
                request = AddPartitions(transactional_id, producer, known, TRANSACTIONS_V2 if v2 else 0)
            reply: PartitionsReply = await self._ask(request)
            errors.update(zip(known, reply.errors, strict=True))
        unseen = CoordinatorNotAvailable("The coordinator does not know the partition yet; try again.")
        return [errors.get(tp, unseen) for tp in partitions]

    def _shows(self, tp: TopicPartition, topic_id: UUID | None) -> bool:
        """Whether the image has the partition, and of the topic with this id if one is given."""
        image = self._metadata.image
        return image.partition(tp) is not None and topic_id in (None, image.topics[tp.topic].id)

    async def partitions_anywhere(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Sequence[RequestError | None]:
        """The same, wherever the coordinator is; a client that leaves adding to the leader has transactions v2."""
        leader = self._topic.locate(transactional_id)
        coordinator = (await leader if isinstance(leader, Awaitable) else leader).id
        if coordinator == self._broker_id:
            return await self.partitions_here(transactional_id, producer, partitions, adds=adds, v2=adds)
        topics = self._metadata.image.topics
        body = {
            "id": transactional_id,
            "producer": list(producer),
            "partitions": [[tp.topic, tp.partition] for tp in partitions],
            "topic_ids": {tp.topic: topics[tp.topic].id.hex for tp in partitions if tp.topic in topics},
            "adds": adds,
        }
        try:
            async with self._asking:
                rows = await self._rpc.ask(coordinator, _RPC, body, _RPC_TIMEOUT_S)
        except PeerUnavailable as error:
            raise CoordinatorNotAvailable(str(error)) from None
        if len(rows) != len(partitions):
            raise CoordinatorNotAvailable(f"Broker {coordinator} sent an incomplete response.")
        return [None if row is None else error_from_code(int(row[0]), str(row[1])) for row in rows]

    async def _answer_partitions(self, body: Body) -> object:
        producer_id, epoch = body["producer"]
        errors = await self.partitions_here(
            str(body["id"]),
            ProducerIdentity(int(producer_id), int(epoch)),
            [TopicPartition(str(topic), int(index)) for topic, index in body["partitions"]],
            adds=bool(body["adds"]),
            v2=bool(body["adds"]),
            # Brokers of an older version do not name them.
            topic_ids={str(name): UUID(str(id_)) for name, id_ in body.get("topic_ids", {}).items()},
        )
        return [None if error is None else [error.code, error.message] for error in errors]

    async def add_offsets(self, transactional_id: str, producer: ProducerIdentity, group: str) -> None:
        """The producer is about to commit offsets of this group."""
        located = self._groups.find_coordinator(group)
        if isinstance(located, Awaitable):
            await located  # It creates the topic.
        (error,) = await self.partitions_here(
            transactional_id, producer, [self._offsets_partition(group)], adds=True
        )
        if error is not None:
            raise error

    def commit_offsets(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        group: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        offsets: Sequence[OffsetToCommit],
        *,
        adds: bool,
    ) -> Steps[Maybe[CommitReply]]:
        """Commit offsets that become visible when the transaction commits. This broker coordinates the group."""
        verification = self._groups.begin_verification(group, producer)
        try:
            (error,) = yield from awaited(
                self.partitions_anywhere(
                    transactional_id, producer, [self._offsets_partition(group)], adds=adds
                )
            )
            if error is not None:
                raise error
            return (
                yield from self._groups.commit_in_steps(
                    group,
                    generation,
                    member_id,
                    instance_id,
                    offsets,
                    producer=producer,
                    verification=verification,
                )
            )
        finally:
            verification.end()

    def _offsets_partition(self, group: str) -> TopicPartition:
        return TopicPartition(OFFSETS_TOPIC, self._groups.partition_of(group))

    # ------------------------------------------------------------------ markers and administration

    async def write_markers(
        self, marker: TransactionMarker, partitions: Sequence[TopicPartition]
    ) -> Sequence[RequestError | None]:
        """Write markers to partitions that this broker leads."""
        return await self._markers.write(marker, partitions)

    async def abort_hanging(self, tp: TopicPartition, first_offset: int) -> None:
        """Abort the transaction that begins at this offset of a partition that this broker leads."""
        await self._markers.abort_at(tp, first_offset)

    async def forget(self, transactional_id: str) -> None:
        """Forget an id that nobody uses again, and whose last transaction has ended."""
        _check_id(transactional_id)
        await self._ask(ForgetTransactionalId(transactional_id))

    def list_transactions(
        self, wanted: ListingFilter = EVERYTHING, prefix: str = ""
    ) -> Steps[list[ListedTransaction]]:
        """The transactional ids that this broker coordinates and that start with `prefix`."""
        if self._runtime.is_loading:
            raise CoordinatorLoadInProgress()
        found: list[ListedTransaction] = []
        for index, _ in list(self._runtime.ready()):
            try:
                listed = yield from settled(self._runtime.ask(index, ListTransactions()))
            except NotCoordinator:
                continue  # The partition has moved: the new coordinator lists its transactions.
            if isinstance(listed, NotCoordinator):
                continue
            if isinstance(listed, RequestError):
                raise listed
            now_ms = self._clock.wall_ms()
            per_step = _LISTED_PER_STEP if wanted.pattern is None else _MATCHED_PER_STEP
            for at in range(0, len(listed.transactions), per_step):
                yield None
                for name, txn in listed.transactions[at : at + per_step]:
                    each = ListedTransaction(name, txn)
                    if name.startswith(prefix) and wanted.matches(each, now_ms):
                        found.append(each)
        return found

    def now_ms(self) -> int:
        """The wall clock that transactions are timed with."""
        return self._clock.wall_ms()

    async def describe(self, transactional_id: str) -> ListedTransaction:
        _check_id(transactional_id)
        found: ListedTransaction = await self._ask(DescribeTransaction(transactional_id))
        return found

    async def _ask(self, request: Any) -> Any:
        index = self._topic.partition_of(request.transactional_id)
        return await _settled(self._runtime.ask(index, request))


async def _settled(reply: Maybe[Any]) -> Any:
    found = await reply if isinstance(reply, Awaitable) else reply
    if isinstance(found, RequestError):
        raise found
    return found


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise InvalidRequest("The transactional id must not be empty.")
    if len(transactional_id) > _ID_CHARS_MAX:
        raise InvalidRequest(f"A transactional id has at most {_ID_CHARS_MAX} characters.")
