"""`make bench-coordinators`: how long nothing answers after the broker of a large coordinator was killed. [A]

    python -m ottla_bench.coordinators [--offsets 100000] [--transactions 10000] [--runs 3]

Three real brokers. One partition of `__consumer_offsets` has all the offsets, one of `__transaction_state` all the open
transactions. Their leaders are killed with SIGKILL, one after the other; the brokers that are left are asked every few
milliseconds until one answers as before. That time has three parts: the death is noticed, a leader is elected, and the
coordinator loads its state. The last one is what a coordinator is responsible for (`ottla_*_load_seconds`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from grpc import aio
from rich.console import Console

from ottla_cli.local_cluster import LocalCluster
from ottla_client import Admin, NewTopic, TopicPartition
from ottla_core.pb import broker_pb2, broker_pb2_grpc, groups_pb2, groups_pb2_grpc, transactions_pb2_grpc
from ottla_core.pb import transactions_pb2 as txn_pb
from ottla_core.records.codec import BatchBuilder

_TOPIC = "bench-coordinators"
#: A partition remembers ten thousand producers.
_PARTITIONS = 100
#: Everything in one partition of each kind.
SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
_AT_ONCE = 40
_PAUSE_S = 0.005
_WITHIN_S = 60.0
#: The goal for a coordinator, from its election until it answers.
GOAL_S = 1.0


class Outage(NamedTuple):
    """In seconds."""

    from_kill_s: float
    #: As the new coordinator has measured it, from its election on.
    loading_s: float


class Stubs:
    """Calls to one broker, without the retries of a client."""

    def __init__(self, address: str) -> None:
        self.channel = aio.insecure_channel(address)
        self.log: Any = broker_pb2_grpc.LogStub(self.channel)  # type: ignore[no-untyped-call]
        self.groups: Any = groups_pb2_grpc.GroupsStub(self.channel)  # type: ignore[no-untyped-call]
        self.transactions: Any = transactions_pb2_grpc.TransactionsStub(self.channel)  # type: ignore[no-untyped-call]


class Coordinators:
    def __init__(self, cluster: LocalCluster, offsets: int, transactions: int) -> None:
        self._cluster = cluster
        self._groups = max(1, offsets // _PARTITIONS)
        self._transactions = transactions

    async def fill(self) -> None:
        async with Admin(self._cluster.grpc_bootstrap) as admin:
            await admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 1)])
            each = {TopicPartition(_TOPIC, n): n for n in range(_PARTITIONS)}
            await _bounded(partial(admin.alter_group_offsets, f"g{n}", each) for n in range(self._groups))
            topic = (await admin.describe_topics([_TOPIC]))[0]
        brokers = {i: Stubs(broker.grpc) for i, broker in self._cluster.brokers.items()}
        leaders = {each.partition: brokers[each.leader] for each in topic.partitions}
        await _bounded(partial(self._open, brokers, leaders, n) for n in range(self._transactions))
        for stubs in brokers.values():
            await stubs.channel.close()

    async def _open(self, brokers: dict[int, Stubs], leaders: dict[int, Stubs], number: int) -> None:
        """One transaction with one record: its leader adds the partition."""
        at, name = await self._coordinator_of_transactions(brokers), f"t{number}"
        init = txn_pb.InitProducerRequest(transactional_id=name, transaction_timeout_ms=900_000)
        answer = await _until(lambda: at.transactions.InitProducer(init), _is_final)
        builder = BatchBuilder(4096)
        builder.append(time.time_ns() // 1_000_000, None, b"x", [])
        batch = builder.build(
            producer_id=answer.producer.id,
            producer_epoch=answer.producer.epoch,
            base_sequence=0,
            transactional=True,
        )
        request = broker_pb2.ProduceRequest(acks=-1, timeout_ms=10_000, transactional_id=name)
        index = number % _PARTITIONS
        request.partitions.add(topic=_TOPIC, partition=index, records=bytes(batch))
        call = leaders[index].log.Produce()

        async def produced() -> Any:
            await call.write(request)
            return (await call.read()).partitions[0]

        await _until(produced, _is_final)
        call.cancel()

    async def _coordinator_of_transactions(self, brokers: dict[int, Stubs]) -> Stubs:
        kind = groups_pb2.COORDINATOR_TYPE_TRANSACTION
        request = groups_pb2.FindCoordinatorRequest(groups=["t0"], type=kind)
        any_broker = next(iter(brokers.values()))

        async def found() -> Any:
            return (await any_broker.groups.FindCoordinator(request)).coordinators[0]

        return brokers[(await _until(found, _is_final)).broker.id]

    # ------------------------------------------------------------------ taking over

    async def group_outage(self) -> Outage:
        """The last group's offsets, all of them."""
        last = groups_pb2.FetchOffsetsRequest(group=f"g{self._groups - 1}")

        async def answers(stubs: Stubs) -> bool:
            found = await stubs.groups.FetchOffsets(last)
            return not found.HasField("error") and sorted(each.offset for each in found.offsets) == list(
                range(_PARTITIONS)
            )

        return await self._outage("__consumer_offsets", answers, "ottla_group_load_seconds_sum")

    async def transaction_outage(self) -> Outage:
        last = txn_pb.DescribeTransactionsRequest(transactional_ids=[f"t{self._transactions - 1}"])

        async def answers(stubs: Stubs) -> bool:
            (found,) = (await stubs.transactions.DescribeTransactions(last)).transactions
            return not found.HasField("error") and found.state == "Ongoing"

        return await self._outage("__transaction_state", answers, "ottla_transaction_load_seconds_sum")

    async def _outage(self, topic: str, answers: Callable[[Stubs], Awaitable[bool]], metric: str) -> Outage:
        async with Admin(self._cluster.grpc_bootstrap) as admin:
            await _until(lambda: _in_sync(admin, topic, len(self._cluster.brokers)), bool)
            victim = (await admin.describe_topics([topic]))[0].partitions[0].leader
        left = [broker for i, broker in self._cluster.brokers.items() if i != victim]
        before = sum(_metric(broker.http, metric) for broker in left)
        stubs = [Stubs(broker.grpc) for broker in left]
        async with asyncio.timeout(_WITHIN_S):
            await asyncio.gather(*(each.channel.channel_ready() for each in stubs))
        self._cluster.kill(victim)
        began = time.monotonic()
        asked = [partial(_quietly, answers, each) for each in stubs]
        tasks = [asyncio.create_task(_until(each, bool)) for each in asked]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        took_s = time.monotonic() - began
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        loading_s = sum(_metric(broker.http, metric) for broker in left) - before
        for each in stubs:
            await each.channel.close()
        await asyncio.to_thread(self._cluster.restart, victim)
        return Outage(took_s, loading_s)


