"""Transactions of one producer: the calls to the coordinators, around `transaction_machine`. [S]"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from ottla_client.cluster import Cluster
from ottla_client.connection import exception_of
from ottla_client.coordinator import Coordinator, refusal
from ottla_client.errors import ClientError, CommitFailed, TransactionFailed
from ottla_client.prepared import PreparedTransaction
from ottla_client.producer_machine import ProducerMachine
from ottla_client.record import GroupMetadata, OffsetAndMetadata
from ottla_client.sender import Sender
from ottla_client.transaction_machine import Phase, TransactionMachine
from ottla_core.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    IllegalGeneration,
    RequestError,
    StaleMemberEpoch,
    UnknownMemberId,
)
from ottla_core.ids import TopicPartition
from ottla_core.pb import groups_pb2
from ottla_core.pb import transactions_pb2 as pb
from ottla_core.ports.clock import Clock

log = logging.getLogger(__name__)

_REFUSED_AS_MEMBER = (
    UnknownMemberId,
    IllegalGeneration,
    FencedInstanceId,
    FencedMemberEpoch,
    StaleMemberEpoch,
)

#: For the abort of a transaction that is open when the producer is closed; else it times out.
_STOP_TIMEOUT_S = 5.0


class Transactions:
    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        machine: TransactionMachine,
        producer_machine: ProducerMachine,
        sender: Sender,
        *,
        transaction_timeout_ms: int,
        timeout_s: float,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self.machine = machine
        self._producer_machine = producer_machine
        self._sender = sender
        self._transaction_timeout_ms = transaction_timeout_ms
        self._timeout_s = timeout_s
        self._coordinator = Coordinator(
            cluster, clock, machine.transactional_id, groups_pb2.COORDINATOR_TYPE_TRANSACTION
        )
        #: By group, so that each coordinator is looked up once.
        self._groups: dict[str, Coordinator] = {}

    async def start(self) -> None:
        """Get the producer's identity, which fences earlier producers of the transactional id."""
        request = pb.InitProducerRequest(
            transactional_id=self.machine.transactional_id,
            transaction_timeout_ms=self._transaction_timeout_ms,
        )
        answer = await self._coordinator.ask("InitProducer", request, self._timeout_s)
        self.machine.initialized(answer.producer.id, answer.producer.epoch)
        self._producer_machine.begin_epoch(answer.producer.id, answer.producer.epoch)

    async def stop(self) -> None:
        """Abort an open transaction, so that nobody has to wait for its timeout."""
        if self.machine.is_open:
            try:
                async with asyncio.timeout(_STOP_TIMEOUT_S):
                    await self.abort()
            except (ClientError, RequestError, TimeoutError) as error:
                log.warning("The open transaction was not aborted; it times out: %s", error)

    # ------------------------------------------------------------------ calls of the user

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        self.machine.begin()
        try:
            yield
            if self.machine.phase is not Phase.READY:  # Else the caller has ended it.
                await self.commit()
        except BaseException:
            # `is_open` is false after a fatal error, and if it is unknown whether the commit was executed.
            if self.machine.is_open:
                try:
                    await self.abort()
                except (ClientError, RequestError) as error:
                    log.warning("The transaction was not aborted: %s", error)
            raise

    async def commit(self) -> None:
        self.machine.check_end()
        await self._sender.flush()
        if self.machine.commit():
            await self._end(commit=True)

    async def abort(self) -> None:
        self.machine.abort()
        # Batches on the wire are not waited for: after the abort brokers refuse them by their epoch.
        self._producer_machine.abandon(TransactionFailed("The transaction of the record was aborted."))
        self._sender.schedule()
        await self._end(commit=False)

    async def prepare(self) -> PreparedTransaction | None:
        self.machine.check_end()
        await self._sender.flush()
        if not self.machine.check_prepare():
            return None
        made = PreparedTransaction(self.machine.transactional_id, *self.machine.identity)
        request = pb.PrepareTransactionRequest(
            transactional_id=made.transactional_id,
            producer=pb.ProducerIdentity(id=made.producer_id, epoch=made.producer_epoch),
        )
        try:
            await self._coordinator.ask("PrepareTransaction", request, self._timeout_s)
        except (ClientError, RequestError) as error:
            raise self.machine.failed(error) from error
        self.machine.prepared()
        return made

    async def _end(self, *, commit: bool) -> None:
        producer_id, epoch = self.machine.identity
        request = pb.EndTransactionRequest(
            transactional_id=self.machine.transactional_id,
            producer=pb.ProducerIdentity(id=producer_id, epoch=epoch),
            commit=commit,
        )
        try:
            answer = await self._coordinator.ask("EndTransaction", request, self._timeout_s)
        except (ClientError, RequestError) as error:
            raise self.machine.failed(error) from error
        self.machine.ended(answer.producer.id, answer.producer.epoch)
        self._producer_machine.begin_epoch(answer.producer.id, answer.producer.epoch)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupMetadata | str
    ) -> None:
        self.machine.check_write()
        if not offsets:
            return
        member = GroupMetadata(group) if isinstance(group, str) else group
        producer_id, epoch = self.machine.identity
        request = pb.TxnOffsetCommitRequest(
            transactional_id=self.machine.transactional_id,
            producer=pb.ProducerIdentity(id=producer_id, epoch=epoch),
            group=member.group_id,
            generation=member.generation,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
        )
        for (topic, partition), each in offsets.items():
            made = OffsetAndMetadata(each) if isinstance(each, int) else each
            if made.offset < 0:
                raise ValueError(f"Offsets start at 0, not at {made.offset}.")
            request.offsets.add(
                topic=topic,
                partition=partition,
                offset=made.offset,
                leader_epoch=made.leader_epoch,
                metadata=made.metadata,
            )
        coordinator = self._groups.get(member.group_id)
        if coordinator is None:
            coordinator = self._groups[member.group_id] = Coordinator(
                self._cluster, self._clock, member.group_id
            )
        try:
            await coordinator.ask("TxnOffsetCommit", request, self._timeout_s, _first_refusal)
        except _REFUSED_AS_MEMBER as error:
            failed = CommitFailed(
                f"The offsets were not committed: the consumer is no longer a member of the group ({error.message}) "
                "Abort the transaction; other members read these records again."
            )
            raise self.machine.failed(failed) from error
        except (ClientError, RequestError) as error:
            raise self.machine.failed(error) from error
        self.machine.written()


def _first_refusal(answer: Any) -> RequestError | None:
    found = refusal(answer)
    if found is not None:
        return found
    return next((exception_of(each.error) for each in answer.partitions if each.HasField("error")), None)
