"""Transactions: Write or Describe on the transactional id, rights on groups and topics, and on the cluster. [S]"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace

from ottla_broker.acl import CLUSTER_NAME, Operation
from ottla_broker.coordination.shard import TransactionMarker
from ottla_broker.group.messages import CommitReply, OffsetToCommit
from ottla_broker.metadata.image import BrokerImage
from ottla_broker.requests import Maybe, ProducerIdentity
from ottla_broker.service.access import CLUSTER, GROUP, TOPIC, TRANSACTIONAL_ID, Access
from ottla_broker.service.guarded.partly import Checked, topics_checked
from ottla_broker.service.transactions import TransactionService
from ottla_broker.steps import Steps, kept
from ottla_broker.txn.listing import EVERYTHING, ListingFilter
from ottla_broker.txn.messages import KeptTransaction, ListedTransaction
from ottla_core.errors import OperationNotAttempted, RequestError
from ottla_core.ids import TopicPartition


class GuardedTransactions:
    __slots__ = ("_access", "_service")

    def __init__(self, service: TransactionService, access: Access) -> None:
        self._service = service
        self._access = access

    def _check_write(self, transactional_id: str) -> None:
        self._access.check(Operation.WRITE, TRANSACTIONAL_ID, transactional_id)

    def find_coordinator(self, transactional_id: str) -> Maybe[BrokerImage]:
        self._access.check(Operation.DESCRIBE, TRANSACTIONAL_ID, transactional_id)
        return self._service.find_coordinator(transactional_id)

    # ------------------------------------------------------------------ producers

    async def init_producer(
        self,
        transactional_id: str,
        timeout_ms: int,
        current: ProducerIdentity | None = None,
    ) -> ProducerIdentity:
        self._check_write(transactional_id)
        return await self._service.init_producer(transactional_id, timeout_ms, current)

    async def init_or_keep(
        self,
        transactional_id: str,
        timeout_ms: int,
        current: ProducerIdentity | None,
        *,
        keep_prepared: bool,
    ) -> ProducerIdentity | KeptTransaction:
        self._check_write(transactional_id)
        return await self._service.init_or_keep(
            transactional_id, timeout_ms, current, keep_prepared=keep_prepared
        )

    async def prepare(self, transactional_id: str, producer: ProducerIdentity) -> None:
        self._check_write(transactional_id)
        await self._service.prepare(transactional_id, producer)

    async def end(
        self, transactional_id: str, producer: ProducerIdentity, *, commits: bool, v2: bool = False
    ) -> ProducerIdentity:
        self._check_write(transactional_id)
        return await self._service.end(transactional_id, producer, commits=commits, v2=v2)

    async def forget(self, transactional_id: str) -> None:
        self._check_write(transactional_id)
        await self._service.forget(transactional_id)

    # ------------------------------------------------------------------ partitions and offsets

    async def partitions_here(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
        v2: bool = False,
    ) -> Sequence[RequestError | None]:
        self._check_write(transactional_id)
        checked = topics_checked(self._access, Operation.WRITE, partitions)
        if not checked.is_whole:
            # As in Kafka: one that is refused, and none is added.
            return [error or OperationNotAttempted() for error in checked.errors]
        return await self._service.partitions_here(transactional_id, producer, partitions, adds=adds, v2=v2)

    async def add_offsets(self, transactional_id: str, producer: ProducerIdentity, group: str) -> None:
        self._check_write(transactional_id)
        self._access.check(Operation.READ, GROUP, group)
        await self._service.add_offsets(transactional_id, producer, group)

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
        self._check_write(transactional_id)
        self._access.check(Operation.READ, GROUP, group)
        checked = topics_checked(self._access, Operation.READ, (each.tp for each in offsets))
        if checked.is_refused:
            return CommitReply(checked.errors)
        reply = yield from self._service.commit_offsets(
            transactional_id,
            producer,
            group,
            generation,
            member_id,
            instance_id,
            checked.allowed(offsets),
            adds=adds,
        )
        if checked.is_whole:
            return reply
        return _merged(checked, reply)

    # ------------------------------------------------------------------ markers and administration

    async def write_markers(
        self, marker: TransactionMarker, partitions: Sequence[TopicPartition]
    ) -> Sequence[RequestError | None]:
        try:
            self._check_markers()
        except RequestError as error:
            return [error] * len(partitions)
        return await self._service.write_markers(marker, partitions)

    async def abort_hanging(self, tp: TopicPartition, first_offset: int) -> None:
        self._check_markers()
        await self._service.abort_hanging(tp, first_offset)

    def _check_markers(self) -> None:
        is_broker = self._access.allows(Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
        self._access.check_cluster(Operation.CLUSTER_ACTION if is_broker else Operation.ALTER)

    def list_transactions(
        self, wanted: ListingFilter = EVERYTHING, prefix: str = ""
    ) -> Steps[list[ListedTransaction]]:
        """Those that the caller may describe."""
        found = yield from self._service.list_transactions(wanted, prefix)
        allows = self._access.allows
        return (
            yield from kept(
                found, lambda each: allows(Operation.DESCRIBE, TRANSACTIONAL_ID, each.transactional_id)
            )
        )

    def now_ms(self) -> int:
        return self._service.now_ms()

    async def describe(self, transactional_id: str) -> ListedTransaction:
        """Without the topics that the caller may not describe."""
        self._access.check(Operation.DESCRIBE, TRANSACTIONAL_ID, transactional_id)
        found = await self._service.describe(transactional_id)
        allows = self._access.allows
        shown = (tp for tp in found.value.partitions if allows(Operation.DESCRIBE, TOPIC, tp.topic))
        return found._replace(value=replace(found.value, partitions=frozenset(shown)))


async def _merged(checked: Checked, reply: Maybe[CommitReply]) -> CommitReply:
    made = await reply if isinstance(reply, Awaitable) else reply
    return CommitReply(tuple(checked.merged(made.errors, lambda _, error: error)))
