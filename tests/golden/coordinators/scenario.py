"""Requests to a coordinator, the same to any broker: members of broker-side groups, a classic member among them, and
producers with transactions of both versions.

Names are chosen here, so that what two brokers write differs only in ids, times and hashes of theirs.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from attack.kafka_wire import HostileClient
from ottla_core.records.codec import Record, build_batch

TOPIC, OTHER = "golden", "golden-too"
GROUP, MIXED = "golden-group", "golden-mixed"
TXN, TXN_V2 = "golden-txn", "golden-txn-v2"
#: With what `transaction_records` and `group_records` compare.
ONE, TWO, AGAIN = "member-one", "member-two", "member-again"
PARTITIONS = 3
_REBALANCE_MS = 60_000
_WITHIN_S = 20.0

HEARTBEAT, OFFSET_COMMIT, FIND_COORDINATOR, JOIN, SYNC, LEAVE = 68, 8, 10, 11, 14, 13
PRODUCE, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, TXN_OFFSETS = 0, 22, 24, 25, 26, 28


class Client:
    """Sends a request again as long as the answer says that this may help."""

    _RETRIABLE = frozenset({3, 6, 14, 15, 16, 51})

    def __init__(self, wire: HostileClient) -> None:
        self._wire = wire

    async def ask(self, key: int, version: int, **fields: Any) -> Any:
        async with asyncio.timeout(_WITHIN_S):
            while True:
                answer = await self._wire.ask(key, version, **fields)
                if not self._RETRIABLE & set(_codes(answer)):
                    assert set(_codes(answer)) <= {0}, answer
                    return answer
                await asyncio.sleep(0.05)


def _codes(answer: Any) -> list[int]:
    """All error codes in an answer."""
    if isinstance(answer, tuple | list):
        return [code for each in answer for code in _codes(each)]
    if not hasattr(answer, "__dataclass_fields__"):
        return []
    found = []
    for name in answer.__dataclass_fields__:
        value = getattr(answer, name)
        found += [int(getattr(value, "value", value))] if name.endswith("error_code") else _codes(value)
    return found


async def run(port: int) -> None:
    wire = await HostileClient.connect(port)
    try:
        client = Client(wire)
        await create_topics(client)
        # Which creates the topics of the coordinators.
        for kind, name in ((0, GROUP), (0, MIXED), (1, TXN), (1, TXN_V2)):
            await client.ask(FIND_COORDINATOR, 4, key_type=kind, coordinator_keys=[name])
        await groups(client)
        await mixed_group(client)
        await transactions(client)
        await transactions_v2(client)
    finally:
        wire.close()


async def create_topics(client: Client) -> None:
    wanted = [
        {"name": name, "num_partitions": count, "replication_factor": 1, "assignments": [], "configs": []}
        for name, count in ((TOPIC, PARTITIONS), (OTHER, 1))
    ]
    await client.ask(19, 7, topics=wanted, timeout=10_000, validate_only=False)
    await client.ask(3, 9, topics=[{"name": TOPIC}, {"name": OTHER}])


class Member:
    def __init__(self, client: Client, group: str, member_id: str, **joining: Any) -> None:
        self._client, self._group, self.id = client, group, member_id
        self._joining = {"rebalance_timeout": _REBALANCE_MS, "topic_partitions": [], **joining}
        self.epoch = 0
        self.owned: list[dict[str, Any]] = []

    async def beat(self, **more: Any) -> Any:
        """A heartbeat; it reports what the member has after the last one, as clients do."""
        if self.epoch <= 0:
            more = {**self._joining, **more}
        answer = await self._client.ask(
            HEARTBEAT, 1, group_id=self._group, member_id=self.id, member_epoch=self.epoch, **more
        )
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = [
                {"topic_id": each.topic_id, "partitions": list(each.partitions)}
                for each in answer.assignment.topic_partitions
            ]
        return answer

    async def report(self) -> None:
        await self.beat(topic_partitions=self.owned)

    async def leave(self, epoch: int = -1) -> None:
        self.epoch = epoch
        await self._client.ask(
            HEARTBEAT,
            1,
            group_id=self._group,
            member_id=self.id,
            member_epoch=epoch,
            instance_id=self._joining.get("instance_id"),
        )


async def groups(client: Client) -> None:
    one = Member(client, GROUP, ONE, subscribed_topic_names=[TOPIC], server_assignor="uniform")
    await one.beat()
    await one.report()
    await commit(client, one)
    static = {"instance_id": "instance", "rack_id": "rack", "subscribed_topic_names": [TOPIC, OTHER]}
    two = Member(client, GROUP, TWO, **static)
    await two.beat()
    await one.beat()
    await one.report()
    await two.beat()
    await two.report()
    await two.leave(-2)
    again = Member(client, GROUP, AGAIN, **static)
    await again.beat()
    await again.report()
    await one.leave()
    await again.beat()
    await again.leave()
    await client.ask(42, 2, groups_names=[GROUP])


async def commit(client: Client, member: Member) -> None:
    partition = {
        "partition_index": 1,
        "committed_offset": 0,
        "committed_leader_epoch": -1,
        "committed_metadata": "seen",
    }
    topics = [{"name": TOPIC, "partitions": [partition]}]
    await client.ask(
        OFFSET_COMMIT,
        9,
        group_id=GROUP,
        generation_id_or_member_epoch=member.epoch,
        member_id=member.id,
        topics=topics,
    )


async def mixed_group(client: Client) -> None:
    """A pattern, and a member of the classic protocol; it is the last one, so the group is downgraded."""
    one = Member(client, MIXED, ONE, subscribed_topic_regex=f"{OTHER}.*")
    await one.beat()
    while not one.owned:
        await one.beat()
        await asyncio.sleep(0.05)
    await one.report()
    subscription = struct.pack(">hih", 0, 1, len(TOPIC)) + TOPIC.encode() + struct.pack(">i", -1)
    classic = {"group_id": MIXED, "group_instance_id": "classic"}
    joined = await client.ask(
        JOIN,
        7,
        **classic,
        session_timeout=30_000,
        rebalance_timeout=_REBALANCE_MS,
        member_id="",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": subscription}],
    )
    await client.ask(
        SYNC,
        5,
        **classic,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name=joined.protocol_name,
        assignments=[],
    )
    await one.leave()


# ---------------------------------------------------------------------- transactions


class Transaction:
    def __init__(self, client: Client, transactional_id: str) -> None:
        self._client, self._id = client, transactional_id
        self.producer_id, self.epoch = -1, -1
        self._sequences: dict[int, int] = {}

    async def init(self) -> None:
        answer = await self._client.ask(
            INIT, 4, transactional_id=self._id, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
        )
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    @property
    def _producer(self) -> dict[str, Any]:
        return {"transactional_id": self._id, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    async def add(self, *partitions: int) -> None:
        await self._client.ask(
            ADD_PARTITIONS,
            3,
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[{"name": TOPIC, "partitions": list(partitions)}],
        )

    async def write(self, partition: int, version: int) -> None:
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + 1
        batch = build_batch(
            [Record(0, 1_000, b"key", b"value", [])],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = [{"name": TOPIC, "partition_data": [{"index": partition, "records": batch}]}]
        await self._client.ask(
            PRODUCE, version, transactional_id=self._id, acks=-1, timeout=10_000, topic_data=data
        )

    async def end(self, version: int, *, commits: bool) -> None:
        answer = await self._client.ask(END, version, **self._producer, committed=commits)
        if version >= 5:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self._sequences.clear()


async def transactions(client: Client) -> None:
    """As clients before transactions v2 ask for them."""
    txn = Transaction(client, TXN)
    await txn.init()
    await txn.add(0, 2)
    await txn.write(0, 9)
    await txn.add(1)
    await txn.end(3, commits=True)
    await txn.init()
    await txn.add(2)
    await txn.end(3, commits=False)
    await txn.init()


async def transactions_v2(client: Client) -> None:
    txn = Transaction(client, TXN_V2)
    await txn.init()
    await txn.write(0, 12)
    await txn.write(1, 12)
    await txn.end(5, commits=True)
    await txn.write(0, 12)
    await txn.end(5, commits=False)
    await txn.write(2, 12)
    await txn.init()  # Its last transaction is open.
