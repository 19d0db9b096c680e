"""Sizes of replicas on any broker, asked between brokers: progress of moves, and the load of brokers. [S]

Every broker answers for its own logs (`log_dirs.py`). A broker that does not answer in time has no sizes: the figures
are for people and planners, and a broker that is down must not hide those of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ottla_broker.membership.broker_rpc import Body, BrokerRpc
from ottla_broker.service.log_dirs import UNKNOWN_BYTES, DescribedDir, LogDirService
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition
from ottla_core.ports.peers import PeerUnavailable

#: Cold segments are measured on disk: tens of microseconds each, and a broker may have ten thousand.
_TIMEOUT_S = 5.0

#: Numbers of partitions by topic; None for all.
Wanted: TypeAlias = Mapping[str, Collection[int]] | None


class ReplicaSize(NamedTuple):
    topic: str
    partition: int
    bytes: int
    #: Committed records that the replica lacks.
    offset_lag: int


class BrokerSizes(NamedTuple):
    replicas: tuple[ReplicaSize, ...] = ()
    #: Of the volumes of all its log directories.
    total_bytes: int = UNKNOWN_BYTES
    usable_bytes: int = UNKNOWN_BYTES

    @property
    def bytes(self) -> int:
        return sum(replica.bytes for replica in self.replicas)

    def by_partition(self) -> dict[TopicPartition, int]:
        return {TopicPartition(r.topic, r.partition): r.bytes for r in self.replicas}


class ReplicaSizes:
    def __init__(self, broker_id: int, log_dirs: LogDirService, rpc: BrokerRpc) -> None:
        self._broker_id = broker_id
        self._log_dirs = log_dirs
        self._rpc = rpc
        rpc.answered_by("replica_sizes", self._answer)

    async def ask(self, wanted: Mapping[int, Wanted]) -> dict[int, BrokerSizes | None]:
        """By broker, each asked for its wanted partitions; None for brokers that did not answer."""
        answers = await asyncio.gather(*(self._of(broker, some) for broker, some in wanted.items()))
        return dict(zip(wanted, answers, strict=True))

    async def _of(self, broker_id: int, wanted: Wanted) -> BrokerSizes | None:
        if broker_id == self._broker_id:
            return _summed(await self._log_dirs.describe(wanted))
        body = {"wanted": None if wanted is None else {name: sorted(some) for name, some in wanted.items()}}
        try:
            said = await self._rpc.ask(broker_id, "replica_sizes", body, _TIMEOUT_S)
            rows = tuple(ReplicaSize(str(t), int(p), int(b), int(lag)) for t, p, b, lag in said["replicas"])
            return BrokerSizes(rows, int(said["total"]), int(said["usable"]))
        except (PeerUnavailable, RequestError, KeyError, TypeError, ValueError):
            return None

    async def _answer(self, body: Body) -> object:
        asked = body["wanted"]
        wanted = None if asked is None else {str(name): frozenset(some) for name, some in asked.items()}
        sizes = _summed(await self._log_dirs.describe(wanted))
        return {"replicas": sizes.replicas, "total": sizes.total_bytes, "usable": sizes.usable_bytes}


def _summed(dirs: Sequence[DescribedDir]) -> BrokerSizes:
    working = [each for each in dirs if each.error is None]
    known = [each for each in working if each.total_bytes != UNKNOWN_BYTES]
    return BrokerSizes(
        tuple(
            ReplicaSize(r.tp.topic, r.tp.partition, r.size_bytes, r.offset_lag)
            for each in working
            for r in each.replicas
        ),
        sum(each.total_bytes for each in known) if known else UNKNOWN_BYTES,
        sum(each.usable_bytes for each in known) if known else UNKNOWN_BYTES,
    )
