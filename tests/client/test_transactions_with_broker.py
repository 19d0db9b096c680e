"""Transactions over the native protocol, with a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from grpc import aio

from ottla_cli.local_cluster import LocalCluster
from ottla_client import Admin, Consumer, NewTopic, Producer, TopicPartition, sync
from ottla_client.errors import (
    ClientError,
    CommitFailed,
    NotInTransaction,
    ProducerFenced,
    TransactionFailed,
)
from ottla_client.prepared import PreparedTransactions
from ottla_client.sender import Sender
from ottla_core.errors import InvalidTxnState, MessageTooLarge
from ottla_core.pb import broker_pb2, broker_pb2_grpc, groups_pb2, groups_pb2_grpc, transactions_pb2_grpc
from ottla_core.pb import transactions_pb2 as pb
from ottla_core.records.codec import BatchBuilder

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

WITHIN_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
async def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    name = request.node.name[:200].replace("[", "-").replace("]", "")
    async with Admin(cluster.grpc_bootstrap) as admin:
        await admin.create_topics([NewTopic(name, 2)])
    return name


# ---------------------------------------------------------------------- the protocol


class Wire:
    """The stubs of one broker."""

    def __init__(self, channel: aio.Channel) -> None:
        self.log: Any = broker_pb2_grpc.LogStub(channel)  # type: ignore[no-untyped-call]
        self.groups: Any = groups_pb2_grpc.GroupsStub(channel)  # type: ignore[no-untyped-call]
        self.transactions: Any = transactions_pb2_grpc.TransactionsStub(channel)  # type: ignore[no-untyped-call]

    async def init(self, transactional_id: str, **more: Any) -> pb.InitProducerResponse:
        """Again while the coordinator starts, or an earlier transaction is being completed."""
        wanted = groups_pb2.FindCoordinatorRequest(
            groups=[transactional_id], type=groups_pb2.COORDINATOR_TYPE_TRANSACTION
        )
        async with asyncio.timeout(WITHIN_S):
            while True:
                (found,) = (await self.groups.FindCoordinator(wanted)).coordinators
                if not found.HasField("error"):
                    request = pb.InitProducerRequest(
                        transactional_id=transactional_id, transaction_timeout_ms=60_000, **more
                    )
                    answer: pb.InitProducerResponse = await self.transactions.InitProducer(request)
                    if not answer.error.retriable:
                        return answer
                await asyncio.sleep(0.05)

    async def produce(
        self, topic: str, transactional_id: str, producer: pb.ProducerIdentity, value: bytes
    ) -> broker_pb2.PartitionProduced:
        builder = BatchBuilder(4096)
        builder.append(time.time_ns() // 1_000_000, None, value, [])
        batch = builder.build(
            producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=0, transactional=True
        )
        request = broker_pb2.ProduceRequest(acks=-1, timeout_ms=5000, transactional_id=transactional_id)
        request.partitions.add(topic=topic, partition=0, records=bytes(batch))
        call = self.log.Produce()
        async with asyncio.timeout(WITHIN_S):
            while True:
                await call.write(request)
                (outcome,) = (await call.read()).partitions
                if not outcome.error.retriable:
                    call.cancel()
                    return outcome  # type: ignore[no-any-return]
                await asyncio.sleep(0.05)

    async def end(
        self, transactional_id: str, producer: pb.ProducerIdentity, *, commit: bool
    ) -> pb.EndTransactionResponse:
        request = pb.EndTransactionRequest(
            transactional_id=transactional_id, producer=producer, commit=commit
        )
        async with asyncio.timeout(WITHIN_S):
            while True:
                answer: pb.EndTransactionResponse = await self.transactions.EndTransaction(request)
                if not answer.error.retriable:
                    return answer
                await asyncio.sleep(0.05)

    async def read_committed(self, topic: str) -> broker_pb2.FetchedPartition:
        call = self.log.Fetch()
        request = broker_pb2.FetchRequest(max_bytes=1 << 20, read_committed=True)
        request.partitions.add(topic=topic, partition=0, offset=0, max_bytes=1 << 20, leader_epoch=-1)
        await call.write(request)
        (found,) = (await call.read()).partitions
        call.cancel()
        return found  # type: ignore[no-any-return]


@pytest.fixture
async def wire(cluster: LocalCluster) -> AsyncIterator[Wire]:
    async with aio.insecure_channel(cluster.grpc_bootstrap) as channel:
        yield Wire(channel)


async def test_a_transaction_on_the_wire(wire: Wire, topic: str) -> None:
    first = (await wire.init("wire")).producer
    assert (await wire.produce(topic, "wire", first, b"one")).base_offset == 0
    found = await wire.read_committed(topic)
    assert (found.high_watermark, found.last_stable_offset, found.records) == (1, 0, b"")
    committed = await wire.end("wire", first, commit=True)
    assert (committed.producer.id, committed.producer.epoch) == (first.id, first.epoch + 1)
    repeated = await wire.end("wire", first, commit=True)
    assert repeated.producer == committed.producer, "a lost response may be asked for again"

    second = committed.producer
    assert (await wire.produce(topic, "wire", second, b"two")).base_offset == 2
    assert not (await wire.end("wire", second, commit=False)).HasField("error")
    async with asyncio.timeout(WITHIN_S):
        while (found := await wire.read_committed(topic)).last_stable_offset < 4:
            await asyncio.sleep(0.05)
    assert [(each.producer_id, each.first_offset) for each in found.aborted] == [(first.id, 2)]
    assert (await wire.produce(topic, "wire", first, b"late")).error.name == "INVALID_PRODUCER_EPOCH"


async def test_a_prepared_transaction_is_kept_listed_and_forgotten(wire: Wire, topic: str) -> None:
    producer = (await wire.init("spark-1")).producer
    await wire.produce(topic, "spark-1", producer, b"one")
    assert not (await wire.init("spark-2", keep_prepared=True)).HasField("ongoing")
    request = pb.PrepareTransactionRequest(transactional_id="spark-1", producer=producer)
    assert not (await wire.transactions.PrepareTransaction(request)).HasField("error")
    kept = await wire.init("spark-1", keep_prepared=True)
    assert kept.ongoing == kept.producer == producer
    wanted = pb.ListTransactionsRequest(prefix="spark-", states=["Ongoing"])
    (listed,) = (await wire.transactions.ListTransactions(wanted)).transactions
    assert (listed.transactional_id, listed.producer_id, listed.producer_epoch) == (
        "spark-1",
        producer.id,
        producer.epoch,
    )
    forget = pb.ForgetTransactionalIdsRequest(transactional_ids=["spark-1", "nobody"])
    refused, unknown = (await wire.transactions.ForgetTransactionalIds(forget)).forgotten
    assert refused.error.name == "INVALID_TXN_STATE" and not unknown.HasField("error")
    await wire.end("spark-1", producer, commit=True)
    await wire.end("spark-1", producer, commit=True)
    done = (await wire.transactions.ForgetTransactionalIds(forget)).forgotten
    assert [each.HasField("error") for each in done] == [False, False]
    wanted = pb.ListTransactionsRequest(prefix="spark-1")
    assert not (await wire.transactions.ListTransactions(wanted)).transactions


async def test_batches_without_the_transactional_id_are_refused(wire: Wire, topic: str) -> None:
    producer = (await wire.init("nameless")).producer
    refused = (await wire.produce(topic, "", producer, b"one")).error
    assert refused.name == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "as from Kafka"


async def test_hanging_transactions_are_found_and_aborted(wire: Wire, topic: str) -> None:
    producer = (await wire.init("hanging")).producer
    await wire.produce(topic, "hanging", producer, b"one")
    (listed,) = (
        await wire.transactions.ListTransactions(
            pb.ListTransactionsRequest(states=["Ongoing"], producer_ids=[producer.id])
        )
    ).transactions
    assert (listed.transactional_id, listed.state) == ("hanging", "Ongoing")
    (described,) = (
        await wire.transactions.DescribeTransactions(
            pb.DescribeTransactionsRequest(transactional_ids=["hanging"])
        )
    ).transactions
    assert [(each.topic, list(each.partitions)) for each in described.topics] == [(topic, [0])]
    wanted = pb.DescribeProducersRequest(topics=[broker_pb2.TopicPartitions(topic=topic, partitions=[0])])
    ((active,),) = [each.producers for each in (await wire.transactions.DescribeProducers(wanted)).partitions]
    assert (active.producer, active.transaction_first_offset) == (producer, 0)

    wrong = await wire.transactions.AbortTransaction(pb.AbortTransactionRequest(topic=topic, first_offset=7))
    assert wrong.error.name == "INVALID_TXN_STATE"
    done = await wire.transactions.AbortTransaction(pb.AbortTransactionRequest(topic=topic, first_offset=0))
    assert not done.HasField("error")
    found = await wire.read_committed(topic)
    assert (found.last_stable_offset, len(found.aborted)) == (2, 1)


# ---------------------------------------------------------------------- the client


async def values(cluster: LocalCluster, topic: str, isolation_level: str = "read_committed") -> list[bytes]:
    """All values that such a consumer sees, in the order of partitions."""
    partitions = [TopicPartition(topic, n) for n in range(2)]
    async with Consumer(
        cluster.grpc_bootstrap, auto_offset_reset="earliest", isolation_level=isolation_level
    ) as consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        found: dict[TopicPartition, list[bytes]] = {tp: [] for tp in partitions}
        async with asyncio.timeout(WITHIN_S):
            while any([await consumer.position(tp) < end for tp, end in ends.items()]):
                for record in await consumer.poll(timeout_ms=100):
                    found[TopicPartition(record.topic, record.partition)].append(record.value)
        return [value for each in found.values() for value in each]


async def test_a_block_commits_or_aborts(cluster: LocalCluster, topic: str) -> None:
    async with Producer(cluster.grpc_bootstrap, transactional_id="block") as producer:
        for number in range(3):
            async with producer.transaction():
                for partition in (0, 1):
                    await producer.send(topic, b"kept %d %d" % (number, partition), partition=partition)
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"dropped", partition=0)
                    raise ZeroDivisionError
        async with producer.transaction():
            pass  # Nothing to commit.
        await producer.begin()
        await producer.send(topic, b"open", partition=1)
        await producer.flush()
        kept = [b"kept %d %d" % (number, partition) for partition in (0, 1) for number in range(3)]
        assert await values(cluster, topic) == kept
        everything = await values(cluster, topic, "read_uncommitted")
        assert sorted(everything) == sorted([*kept, *[b"dropped"] * 3, b"open"])
    # Closed with an open transaction, which was aborted: nothing is pending.
    async with Consumer(cluster.grpc_bootstrap, isolation_level="read_committed") as reader:
        tp = TopicPartition(topic, 1)
        uncommitted = Consumer(cluster.grpc_bootstrap)
        async with uncommitted, asyncio.timeout(WITHIN_S):
            while await reader.end_offsets([tp]) != await uncommitted.end_offsets([tp]):
                await asyncio.sleep(0.05)


async def test_sends_outside_of_a_transaction_are_refused(cluster: LocalCluster, topic: str) -> None:
    async with Producer(cluster.grpc_bootstrap, transactional_id="outside") as producer:
        with pytest.raises(NotInTransaction, match="begin"):
            await producer.send(topic, b"x")
        with pytest.raises(NotInTransaction):
            await producer.send_offsets({TopicPartition(topic, 0): 1}, "g")
    async with Producer(cluster.grpc_bootstrap) as plain:
        with pytest.raises(ClientError, match="transactional_id"):
            await plain.begin()
    with pytest.raises(ValueError, match="acks"):
        Producer(cluster.grpc_bootstrap, transactional_id="t", acks=1)


async def test_the_last_producer_fences_the_earlier_one(cluster: LocalCluster, topic: str) -> None:
    async with Producer(cluster.grpc_bootstrap, transactional_id="fenced") as zombie:
        await zombie.begin()
        await zombie.send_and_wait(topic, b"zombie", partition=0)
        async with Producer(cluster.grpc_bootstrap, transactional_id="fenced") as heir:
            with pytest.raises(ProducerFenced, match="Another producer"):
                await zombie.commit()
            with pytest.raises(ProducerFenced):
                await zombie.send(topic, b"late", partition=0)
            async with heir.transaction():
                await heir.send(topic, b"heir", partition=0)
    assert await values(cluster, topic) == [b"heir"]


async def test_a_record_that_was_not_written_fails_the_commit(cluster: LocalCluster, topic: str) -> None:
    async with Admin(cluster.grpc_bootstrap) as admin:
        await admin.create_topics([NewTopic(topic + "-small", 1, configs={"max.message.bytes": "1000"})])
    async with Producer(cluster.grpc_bootstrap, transactional_id="failing") as producer:
        await producer.begin()
        await producer.send_and_wait(topic, b"first", partition=0)
        delivery = await producer.send(topic + "-small", b"x" * 5000)
        with pytest.raises(TransactionFailed, match="abort"):
            await producer.commit()
        assert isinstance(delivery.exception(), MessageTooLarge)
        await producer.abort()
        async with producer.transaction():
            await producer.send(topic, b"second", partition=0)
    assert await values(cluster, topic) == [b"second"]


async def test_offsets_count_when_the_transaction_commits(cluster: LocalCluster, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    async with (
        Producer(cluster.grpc_bootstrap, transactional_id="offsets") as producer,
        Consumer(cluster.grpc_bootstrap, group_id=topic, enable_auto_commit=False) as consumer,
    ):
        consumer.subscribe([topic])
        async with asyncio.timeout(WITHIN_S):
            while not consumer.assignment():
                await consumer.poll(timeout_ms=50)
        async with producer.transaction():
            await producer.send_offsets({tp: 5}, consumer.group_metadata())
        assert (await consumer.committed([tp]))[tp] == (5, "", -1)
        await producer.begin()
        await producer.send_offsets({tp: 9}, consumer.group_metadata())
        await producer.abort()
        assert (await consumer.committed([tp]))[tp] == (5, "", -1)

        stale = consumer.group_metadata()._replace(generation=0, member_id="somebody else")
        await producer.begin()
        with pytest.raises(CommitFailed, match="no longer a member"):
            await producer.send_offsets({tp: 9}, stale)
        with pytest.raises(TransactionFailed):
            await producer.commit()
        await producer.abort()
        assert (await consumer.committed([tp]))[tp] == (5, "", -1)


def test_the_blocking_producer(cluster: LocalCluster, topic: str) -> None:
    with sync.Producer(cluster.grpc_bootstrap, transactional_id="blocking") as producer:
        with producer.transaction():
            producer.send(topic, b"one", partition=0)
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(topic, b"two", partition=0)
            raise ZeroDivisionError
        producer.begin()
        producer.send(topic, object(), partition=0)
        with pytest.raises(TransactionFailed, match="serialized"):
            producer.commit()
        producer.abort()
        producer.begin()
        producer.send(topic, b"three", partition=0)
        producer.commit()
    assert asyncio.run(values(cluster, topic)) == [b"one", b"three"]


@pytest.mark.parametrize("commits", [True, False])
async def test_another_process_ends_a_prepared_transaction(
    cluster: LocalCluster, topic: str, commits: bool
) -> None:
    name = f"prepared-{commits}"
    async with Producer(
        cluster.grpc_bootstrap, transactional_id=name, transaction_timeout_ms=1000
    ) as producer:
        await producer.begin()
        assert await producer.prepare() is None, "nothing was written"
        await producer.begin()
        await producer.send(topic, b"one", partition=0)
        await producer.send(topic, b"two", partition=1)
        prepared = await producer.prepare()
        assert prepared is not None and prepared.transactional_id == name
        with pytest.raises(ClientError, match="prepared its last transaction"):
            await producer.begin()
    await asyncio.sleep(1.5)  # longer than its timeout
    assert await values(cluster, topic) == []
    async with PreparedTransactions(cluster.grpc_bootstrap) as transactions:
        end, other = transactions.commit, transactions.abort
        if not commits:
            end, other = other, end
        await end(prepared)
        await end(prepared)
        with pytest.raises(InvalidTxnState, match="already"):
            await other(prepared)
    assert await values(cluster, topic) == ([b"one", b"two"] if commits else [])


async def test_only_the_coordinator_gives_a_transactional_producer_its_id(
    cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain producer id that arrived late, because a broker had died, replaced that of the transactional id."""
    fetch, fetched = Sender._fetch_identity, asyncio.Event()

    async def late(self: Sender) -> None:
        await asyncio.sleep(0.3)
        await fetch(self)
        fetched.set()

    monkeypatch.setattr(Sender, "_fetch_identity", late)
    async with Producer(cluster.grpc_bootstrap, transactional_id=f"id-{topic}") as producer:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(fetched.wait(), 0.6)
        async with producer.transaction():
            await producer.send_and_wait(topic, b"x", partition=0)
    assert not fetched.is_set()
