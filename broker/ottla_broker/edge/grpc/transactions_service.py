"""`ottla.v1.Transactions`: transactions on the native protocol, translated to the transaction service and back. [S]

Clients of this protocol always have transactions v2 (KIP-890), so leaders and group coordinators add partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import groupby
from typing import Any, Protocol

from ottla_broker.edge.grpc.groups_service import committed_offset, offset_to_commit
from ottla_broker.edge.grpc.log_service import Records
from ottla_broker.edge.grpc.native_service import NativeService
from ottla_broker.edge.grpc.refusal import guarded
from ottla_broker.edge.grpc.translation import error_message
from ottla_broker.edge.grpc.visits import filled, in_slices, next_slice
from ottla_broker.group import messages
from ottla_broker.log.producers import ProducerDescription
from ottla_broker.requests import ProducerIdentity
from ottla_broker.service.transactions import TransactionService
from ottla_broker.txn.listing import ListingFilter
from ottla_broker.txn.messages import KeptTransaction, ListedTransaction
from ottla_broker.txn.transaction import Transaction
from ottla_broker.visits import stepped
from ottla_core.errors import InvalidRequest, RequestError
from ottla_core.ids import TopicPartition
from ottla_core.pb import broker_pb2
from ottla_core.pb import transactions_pb2 as pb

TRANSACTIONS_SERVICE = "ottla.v1.Transactions"
#: The method in the proto, the method here, and its request.
TRANSACTIONS_CALLS: dict[str, tuple[str, Any]] = {
    "InitProducer": ("init_producer", pb.InitProducerRequest),
    "PrepareTransaction": ("prepare_transaction", pb.PrepareTransactionRequest),
    "ForgetTransactionalIds": ("forget_transactional_ids", pb.ForgetTransactionalIdsRequest),
    "EndTransaction": ("end_transaction", pb.EndTransactionRequest),
    "TxnOffsetCommit": ("txn_offset_commit", pb.TxnOffsetCommitRequest),
    "ListTransactions": ("list_transactions", pb.ListTransactionsRequest),
    "DescribeTransactions": ("describe_transactions", pb.DescribeTransactionsRequest),
    "DescribeProducers": ("describe_producers", pb.DescribeProducersRequest),
    "AbortTransaction": ("abort_transaction", pb.AbortTransactionRequest),
}
#: Partitions described in one turn of the loop: each may remember many producers.
_PARTITIONS_PER_TURN = 16
#: Transactional ids in one request to forget them: some ms of work.
_FORGET_MAX = 1000


class TransactionServices(Protocol):
    """The services object, as far as this service uses it."""

    @property
    def transactions(self) -> TransactionService: ...

    @property
    def records(self) -> Records: ...

    @property
    def broker_id(self) -> int: ...


class TransactionsService(NativeService[TransactionServices]):
    # ------------------------------------------------------------------ producers

    @guarded
    async def init_producer(self, request: pb.InitProducerRequest, context: Any) -> pb.InitProducerResponse:
        try:
            made = await self._enter(context).transactions.init_or_keep(
                request.transactional_id,
                request.transaction_timeout_ms,
                _identity(request.current) if request.HasField("current") else None,
                keep_prepared=request.keep_prepared,
            )
        except RequestError as error:
            return pb.InitProducerResponse(error=error_message(error))
        if isinstance(made, KeptTransaction):
            kept = _producer(made.producer)
            return pb.InitProducerResponse(producer=kept, ongoing=kept)
        return pb.InitProducerResponse(producer=_producer(made))

    @guarded
    async def prepare_transaction(
        self, request: pb.PrepareTransactionRequest, context: Any
    ) -> pb.PrepareTransactionResponse:
        try:
            await self._enter(context).transactions.prepare(
                request.transactional_id, _identity(request.producer)
            )
        except RequestError as error:
            return pb.PrepareTransactionResponse(error=error_message(error))
        return pb.PrepareTransactionResponse()

    @guarded
    async def end_transaction(
        self, request: pb.EndTransactionRequest, context: Any
    ) -> pb.EndTransactionResponse:
        try:
            after = await self._enter(context).transactions.end(
                request.transactional_id, _identity(request.producer), commits=request.commit, v2=True
            )
        except RequestError as error:
            return pb.EndTransactionResponse(error=error_message(error))
        return pb.EndTransactionResponse(producer=_producer(after))

    @guarded
    async def txn_offset_commit(
        self, request: pb.TxnOffsetCommitRequest, context: Any
    ) -> pb.TxnOffsetCommitResponse:
        offsets = await in_slices(self.scheduler, offset_to_commit, request.offsets)
        from_outside = not request.member_id and request.generation <= 0
        try:
            transactions = self._enter(context).transactions
            reply = await stepped(
                self.scheduler,
                transactions.commit_offsets(
                    request.transactional_id,
                    _identity(request.producer),
                    request.group,
                    messages.NO_GENERATION if from_outside else request.generation,
                    request.member_id,
                    request.group_instance_id or None,
                    offsets,
                    adds=True,
                ),
            )
            if isinstance(reply, Awaitable):
                reply = await reply
        except RequestError as error:
            return pb.TxnOffsetCommitResponse(error=error_message(error))
        response = pb.TxnOffsetCommitResponse()
        await filled(
            self.scheduler,
            response.partitions,
            committed_offset,
            list(zip(offsets, reply.errors, strict=True)),
        )
        return response

    # ------------------------------------------------------------------ administration

    @guarded
    async def forget_transactional_ids(
        self, request: pb.ForgetTransactionalIdsRequest, context: Any
    ) -> pb.ForgetTransactionalIdsResponse:
        transactions = self._enter(context).transactions
        wanted = list(request.transactional_ids)
        outcomes: list[object] = [
            InvalidRequest(f"Name at most {_FORGET_MAX} transactional ids at once.") for _ in wanted
        ]
        if len(wanted) <= _FORGET_MAX:
            forgetting = (transactions.forget(each) for each in wanted)
            outcomes = list(await asyncio.gather(*forgetting, return_exceptions=True))
        response = pb.ForgetTransactionalIdsResponse()
        for transactional_id, outcome in zip(wanted, outcomes, strict=True):
            answer = response.forgotten.add(transactional_id=transactional_id)
            if isinstance(outcome, RequestError):
                answer.error.CopyFrom(error_message(outcome))
            elif isinstance(outcome, BaseException):
                raise outcome
        return response

    @guarded
    async def list_transactions(
        self, request: pb.ListTransactionsRequest, context: Any
    ) -> pb.ListTransactionsResponse:
        transactions = self._enter(context).transactions
        wanted = ListingFilter(request.states, request.producer_ids, request.min_duration_ms or -1)
        try:
            found = await stepped(self.scheduler, transactions.list_transactions(wanted, request.prefix))
        except RequestError as error:
            return pb.ListTransactionsResponse(error=error_message(error))
        response = pb.ListTransactionsResponse(unknown_states=wanted.unknown_states)
        await filled(self.scheduler, response.transactions, _listed, found)
        return response

    @guarded
    async def describe_transactions(
        self, request: pb.DescribeTransactionsRequest, context: Any
    ) -> pb.DescribeTransactionsResponse:
        services = self._enter(context)
        response = pb.DescribeTransactionsResponse()
        for transactional_id in request.transactional_ids:
            answer = response.transactions.add(
                transactional_id=transactional_id, coordinator_id=services.broker_id
            )
            try:
                found = await services.transactions.describe(transactional_id)
                answer.MergeFrom(_described(found.value))
            except RequestError as error:
                answer.error.CopyFrom(error_message(error))
        return response

    @guarded
    async def describe_producers(
        self, request: pb.DescribeProducersRequest, context: Any
    ) -> pb.DescribeProducersResponse:
        records = self._enter(context).records
        response = pb.DescribeProducersResponse()
        wanted = (TopicPartition(each.topic, number) for each in request.topics for number in each.partitions)
        for count, tp in enumerate(wanted, 1):
            if count % _PARTITIONS_PER_TURN == 0:
                await next_slice(self.scheduler)
            answer = response.partitions.add(topic=tp.topic, partition=tp.partition)
            try:
                answer.producers.extend(map(_active, records.producers(tp)))
            except RequestError as error:
                answer.error.CopyFrom(error_message(error))
        return response

    @guarded
    async def abort_transaction(
        self, request: pb.AbortTransactionRequest, context: Any
    ) -> pb.AbortTransactionResponse:
        try:
            await self._enter(context).transactions.abort_hanging(
                TopicPartition(request.topic, request.partition), request.first_offset
            )
        except RequestError as error:
            return pb.AbortTransactionResponse(error=error_message(error))
        return pb.AbortTransactionResponse()


def _identity(producer: pb.ProducerIdentity) -> ProducerIdentity:
    return ProducerIdentity(producer.id, producer.epoch)


def _producer(identity: ProducerIdentity) -> pb.ProducerIdentity:
    return pb.ProducerIdentity(id=identity.producer_id, epoch=identity.producer_epoch)


def _listed(each: ListedTransaction) -> pb.ListedTransaction:
    return pb.ListedTransaction(
        transactional_id=each.transactional_id,
        producer_id=each.value.producer_id,
        state=each.value.state.title,
        producer_epoch=each.value.producer_epoch,
    )


def _described(txn: Transaction) -> pb.DescribedTransaction:
    return pb.DescribedTransaction(
        state=txn.state.title,
        producer=_producer(txn.producer),
        timeout_ms=txn.timeout_ms,
        started_ms=txn.started_ms,
        topics=[
            broker_pb2.TopicPartitions(topic=topic, partitions=[tp.partition for tp in run])
            for topic, run in groupby(sorted(txn.partitions), lambda tp: tp.topic)
        ],
    )


def _active(each: ProducerDescription) -> pb.ActiveProducer:
    return pb.ActiveProducer(
        producer=pb.ProducerIdentity(id=each.producer_id, epoch=each.producer_epoch),
        last_sequence=each.last_sequence,
        last_timestamp_ms=each.last_timestamp_ms,
        coordinator_epoch=each.coordinator_epoch,
        transaction_first_offset=each.txn_first_offset,
    )
