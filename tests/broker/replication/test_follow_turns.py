"""Frames with hundreds of sections and positions are work for several turns of the loop, on both ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from broker.replication.cluster import InlineOffload
from ottla_broker.metrics import Metrics
from ottla_broker.replication import follow_client, follow_stream
from ottla_broker.replication import follow_wire as wire
from ottla_broker.replication.effects import Report, SendFrom
from ottla_broker.replication.follow_client import FollowClient
from ottla_broker.replication.follow_stream import FollowStream, Sending, Surroundings
from ottla_broker.replication.follow_wire import PositionEntry, PositionKind, Section, SectionKind
from ottla_broker.replication.throttle import Throttles
from ottla_core.real.chance import RealChance
from ottla_core.real.clock import RealClock

LEADER, FOLLOWER = UUID(int=1), UUID(int=2)
MANY = 400
KEYS = [wire.partition_key(UUID(int=7), number) for number in range(MANY)]


class Link:
    """Frames in both directions; what is sent is kept."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.arriving: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def send(self, frame: bytes) -> None:
        self.sent.append(bytes(frame))
        await asyncio.sleep(0)  # gRPC needs a turn for each, too.

    async def receive(self) -> bytes | None:
        return await self.arriving.get()

    async def close(self) -> None:
        self.arriving.put_nowait(None)


class TurnCounter:
    """Counts how often something is done in each turn of the loop."""

    def __init__(self) -> None:
        self.counts = [0]
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self.counts.append(0)
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def note(self) -> None:
        self.counts[-1] += 1

    def stop(self) -> None:
        self._handle.cancel()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0)


# ---------------------------------------------------------------------- the follower


class FakeFollowed:
    is_throttled = False

    def __init__(self, key: bytes, appended: Callable[[FakeFollowed], None]) -> None:
        self.key, self._appended = key, appended
        self.end = 0

    def when_flushed(self, report: object) -> None: ...

    def entry(self, says: PositionKind) -> PositionEntry:
        return PositionEntry(self.key, says, 0, 0, self.end, self.end)

    def on_stream(self) -> Report:
        return Report(wants=True)

    on_silence = on_stream

    def on_section(self, section: Section) -> Report:
        self.end += 1
        self._appended(self)
        return Report(wants=False)


def batches(keys: Sequence[bytes]) -> bytes:
    sections = [Section(key, SectionKind.BATCHES, 0, -1, 0, 0, 0, b"") for key in keys]
    headers: list[Any] = [wire.encode_section_header(each, 0) for each in sections]
    return bytes(wire.encode_batches(LEADER.bytes, FOLLOWER.bytes, len(headers), headers))


def positions(frame: bytes) -> list[PositionEntry]:
    return wire.decode_positions(frame, wire.decode_header(frame).count)


class Peers:
    def __init__(self, link: Link) -> None:
        self._link = link

    async def follow(self, leader_id: int) -> Link:
        return self._link


@asynccontextmanager
async def following(appended: Callable[[FakeFollowed], None]) -> Any:
    link = Link()
    client = FollowClient(
        2,
        FOLLOWER,
        1,
        LEADER,
        cast(Any, Peers(link)),
        RealClock(),
        RealChance(),
        Metrics().replication,
    )
    for key in KEYS:
        client.add(FakeFollowed(key, appended))
    running = asyncio.ensure_future(client.run())
    await until(lambda: sum(len(positions(frame)) for frame in link.sent[1:]) == MANY)
    link.sent.clear()
    try:
        yield client, link
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_large_frame_is_appended_in_several_turns_and_reported_once() -> None:
    turns = TurnCounter()
    async with following(lambda _: turns.note()) as (_, link):
        link.arriving.put_nowait(batches(KEYS))
        await until(lambda: bool(link.sent))
    turns.stop()
    assert sum(turns.counts) == MANY
    assert max(turns.counts) <= follow_client._SECTIONS_PER_TURN
    (report,) = link.sent
    assert [(entry.says, entry.end_offset) for entry in positions(report)] == [(PositionKind.HAVE, 1)] * MANY


async def test_a_partition_that_is_removed_while_a_frame_is_appended_gets_nothing_more() -> None:
    """Rule 10: an elected follower stops following before it leads."""
    appended: list[bytes] = []
    last = KEYS[-1]

    def append(followed: FakeFollowed) -> None:
        appended.append(followed.key)
        if len(appended) == 1:
            asyncio.get_running_loop().call_soon(remove)

    async with following(append) as (client, link):

        def remove() -> None:
            client.remove(client._followed[last])

        link.arriving.put_nowait(batches(KEYS))
        await until(lambda: bool(link.sent))
    assert set(appended) == set(KEYS) - {last}
    (report,) = link.sent
    says = {entry.key: entry.says for entry in positions(report)}
    assert says[last] == PositionKind.LEAVE


