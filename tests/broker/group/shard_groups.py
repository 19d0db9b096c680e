"""The group service over one shard, without partitions: what edges are tested with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ottla_broker.coordination.shard import Now, replay_entry
from ottla_broker.group.messages import ListedGroup
from ottla_broker.group.shard import GroupShard
from ottla_broker.groups_config import GroupsConfig
from ottla_broker.metadata.image import BrokerImage, ClusterImage
from ottla_broker.metrics import GroupsProbe
from ottla_broker.requests import Maybe
from ottla_broker.service.groups import GroupService
from ottla_broker.steps import Steps
from ottla_core.errors import RequestError
from ottla_core.real.chance import RealChance


class _Image:
    def __init__(self, image: ClusterImage) -> None:
        self.image = image


class ShardGroups(GroupService):
    """Everything is committed at once; time stands still."""

    def __init__(self, image: ClusterImage) -> None:
        self._config = GroupsConfig(initial_rebalance_delay_ms=0)
        self._metadata = _Image(image)  # type: ignore[assignment]
        self._chance = RealChance()
        self._shard = GroupShard(self._config, GroupsProbe(), record_bytes_max=100_000)
        self._tickets = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def find_coordinator(self, group: str) -> BrokerImage:
        self._check_group(group)
        return next(iter(self._metadata.image.brokers.values()))

    def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> Steps[list[ListedGroup]]:
        self._runtime = SimpleNamespace(is_loading=False, ready=lambda: [(0, None)])  # type: ignore[assignment]
        return super().list_groups(states, types)

    def _ask_shard(self, index: int, request: Any) -> Maybe[Any]:
        return self._ask("", request)

    def _ask(self, group: str, request: Any) -> Maybe[Any]:
        self._tickets += 1
        ticket = self._tickets
        decision = self._shard.handle(request, ticket, Now(1_700_000_000_000, 0))
        waiting = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        for record in decision.records:
            replay_entry(self._shard, record)
        for each, reply in decision.replies:
            future = self._waiting.pop(each)
            if not future.done():  # Its client may have gone.
                future.set_result(reply)
        return _raised(waiting)


async def _raised(waiting: asyncio.Future[Any]) -> Any:
    reply = await waiting
    if isinstance(reply, RequestError):
        raise reply
    return reply
