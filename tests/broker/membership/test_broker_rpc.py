"""How many requests each broker may have open, so that one that asks too much is refused and the others are not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from broker.controller.world import NoPeers
from ottla_broker.membership.broker_rpc import (
    ANSWERING_MAX,
    ANSWERING_OF_KIND_MAX,
    ANSWERING_PER_BROKER_MAX,
    Body,
    BrokerRpc,
)
from ottla_core.errors import ThrottlingQuotaExceeded

KINDS = ("hold", "witness", "create_topics", "delete_topics", "grow_topic", "more")


def asking(kind: str) -> bytes:
    return json.dumps({"v": 1, "ask": kind}).encode()


class Board:
    """BrokerRpc of which none is answered before the test says so."""

    def __init__(self) -> None:
        self.rpc = BrokerRpc(NoPeers())
        self.release = asyncio.Event()
        self.open: list[asyncio.Task[bytes]] = []
        for kind in KINDS:
            self.rpc.answered_by(kind, self._answer)

    async def _answer(self, body: Body) -> object:
        await self.release.wait()
        return "done"

    async def flood(self, caller: int, kind: str, count: int) -> int:
        """How many of `count` requests are taken, that is, neither answered nor refused."""
        asked = [asyncio.ensure_future(self.rpc.answer(asking(kind), caller)) for _ in range(count)]
        for _ in range(5):
            await asyncio.sleep(0)
        self.open += asked
        for task in asked:
            if task.done():
                assert json.loads(task.result())["error"]["code"] == ThrottlingQuotaExceeded.code
        return sum(not task.done() for task in asked)


@asynccontextmanager
async def board() -> AsyncIterator[Board]:
    made = Board()
    yield made
    made.release.set()
    await asyncio.gather(*made.open)


async def test_a_thousand_holds_of_one_broker_leave_room_for_all_others() -> None:
    async with board() as made:
        assert await made.flood(1, "hold", 1000) == ANSWERING_OF_KIND_MAX
        assert await made.flood(1, "witness", 1) == 1, "another kind of the same broker"
        assert await made.flood(2, "hold", 1) == 1
        assert await made.flood(2, "create_topics", 3) == 3


async def test_one_broker_has_a_bound_over_all_kinds() -> None:
    async with board() as made:
        taken = [await made.flood(1, kind, 1000) for kind in KINDS]
        assert sum(taken) == ANSWERING_PER_BROKER_MAX
        assert await made.flood(2, "witness", 1) == 1


async def test_all_brokers_together_have_a_bound() -> None:
    async with board() as made:
        callers = ANSWERING_MAX // ANSWERING_OF_KIND_MAX
        taken = [await made.flood(caller, "hold", ANSWERING_OF_KIND_MAX + 1) for caller in range(callers + 3)]
        assert sum(taken) == ANSWERING_MAX


async def test_an_answered_question_makes_room() -> None:
    async with board() as made:
        await made.flood(1, "hold", 1000)
        made.release.set()
        await asyncio.gather(*made.open)
        made.release.clear()
        assert await made.flood(1, "hold", 1000) == ANSWERING_OF_KIND_MAX
        made.release.set()
        await asyncio.gather(*made.open)
        assert not made.rpc._of_broker and not made.rpc._of_kind, "nothing is kept of who asked"
