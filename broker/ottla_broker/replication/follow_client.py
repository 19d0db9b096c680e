"""The follower's side: one Follow stream to one leader broker, for all partitions that follow it. [S]

Connects, reports positions, appends what arrives, reports again. Positions are built when they are sent, so
many appends make one report; a report is sent after each whole frame. A large frame is appended in several turns of the
loop: what changes between them, changes as between two frames.

* C1 (rule 9): frames from another incarnation than the one greeted, or for another incarnation of this broker, are
  dropped.
* C2 (rule 10): a removed partition gets nothing more from frames that are still in flight.
* C3: an unanswered request for batches is repeated every `BEAT_S`: the leader may learn of its epoch later than the
  follower.
* C4: the report of a throttled section is held back until the token bucket has paid for it, so the leader sends no
  more of it meanwhile (`follower.replication.throttled.rate`). The leader marks such sections, only while the replica
  is not in sync; the next section without the mark releases the report, because commits wait for it then.

It must never touch a log itself: partitions do, as their machine decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

import structlog

from ottla_broker.event_loop import give_way
from ottla_broker.metrics import ReplicationProbe
from ottla_broker.replication import follow_wire as wire
from ottla_broker.replication.effects import Report
from ottla_broker.replication.follow_wire import Kind, PositionEntry, PositionKind, Section, WireError
from ottla_broker.replication.throttle import Throttle
from ottla_core.errors import CorruptMessage, KafkaStorageError, RequestError
from ottla_core.ports.chance import Chance
from ottla_core.ports.clock import Clock
from ottla_core.ports.peers import FollowLink, Peers, PeerUnavailable

_log = structlog.get_logger("ottla.follow")

#: Between attempts to reach the leader: doubles from the first to the last, and is spread by half.
_BACKOFF_FIRST_S = 0.05
_BACKOFF_LAST_S = 1.0
#: Interval of heartbeats on an idle stream; a leader with an unconfirmed lease relies on them (rule 14).
BEAT_S = 0.5
#: The stream is dead after this time without a frame from the leader, whatever the transport reports.
SILENCE_S = 10.0
#: Positions in one frame: 4 µs each, in one turn of the loop.
_ENTRIES_MAX = 500
#: Sections that are appended in one turn of the loop, at 50 µs each.
_SECTIONS_PER_TURN = 32
#: Partitions that ask for batches, or ask again, in one turn of the loop.
_ASKING_PER_TURN = 500


class Followed(Protocol):
    """A following partition, as the stream sees it."""

    @property
    def key(self) -> bytes: ...

    @property
    def is_throttled(self) -> bool: ...

    def when_flushed(self, report: Callable[[], None] | None) -> None: ...

    def entry(self, says: PositionKind) -> PositionEntry: ...

    def on_stream(self) -> Report | None: ...

    def on_silence(self) -> Report | None: ...

    def on_section(self, section: Section) -> Report | None: ...


class FollowClient:
    def __init__(
        self,
        own_id: int,
        incarnation: UUID,
        leader_id: int,
        leader_incarnation: UUID,
        peers: Peers,
        clock: Clock,
        chance: Chance,
        probe: ReplicationProbe,
        on_lost: Callable[[int], None] | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        self._on_lost = on_lost
        self._own_id = own_id
        self._own = incarnation.bytes
        self.leader_id = leader_id
        self.leader_incarnation = leader_incarnation
        self._leader = leader_incarnation.bytes
        self._peers = peers
        self._clock = clock
        self._chance = chance
        self._probe = probe
        self._throttle = throttle or Throttle()
        self._followed: dict[bytes, Followed] = {}
        #: Reports to send, in order; a position does not replace a request for batches.
        self._reports: dict[bytes, PositionKind] = {}
        #: Partitions whose leader asked for their log start.
        self._starts: dict[bytes, None] = {}
        #: The last report of a partition in its epoch: it no longer follows.
        self._farewells: dict[bytes, PositionEntry] = {}
        #: Partitions whose request for batches is not answered yet.
        self._unheard: dict[bytes, None] = {}
        #: Of these, partitions that were sent invalid data: nothing more reaches them until they have asked again.
        self._spoilt: dict[bytes, None] = {}
        #: Reports that wait for tokens (C4), in order.
        self._held: dict[bytes, PositionKind] = {}
        self._held_timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._is_connected = False
        #: A frame is being appended: its report comes after it.
        self._is_taking = False
        self._spoke = False
        self._beat_due = False
        self._heard_at = 0.0
        self._failures = 0

    def __len__(self) -> int:
        return len(self._followed)

    # ------------------------------------------------------------------ partitions

    def add(self, followed: Followed) -> None:
        key = followed.key
        self._followed[key] = followed
        followed.when_flushed(lambda: self._report(key, PositionKind.HAVE))
        if self._is_connected:
            self._begin(followed)

    def remove(self, followed: Followed) -> None:
        """C2: from now on, nothing from the leader reaches the partition."""
        key = followed.key
        if self._followed.get(key) is not followed:
            return
        del self._followed[key]
        followed.when_flushed(None)
        self._reports.pop(key, None)
        self._starts.pop(key, None)
        self._unheard.pop(key, None)
        self._spoilt.pop(key, None)
        self._held.pop(key, None)
        if self._is_connected:
            self._farewells[key] = followed.entry(PositionKind.LEAVE)
            self._wake.set()

    def _begin(self, followed: Followed) -> None:
        if followed.on_stream() is not None:
            self._report(followed.key, PositionKind.WANT)

    def _report(self, key: bytes, says: PositionKind) -> None:
        if self._is_connected and key in self._followed:
            if says == PositionKind.WANT:
                self._unheard[key] = None
                self._held.pop(key, None)
            elif key in self._held:
                return  # A flush; the position is built when the report is sent.
            elif self._reports.get(key) == PositionKind.WANT:
                return
            self._reports[key] = says
            self._wake.set()

    # ------------------------------------------------------------------ life

    async def run(self) -> None:
        """Stay connected until cancelled."""
        said = ""
        while True:
            reason = await self._connect_once()
            if reason != said:
                said = reason
                _log.info("not connected to the leader", leader=self.leader_id, reason=reason)
            if self._on_lost is not None:
                self._on_lost(self.leader_id)
            pause_s = min(_BACKOFF_LAST_S, _BACKOFF_FIRST_S * 2**self._failures)
            self._failures = min(self._failures + 1, 10)
            await self._clock.sleep(pause_s * (0.5 + self._chance.fraction() / 2))

    async def _connect_once(self) -> str:
        try:
            link = await self._peers.follow(self.leader_id)
        except PeerUnavailable as error:
            return str(error)
        try:
            await link.send(wire.encode_hello(self._own, self._leader, self._own_id, self.leader_id))
            return await self._converse(link)
        except (PeerUnavailable, WireError) as error:
            return str(error)
        finally:
            await link.close()

    async def _converse(self, link: FollowLink) -> str:
        self._is_connected = True
        self._probe.streams_to_leaders += 1
        self._heard_at = self._clock.monotonic()
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(part) for part in (self._read(link), self._write(link), self._beat())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            self._is_connected = self._is_taking = False
            self._probe.streams_to_leaders -= 1
            self._reports.clear()
            self._starts.clear()
            self._farewells.clear()
            self._unheard.clear()
            self._spoilt.clear()
            self._held.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _beat(self) -> str:
        while True:
            await self._clock.sleep(BEAT_S)
            if self._clock.monotonic() - self._heard_at > SILENCE_S:
                return f"silent for {SILENCE_S:g} s"
            for number, key in enumerate(list(self._unheard), 1):
                if key in self._unheard:
                    self._spoilt.pop(key, None)
                    if self._followed[key].on_silence() is not None:
                        self._report(key, PositionKind.WANT)
                if number % _ASKING_PER_TURN == 0:
                    await give_way()
            if not self._spoke:
                self._beat_due = True
                self._wake.set()
            self._spoke = False

    # ------------------------------------------------------------------ talking

    async def _begin_all(self) -> None:
        for number, followed in enumerate(list(self._followed.values()), 1):
            if self._followed.get(followed.key) is followed:
                self._begin(followed)
            if number % _ASKING_PER_TURN == 0:
                await give_way()

    async def _write(self, link: FollowLink) -> str:
        await self._begin_all()
        wake = self._wake
        while True:
            wake.clear()
            has_news = self._reports or self._starts or self._farewells or self._beat_due
            if self._is_taking or not has_news:
                await wake.wait()
                continue
            self._spoke, self._beat_due = True, False
            await link.send(wire.encode_positions(self._own, self._leader, self._next_entries()))

    def _next_entries(self) -> list[PositionEntry]:
        farewells = self._farewells
        entries = [farewells.pop(key) for key in list(farewells)[:_ENTRIES_MAX]]
        reports = self._reports
        keys = list(reports)[: _ENTRIES_MAX - len(entries)]
        entries += [self._followed[key].entry(reports.pop(key)) for key in keys]
        starts = self._starts
        for key in list(starts)[: _ENTRIES_MAX - len(entries)]:
            del starts[key]
            entries.append(self._followed[key].entry(PositionKind.START))
        return entries

    async def _read(self, link: FollowLink) -> str:
        while True:
            frame = await link.receive()
            if frame is None:
                return "ended by the leader"
            header = wire.decode_header(frame)
            if header.kind != Kind.BATCHES:
                raise WireError(f"A leader sent a frame of kind {header.kind}.")
            if header.sender != self._leader or header.receiver != self._own:
                continue  # C1
            self._heard_at = self._clock.monotonic()
            self._failures = 0
            self._probe.frames_in += 1
            self._is_taking = True
            for number, section in enumerate(wire.decode_batches(frame, header.count)):
                if number and number % _SECTIONS_PER_TURN == 0:
                    await give_way()
                self._take(section)
            self._is_taking = False
            self._wake.set()

    def _take(self, section: Section) -> None:
        followed = self._followed.get(section.key)
        if followed is None or section.key in self._spoilt:
            return  # C2
        try:
            report = followed.on_section(section)
        except KafkaStorageError as error:
            _log.error("replica given up after a disk error", followed=repr(followed), reason=str(error))
            self.remove(followed)
            return
        except (CorruptMessage, RequestError) as error:
            _log.error("invalid data from the leader", followed=repr(followed), reason=str(error))
            self._probe.bad_sections += 1
            self._refuse(followed)
            return
        self._probe.bytes_in += len(section.records)
        self._unheard.pop(section.key, None)
        if section.is_throttled and len(section.records) and followed.is_throttled:
            self._pay(section.key, len(section.records))
        elif self._held.pop(section.key, None) is not None:
            report = report or Report(wants=False)
        if report is not None:
            self._report(section.key, PositionKind.WANT if report.wants else PositionKind.HAVE)
        if section.asks_start:
            self._starts[section.key] = None
            self._wake.set()

    def _pay(self, key: bytes, size: int) -> None:
        """C4: take tokens for a section; hold its report back if there are too few."""
        now = self._clock.monotonic()
        self._probe.throttled_in += size
        self._throttle.take(size, now)
        wait_s = self._throttle.wait_s(now)
        if wait_s:
            self._held[key] = PositionKind.HAVE
            self._release_after(wait_s)

    def _release_after(self, wait_s: float) -> None:
        if self._held_timer is None:
            self._held_timer = asyncio.get_running_loop().call_later(wait_s, self._release)

    def _release(self) -> None:
        self._held_timer = None
        wait_s = self._throttle.wait_s(self._clock.monotonic())
        if self._held and wait_s:
            self._release_after(wait_s)
            return
        held, self._held = self._held, {}
        for key, says in held.items():
            self._report(key, says)

    def _refuse(self, followed: Followed) -> None:
        """Invalid data is neither appended nor reported. It is requested again at the next heartbeat, in case it was
        damaged in transit.

        The leader is asked to send nothing more of the partition until then: else it waits for a report of what it
        sent, and other partitions with it, or sends the same again and again.
        """
        key = followed.key
        followed.on_stream()
        self._reports.pop(key, None)
        self._held.pop(key, None)
        self._unheard[key] = self._spoilt[key] = None
        self._farewells[key] = followed.entry(PositionKind.LEAVE)
        self._wake.set()