def _is_final(answer: Any) -> bool:
    return not answer.error.retriable


async def _quietly(answers: Callable[[Stubs], Awaitable[bool]], stubs: Stubs) -> bool:
    try:
        return await answers(stubs)
    except aio.AioRpcError:
        return False


async def _in_sync(admin: Admin, topic: str, copies: int) -> bool:
    (found,) = await admin.describe_topics([topic])
    return all(len(each.isr) == copies and each.leader >= 0 for each in found.partitions)


async def _until(ask: Callable[[], Awaitable[Any]], holds: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(_WITHIN_S):
        while not holds(answer := await ask()):  # noqa: ASYNC110 (another process is asked)
            await asyncio.sleep(_PAUSE_S)
        return answer


async def _bounded(work: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """All of them, some at a time."""
    waiting = iter(work)

    async def worker() -> None:
        for each in waiting:
            await each()

    await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))


def _metric(address: str, name: str) -> float:
    page = urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read().decode()
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name + " "))


async def outages(
    cluster: LocalCluster, offsets: int, transactions: int, runs: int
) -> tuple[list[Outage], list[Outage]]:
    """Of the group coordinator and of the transaction coordinator."""
    coordinators = Coordinators(cluster, offsets, transactions)
    await coordinators.fill()
    groups = [await coordinators.group_outage() for _ in range(runs)]
    return groups, [await coordinators.transaction_outage() for _ in range(runs)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="ottla_bench.coordinators", description=__doc__)
    parser.add_argument("--offsets", type=int, default=100_000)
    parser.add_argument("--transactions", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3)
    wanted = parser.parse_args()
    console = Console()
    with LocalCluster(brokers=3, settings=SETTINGS) as cluster:
        groups, txns = asyncio.run(outages(cluster, wanted.offsets, wanted.transactions, wanted.runs))
    missed = False
    for what, found in (
        (f"{wanted.offsets:,} committed offsets", groups),
        (f"{wanted.transactions:,} open transactions", txns),
    ):
        for each in found:
            missed = missed or each.loading_s >= GOAL_S
            console.print(
                f"{what}: answered {each.from_kill_s:.2f} s after the kill, loaded in {each.loading_s:.3f} s"
            )
    if missed:
        console.print(f"A coordinator took longer than {GOAL_S:g} s to load.")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