# ---------------------------------------------------------------------- the leader


class FakeRole:
    """Sends from the beginning to a follower that asks."""

    throttles_sending = False

    def __init__(self, heard: Callable[[], None]) -> None:
        self._heard = heard

    def hear(self, said: Any, outlet: Any) -> list[Any]:
        self._heard()
        return [SendFrom(2, 0)] if said.wants else []

    def is_in_sync(self, broker_id: int) -> bool:
        return True

    def throttles_copying(self, broker_id: int) -> bool:
        return False

    def detach(self, broker_id: int, outlet: object) -> None: ...


class FakeLog:
    """Empty: a section carries the marks only."""

    start_offset = 0
    end_offset = 0


@asynccontextmanager
async def leading(heard: Callable[[], None]) -> Any:
    led = {
        key: SimpleNamespace(
            key=key, leader_epoch=0, high_watermark=0, log=FakeLog(), leading=FakeRole(heard)
        )
        for key in KEYS
    }
    link, probe = Link(), Metrics().replication
    around = Surroundings(LEADER.bytes, cast(Any, led.get), RealClock(), InlineOffload(), probe, Throttles())
    stream = FollowStream(around, link, 2, FOLLOWER.bytes)
    running = asyncio.ensure_future(stream.run())
    try:
        yield stream, link
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def wants() -> bytes:
    entries = [PositionEntry(key, PositionKind.WANT, 0, -1, 0, 0) for key in KEYS]
    return bytes(wire.encode_positions(FOLLOWER.bytes, LEADER.bytes, entries))


def sections(frames: Sequence[bytes]) -> list[Section]:
    return [
        section for frame in frames for section in wire.decode_batches(frame, wire.decode_header(frame).count)
    ]


async def test_positions_and_sections_by_the_hundred_take_several_turns(monkeypatch: Any) -> None:
    heard, filled = TurnCounter(), TurnCounter()
    shipped = FollowStream._fill

    def fill(stream: FollowStream, *arguments: Any) -> int:
        filled.note()
        return shipped(stream, *arguments)

    monkeypatch.setattr(FollowStream, "_fill", fill)
    async with leading(heard.note) as (_, link):
        link.arriving.put_nowait(wants())
        await until(lambda: len(sections(link.sent)) == MANY)
    for turns, most in ((heard, follow_stream._ENTRIES_PER_TURN), (filled, follow_stream._SECTIONS_PER_TURN)):
        turns.stop()
        assert sum(turns.counts) >= MANY
        assert max(turns.counts) <= most
    assert [section.key for section in sections(link.sent)] == KEYS


async def test_an_answer_made_while_a_frame_is_built_precedes_later_batches_of_its_partition(
    monkeypatch: Any,
) -> None:
    last = KEYS[-1]
    shipped, done = FollowStream._fill, list[Sending]()

    def fill(stream: FollowStream, sending: Sending, *arguments: Any) -> int:
        if not done:
            # The follower has to begin elsewhere, and asks again before this frame leaves.
            def ask_again() -> None:
                stream._tell(stream._sendings[last], SectionKind.START, -1, 5)
                stream._on_entry(PositionEntry(last, PositionKind.WANT, 0, -1, 5, 5))

            asyncio.get_running_loop().call_soon(ask_again)
        done.append(sending)
        return shipped(stream, sending, *arguments)

    async with leading(lambda: None) as (_, link):
        monkeypatch.setattr(follow_stream, "_ENTRIES_PER_TURN", MANY + 1)
        monkeypatch.setattr(FollowStream, "_fill", fill)
        link.arriving.put_nowait(wants())
        await until(lambda: len(sections(link.sent)) == MANY + 1)
    of_last = [section.tells for section in sections(link.sent) if section.key == last]
    assert of_last == [SectionKind.START, SectionKind.BATCHES]


async def test_a_frame_whose_partitions_all_leave_while_it_is_built_is_not_waited_for() -> None:
    async with leading(lambda: None) as (stream, _):
        sending = Sending(stream, stream._around.find(KEYS[0]), FakeRole(lambda: None), 0)  # type: ignore[arg-type]
        stream._sendings[KEYS[0]] = sending

        async def take(*_: Any) -> tuple[int, int]:
            sending.next_offset = 0
            stream._note_sent(sending, 1000)
            stream._leave(sending)
            return 1, 0

        stream._take = take  # type: ignore[method-assign]
        stream._live.append(sending)
        assert await stream._next_frame() is not None
        assert not stream._frames
        assert stream._may_send()
