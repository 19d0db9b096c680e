"""Log directories of any broker, asked between brokers: the native protocol's side of `log_dirs.py`. [S]

Kafka's tools connect to each broker and ask it for its own; our clients ask any broker for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ottla_broker.membership.broker_rpc import Body, BrokerRpc
from ottla_broker.service.log_dirs import DescribedDir, DirTarget, LogDirService, ReplicaInDir
from ottla_broker.service.replica_sizes import Wanted
from ottla_core.errors import BrokerNotAvailable, KafkaStorageError, RequestError, error_from_code
from ottla_core.ids import TopicPartition
from ottla_core.ports.peers import PeerUnavailable

#: As for sizes of replicas.
_TIMEOUT_S = 5.0


class BrokerDirs:
    def __init__(self, broker_id: int, log_dirs: LogDirService, rpc: BrokerRpc) -> None:
        self._broker_id = broker_id
        self._log_dirs = log_dirs
        self._rpc = rpc
        rpc.answered_by("log_dirs", self._answer_describe)
        rpc.answered_by("alter_log_dirs", self._answer_alter)

    async def describe(self, brokers: Sequence[int], wanted: Wanted) -> dict[int, list[DescribedDir] | None]:
        """The directories of each broker; None for brokers that did not answer."""
        answers = await asyncio.gather(*(self._describe(broker, wanted) for broker in brokers))
        return dict(zip(brokers, answers, strict=True))

    async def _describe(self, broker: int, wanted: Wanted) -> list[DescribedDir] | None:
        if broker == self._broker_id:
            return await self._log_dirs.describe(wanted)
        body = {"wanted": None if wanted is None else {name: sorted(some) for name, some in wanted.items()}}
        try:
            found = await self._rpc.ask(broker, "log_dirs", body, _TIMEOUT_S)
            return [_decoded(each) for each in found["dirs"]]
        except (PeerUnavailable, RequestError, KeyError, TypeError, ValueError):
            return None

    async def alter(self, targets: Mapping[int, Sequence[DirTarget]]) -> dict[int, list[RequestError | None]]:
        """Move partitions of these brokers to other directories: the outcomes, in the order of the targets."""
        answers = await asyncio.gather(*(self._alter(broker, some) for broker, some in targets.items()))
        return dict(zip(targets, answers, strict=True))

    async def _alter(self, broker: int, targets: Sequence[DirTarget]) -> list[RequestError | None]:
        if broker == self._broker_id:
            return await self._log_dirs.alter(targets)
        body = {"targets": [(t.tp.topic, t.tp.partition, t.path) for t in targets]}
        try:
            found = await self._rpc.ask(broker, "alter_log_dirs", body, _TIMEOUT_S)
            outcomes = [
                None if each is None else error_from_code(int(each[0]), str(each[1]))
                for each in found["outcomes"]
            ]
            if len(outcomes) != len(targets):
                raise ValueError(f"{len(outcomes)} outcomes")
        except RequestError as error:
            return [error] * len(targets)
        except (PeerUnavailable, KeyError, TypeError, ValueError) as error:
            return [BrokerNotAvailable(f"Broker {broker} has not answered: {error}")] * len(targets)
        return outcomes

    # ------------------------------------------------------------------ answers

    async def _answer_describe(self, body: Body) -> object:
        asked = body["wanted"]
        wanted = None if asked is None else {str(name): frozenset(some) for name, some in asked.items()}
        return {"dirs": [_encoded(each) for each in await self._log_dirs.describe(wanted)]}

    async def _answer_alter(self, body: Body) -> object:
        targets = [DirTarget(TopicPartition(str(t), int(p)), str(path)) for t, p, path in body["targets"]]
        outcomes = await self._log_dirs.alter(targets)
        return {"outcomes": [None if each is None else (each.code, each.message) for each in outcomes]}


def _encoded(found: DescribedDir) -> dict[str, Any]:
    return {
        "path": found.path,
        "error": None if found.error is None else found.error.message,
        "replicas": [
            (r.tp.topic, r.tp.partition, r.size_bytes, r.offset_lag, r.is_future) for r in found.replicas
        ],
        "total": found.total_bytes,
        "usable": found.usable_bytes,
    }


def _decoded(fields: Mapping[str, Any]) -> DescribedDir:
    return DescribedDir(
        str(fields["path"]),
        None if fields["error"] is None else KafkaStorageError(str(fields["error"])),
        tuple(
            ReplicaInDir(TopicPartition(str(t), int(p)), int(size), int(lag), bool(future))
            for t, p, size, lag, future in fields["replicas"]
        ),
        int(fields["total"]),
        int(fields["usable"]),
    )
