"""Which open transactions some coordinator will end: leaders ask all coordinators of the cluster. [S]

Used by `partition.stale_transactions`. An answer counts only if every partition of `__transaction_state` is in it, each
from a leader that has loaded it and holds its lease (rule 14): a coordinator that is left out may be the one that has
decided a transaction and is about to write its marker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

import structlog

from ottla_broker.coordination.runtime import Runtime
from ottla_broker.membership.broker_rpc import Body, BrokerRpc
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.requests import Maybe
from ottla_broker.txn.messages import ListReply, ListTransactions
from ottla_broker.txn.transaction import Transaction
from ottla_core.errors import NotCoordinator, RequestError
from ottla_core.ids import NO_BROKER, TopicPartition
from ottla_core.ports.clock import Clock
from ottla_core.ports.peers import PeerUnavailable

_log = structlog.get_logger("ottla.housekeeping")

_RPC = "transaction_owners"
_TIMEOUT_S = 5.0
#: Transactional ids that are compared in one turn of the event loop: about a millisecond.
_PER_TURN = 2000

#: By producer id: where its coordinator has a transaction of it to end. Without an entry, no coordinator knows the id.
Owned: TypeAlias = Mapping[int, frozenset[TopicPartition]]


class TransactionOwners:
    def __init__(
        self,
        topic: str,
        broker_id: int,
        metadata: Metadata,
        runtime: Runtime,
        rpc: BrokerRpc,
        clock: Clock,
        abort: Callable[[TopicPartition, int], Awaitable[None]],
    ) -> None:
        """`abort` ends the transaction that begins at an offset of a partition that this broker leads."""
        self._topic = topic
        self._broker_id = broker_id
        self._metadata = metadata
        self._runtime = runtime
        self._rpc = rpc
        self._clock = clock
        self.abort = abort
        rpc.answered_by(_RPC, self._answer)

    @property
    def exist(self) -> bool:
        """Whether this cluster has ever had a coordinator."""
        return self._topic in self._metadata.image.topics

    async def owned(self, producer_ids: Collection[int]) -> Owned | None:
        """What the coordinators know about these producers; None if not all of them can be asked now."""
        topic = self._metadata.image.topics.get(self._topic)
        if topic is None:
            return {}
        leaders = sorted({partition.leader for partition in topic.partitions})
        if NO_BROKER in leaders:
            return None
        try:
            answers = await asyncio.gather(*(self._ask(leader, producer_ids) for leader in leaders))
            if {index for shards, _ in answers for index in shards} != set(range(len(topic.partitions))):
                return None
            return merged(rows for _, rows in answers)
        except (RequestError, PeerUnavailable):
            return None
        except (LookupError, TypeError, ValueError) as error:
            _log.warning("answer about transactions not understood", error=repr(error))
            return None

    async def _ask(self, leader: int, producer_ids: Collection[int]) -> tuple[list[int], list[Any]]:
        body = {"producers": sorted(producer_ids)}
        if leader == self._broker_id:
            answer: Any = await self._answer(body)
        else:
            answer = await self._rpc.ask(leader, _RPC, body, _TIMEOUT_S)
        return answer["shards"], answer["known"]

    async def _answer(self, body: Body) -> object:
        wanted = {int(producer_id) for producer_id in body["producers"]}
        shards: list[int] = []
        known: list[object] = []
        compared = 0
        for index, _ in list(self._runtime.ready()):
            try:
                listed: ListReply | RequestError = await _settled(
                    self._runtime.ask(index, ListTransactions())
                )
            except NotCoordinator:
                continue
            if isinstance(listed, RequestError):
                continue
            shards.append(index)
            for _, txn in listed.transactions:
                known += rows_of(txn, wanted)
                compared += 1
                if compared % _PER_TURN == 0:
                    await self._clock.sleep(0)
        return {"shards": shards, "known": known}


def rows_of(txn: Transaction, wanted: AbstractSet[int]) -> list[object]:
    """[producer id, [[topic, partition], …]] for each of the wanted producer ids that the transactional id has."""
    ids = {txn.producer_id, txn.previous_producer_id, txn.next_producer_id} & wanted
    if not ids:
        return []
    places = [] if txn.is_idle else [[tp.topic, tp.partition] for tp in sorted(txn.partitions)]
    return [[producer_id, places if producer_id == txn.producer_id else []] for producer_id in sorted(ids)]


def merged(answers: Iterable[Iterable[Any]]) -> Owned:
    owned: dict[int, frozenset[TopicPartition]] = {}
    for rows in answers:
        for producer_id, places in rows:
            tps = frozenset(TopicPartition(str(topic), int(index)) for topic, index in places)
            owned[int(producer_id)] = owned.get(int(producer_id), frozenset()) | tps
    return owned


async def _settled(reply: Maybe[Any]) -> Any:
    return await reply if isinstance(reply, Awaitable) else reply
