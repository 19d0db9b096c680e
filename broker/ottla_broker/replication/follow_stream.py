"""The leader's end of one Follow stream: receives positions, sends batches. [S]

Theory of operation. Each partition that the follower wants has a `Sending`: the next offset to send, and what is
in flight. An append marks it, and wakes a sleeping writer in the same turn of the loop: no timer and no poll
lies between an append and its frame. While a frame is in flight, further appends gather in the log and go together in
the next one; so frames are small when there is little to do and large under load.

* S1: one writer task per stream; grpc.aio allows no second concurrent write.
* S2: bytes and frames sent and not yet reported back are bounded, whatever the transport buffers. That bounds the
  follower's memory, and makes frames grow with the load: a small message costs gRPC as much as a large one.
* S3 (rule 12): partitions that catch up take turns in the rest of a frame after the in-sync ones, and have
  their own, smaller bound of bytes in flight. So in-sync partitions wait behind at most that, never behind a full
  window. Their bytes in flight do not count against the frames of in-sync partitions, because a throttled follower
  reports late. Throttled partitions have a third queue and bound, and share the broker's token bucket. A partition
  changes its queue as soon as its follower is proposed for the ISR.
* S4: batches and indexes are read from the page cache; a thread reads what is not cached, while the
  other partitions continue. A read that
  fails is retried after a pause: it delays only its own partition.
* S5: a new high watermark is sent within `_WATERMARK_S`, with batches if there are any, else by itself.
* S6: a frame of many sections is built, and one of many positions handled, in several turns of the loop. What changes
  between them, changes as if the sections so far were under way already. An answer without batches precedes the
  batches of its partition.

The leader machine interprets positions; this file must never decide that something is committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import NamedTuple
from uuid import UUID

import structlog

from ottla_broker.event_loop import give_way
from ottla_broker.log.log import Extent, Log, NotLoaded
from ottla_broker.log.reader import Batches, LogReader
from ottla_broker.metrics import ReplicationProbe
from ottla_broker.replication import follow_wire as wire
from ottla_broker.replication.effects import LeaderEffect, SendFrom, TellDivergence, TellStart
from ottla_broker.replication.follow_wire import (
    Kind,
    PositionEntry,
    PositionKind,
    Section,
    SectionKind,
    WireError,
)
from ottla_broker.replication.leader import Position
from ottla_broker.replication.led import Led, LedRole
from ottla_broker.replication.throttle import Throttles
from ottla_broker.replication.whole import whole_batches_in
from ottla_core.errors import CorruptMessage, KafkaStorageError, OffsetOutOfRange
from ottla_core.ids import NO_EPOCH
from ottla_core.ports.clock import Clock
from ottla_core.ports.disk import Buffer
from ottla_core.ports.offload import Offload
from ottla_core.ports.peers import FollowLink, PeerUnavailable

_log = structlog.get_logger("ottla.follow")

#: Bytes of batches in one frame; grpc.aio moves 1 MiB messages at four times the rate of 64 KiB ones.
_FRAME_BYTES = 1024 * 1024
#: Sections in one frame, so that a thousand small partitions do not delay each other's acknowledgements.
_FRAME_SECTIONS = 512
#: Sections that are located and read in one turn of the loop, at 25 µs each.
_SECTIONS_PER_TURN = 64
#: Positions that are handled in one turn of the loop, at 10 µs each and more where writes wait for them.
_ENTRIES_PER_TURN = 128
#: Sent and not reported: a few frames, so that the follower never waits for the leader. This bounds its memory.
_IN_FLIGHT_BYTES = 4 * _FRAME_BYTES
#: Frames with batches that were sent and not reported: two of half the size keep both ends busy.
_FRAMES_FLYING_MAX = 2
#: While a frame is in flight, another is sent only if it is at least this large; a smaller one waits for the first, and
#: grows meanwhile (Nagle's rule). A frame and its report cost gRPC on both ends together as much as 300 KB of batches.
_WORTHWHILE_BYTES = _FRAME_BYTES // 2
#: The same bound in bytes for partitions that catch up: an in-sync append may wait behind that, some milliseconds.
_BEHIND_BYTES = 512 * 1024
#: Bytes per turn of a partition that catches up.
_HELPING_BYTES = 256 * 1024
#: The same for partitions that are throttled: they need no more for their rate, and must not fill the bound of others.
_THROTTLED_BYTES = 256 * 1024
#: Queues of a stream; also the index of their bytes in flight.
_LIVE, _BEHIND, _THROTTLED = range(3)
#: How long a high watermark waits for batches to travel with: a separate frame for each would double the number of
#: frames under steady load. A new leader learns it from the others' positions, but a consumer that reads from this
#: follower (KIP-392) sees the last records of a pause so much later than one that reads from the leader.
_WATERMARK_S = 0.025
#: Pause after a failed read.
_REREAD_S = 1.0
#: Requests for epochs that this broker does not know yet: as many as the partitions of a large broker, 250 bytes
#: each. A follower repeats unanswered requests, so a dropped one is late by half a second.
_EARLY_MAX = 10_000
#: Interval of heartbeats on an idle stream; and the silence of the follower that ends the stream.
BEAT_S = 1.0
SILENCE_S = 10.0


class Surroundings(NamedTuple):
    """What all streams of a broker share."""

    incarnation: bytes
    find: Callable[[bytes], Led | None]
    clock: Clock
    offload: Offload
    probe: ReplicationProbe
    throttles: Throttles


class Sending:
    """State of sending one partition to the follower; the partition's outlet (`Outlet`)."""

    __slots__ = (
        "cold",
        "epoch",
        "flying",
        "is_ended",
        "is_queued",
        "is_reading",
        "lane",
        "led",
        "mark_sent",
        "next_offset",
        "reader",
        "role",
        "start_sent",
        "stream",
    )

    def __init__(self, stream: FollowStream, led: Led, role: LedRole, epoch: int) -> None:
        self.stream = stream
        self.led = led
        self.role = role
        self.epoch = epoch
        self.next_offset = -1
        #: The last values sent of these two; -1 means that the follower waits for an answer.
        self.mark_sent = -1
        self.start_sent = -1
        self.is_queued = False
        #: The queue that it is in, or was in last.
        self.lane = _LIVE
        self.is_reading = False
        self.is_ended = False
        #: (end offset, bytes, queue) of sections sent and not reported.
        self.flying: deque[tuple[int, int, int]] = deque()
        self.reader = LogReader(stream.offload)
        #: Batches that a thread has read, from `next_offset` on.
        self.cold: Batches | None = None

    @property
    def heard_at(self) -> float:
        return self.stream.heard_at

    def mark(self, size: int = 0) -> None:
        stream = self.stream
        if self.lane == _LIVE:
            stream.waiting_bytes += size
        if not self.is_queued or (self.lane == _THROTTLED and stream.lane_of(self) != _THROTTLED):
            stream.enqueue(self)
        elif stream.waiting_bytes >= _WORTHWHILE_BYTES:
            stream.wake()

    def mark_watermark(self) -> None:
        if not self.is_queued:
            self.stream.enqueue_soon(self)

    def end(self) -> None:
        self.stream.forget(self)

    def reject(self) -> None:
        self.stream.reject(self)


class FollowStream:
    def __init__(self, around: Surroundings, link: FollowLink, follower: int, incarnation: bytes) -> None:
        self._around = around
        self._link = link
        self.offload = around.offload
        self.follower = follower
        self._incarnation = incarnation
        self._incarnation_id = UUID(bytes=incarnation)
        self.heard_at = around.clock.monotonic()
        self._sendings: dict[bytes, Sending] = {}
        #: Requests for epochs that this broker does not know yet.
        self._early: dict[bytes, PositionEntry] = {}
        self._live: deque[Sending] = deque()
        self._behind: deque[Sending] = deque()
        self._throttled: deque[Sending] = deque()
        #: Pending while throttled partitions wait for tokens.
        self._tokens_timer: asyncio.TimerHandle | None = None
        #: Answers without batches, ready to send: the last one for each partition.
        self._told: dict[bytes, bytes] = {}
        #: High watermarks that wait for batches to travel with (S5).
        self._marks: dict[Sending, None] = {}
        self._marks_timer: asyncio.TimerHandle | None = None
        #: Bytes in flight of each queue.
        self._flying = [0, 0, 0]
        #: Of in-sync partitions: total bytes sent and reported, and for each frame in flight the total reported once it
        #: has arrived.
        self._sent_bytes = 0
        self._landed_bytes = 0
        self._frames: deque[int] = deque()
        #: Estimate of bytes appended to in-sync partitions and not sent; an error makes a frame smaller, or late by one
        #: round trip.
        self.waiting_bytes = 0
        self._wake = asyncio.Event()
        self._beat_due = False
        self._spoke = False
        self._reads: dict[asyncio.Task[None], None] = {}
        self._tasks: list[asyncio.Task[str]] = []

    # ------------------------------------------------------------------ life

    async def run(self) -> str:
        """Serve until the stream ends; return the reason."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(part()) for part in (self._read, self._write, self._beat)]
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            ended = done.pop()
            return "stopped" if ended.cancelled() else ended.result()
        except (PeerUnavailable, WireError) as error:
            return str(error)
        finally:
            await self._end()

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _end(self) -> None:
        for timer in (self._marks_timer, self._tokens_timer):
            if timer is not None:
                timer.cancel()
        for sending in list(self._sendings.values()):
            self._leave(sending)
        tasks = [*self._tasks, *self._reads]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._link.close()

    async def _beat(self) -> str:
        clock = self._around.clock
        while True:
            await clock.sleep(BEAT_S)
            if clock.monotonic() - self.heard_at > SILENCE_S:
                return f"silent for {SILENCE_S:g} s"
            if not self._spoke:
                self._beat_due = True
                self._wake.set()
            self._spoke = False

    # ------------------------------------------------------------------ hearing

    async def _read(self) -> str:
        while True:
            frame = await self._link.receive()
            if frame is None:
                return "ended by the follower"
            header = wire.decode_header(frame)
            if header.kind != Kind.POSITIONS:
                raise WireError(f"A follower sent a frame of kind {header.kind}.")
            if header.sender != self._incarnation or header.receiver != self._around.incarnation:
                continue  # Rule 9.
            self.heard_at = self._around.clock.monotonic()
            for number, entry in enumerate(wire.decode_positions(frame, header.count), 1):
                self._on_entry(entry)
                if number % _ENTRIES_PER_TURN == 0:
                    await give_way()

    def _on_entry(self, entry: PositionEntry) -> None:
        sending = self._sendings.get(entry.key)
        if sending is not None and sending.epoch != entry.leader_epoch:
            if entry.leader_epoch < sending.epoch:
                return  # Rule 9.
            self._leave(sending)
            sending = None
        if entry.says == PositionKind.LEAVE:
            self._early.pop(entry.key, None)
            if sending is not None:
                self._leave(sending)
        elif entry.says == PositionKind.WANT:
            self._want(entry, sending)
        elif entry.says == PositionKind.START:
            if sending is not None:
                sending.role.hear_start(self._position(entry))
        elif sending is not None:
            self._landed(sending, entry.end_offset)
            self._do(sending, sending.role.hear(self._position(entry), sending))

    def _want(self, entry: PositionEntry, sending: Sending | None) -> None:
        led = self._around.find(entry.key)
        role = None if led is None else led.leading
        if led is None or led.leader_epoch < entry.leader_epoch:
            self._keep_early(entry)
            return
        if role is None or led.leader_epoch != entry.leader_epoch:
            return  # Rule 9: the follower learns of the new epoch from its own image.
        self._early.pop(entry.key, None)
        if sending is None or sending.role is not role:
            sending = self._sendings[entry.key] = Sending(self, led, role, entry.leader_epoch)
        self._reset(sending)
        self._do(sending, role.hear(self._position(entry), sending))

    def _keep_early(self, entry: PositionEntry) -> None:
        """Keep the request. Bounded: the follower chooses the key, and the partition may not exist."""
        self._early.pop(entry.key, None)
        if len(self._early) >= _EARLY_MAX:
            del self._early[next(iter(self._early))]
        self._early[entry.key] = entry

    def on_led(self, key: bytes) -> None:
        entry = self._early.pop(key, None)
        if entry is not None:
            self._on_entry(entry)

    def _position(self, entry: PositionEntry) -> Position:
        return Position(
            self.follower,
            self._incarnation_id,
            entry.leader_epoch,
            entry.last_epoch,
            entry.end_offset,
            entry.position,
            entry.says == PositionKind.WANT,
        )

    def _do(self, sending: Sending, effects: Sequence[LeaderEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendFrom):
                sending.next_offset = effect.offset
                sending.mark()
            elif isinstance(effect, TellDivergence):
                self._tell(sending, SectionKind.DIVERGED, effect.epoch, effect.end_offset)
            elif isinstance(effect, TellStart):
                self._tell(sending, SectionKind.START, NO_EPOCH, effect.offset)

    def _tell(self, sending: Sending, tells: SectionKind, epoch: int, offset: int) -> None:
        """The follower cannot continue at its position; it will ask again."""
        self._reset(sending)
        log = sending.led.log
        section = Section(
            sending.led.key,
            tells,
            sending.epoch,
            epoch,
            offset,
            sending.led.high_watermark,
            log.start_offset,
            b"",
        )
        self._told[sending.led.key] = wire.encode_section_header(section, 0)
        self._wake.set()

    # ------------------------------------------------------------------ what is under way

    def _landed(self, sending: Sending, end_offset: int) -> None:
        flying = sending.flying
        if flying and flying[0][0] <= end_offset:
            while flying and flying[0][0] <= end_offset:
                self._land(*flying.popleft())
            self.wake()  # There may be room again.

    def _land(self, end_offset: int, size: int, lane: int) -> None:
        """A section is no longer in flight."""
        self._flying[lane] -= size
        if lane == _LIVE:
            self._landed_bytes += size
            frames = self._frames
            while frames and frames[0] <= self._landed_bytes:
                frames.popleft()

    def _reset(self, sending: Sending) -> None:
        """Forget what is in flight: the follower restarts or leaves, and will not report it."""
        while sending.flying:
            self._land(*sending.flying.popleft())
        sending.next_offset = sending.mark_sent = sending.start_sent = -1
        sending.cold = None
        self._wake.set()

    def _leave(self, sending: Sending) -> None:
        """The follower no longer follows this partition, or not from this broker."""
        self.forget(sending)
        sending.role.detach(self.follower, sending)

    def reject(self, sending: Sending) -> None:
        """Make the follower ask again. It may be a replica already that was removed and added in this epoch, and has
        asked before this broker knew of either."""
        self._tell(sending, SectionKind.START, NO_EPOCH, sending.led.log.start_offset)
        self.forget(sending)

    def forget(self, sending: Sending) -> None:
        if not sending.is_ended:
            self._reset(sending)
            sending.is_ended = True
            self._marks.pop(sending, None)
            if self._sendings.get(sending.led.key) is sending:
                del self._sendings[sending.led.key]

    # ------------------------------------------------------------------ queues

    def enqueue(self, sending: Sending) -> None:
        sending.is_queued = True
        if self._marks:
            self._marks.pop(sending, None)
        lane = self.lane_of(sending)
        if lane == _LIVE and sending.lane == _THROTTLED:
            sending.mark_sent = -1  # A section that is not throttled makes the follower report at once.
        sending.lane = lane
        (self._live, self._behind, self._throttled)[lane].append(sending)
        self.wake()

    def lane_of(self, sending: Sending) -> int:
        role = sending.role
        if role.is_in_sync(self.follower):
            return _LIVE
        return _THROTTLED if role.throttles_sending or role.throttles_copying(self.follower) else _BEHIND

    def wake(self) -> None:
        """Wake the writer if batches wait and it could send them."""
        flying = self._flying
        if (
            (self._live and self._may_send())
            or (self._behind and flying[_BEHIND] < _BEHIND_BYTES)
            or (self._throttled and flying[_THROTTLED] < _THROTTLED_BYTES and self._tokens_timer is None)
        ):
            self._wake.set()

    def _may_send(self) -> bool:
        frames = len(self._frames)
        if not frames:
            return True
        # Partitions that catch up send full turns, and a frame for them can carry in-sync ones, too.
        return frames < _FRAMES_FLYING_MAX and (self.waiting_bytes >= _WORTHWHILE_BYTES or bool(self._behind))

    def enqueue_soon(self, sending: Sending) -> None:
        self._marks[sending] = None
        if self._marks_timer is None:
            self._marks_timer = asyncio.get_running_loop().call_later(_WATERMARK_S, self._marks_are_due)

    def _marks_are_due(self) -> None:
        self._marks_timer = None
        marks, self._marks = self._marks, {}
        for sending in marks:
            sending.mark()

    # ------------------------------------------------------------------ sending

    async def _write(self) -> str:
        link, wake = self._link, self._wake
        while True:
            wake.clear()
            frame = await self._next_frame()
            if frame is None:
                await wake.wait()
                continue
            self._spoke = True
            self._around.probe.frames_out += 1
            await link.send(frame)

    async def _next_frame(self) -> bytes | None:
        """The next frame, up to its maximum size; None if there is nothing to send."""
        parts: list[Buffer] = []
        count = len(self._told)
        if count:
            parts += self._told.values()
            self._told = {}
        room = min(_FRAME_BYTES, _IN_FLIGHT_BYTES - sum(self._flying))
        if self._live and self._may_send():
            sent = self._sent_bytes
            more, room = await self._take(self._live, room, _FRAME_BYTES, parts)
            count += more
            if self._sent_bytes > max(sent, self._landed_bytes):
                self._frames.append(self._sent_bytes)  # Unless its partitions have all left meanwhile.
            self.waiting_bytes = max(0, self.waiting_bytes - self._sent_bytes + sent) if self._live else 0
        if self._behind:
            most = min(room, _BEHIND_BYTES - self._flying[_BEHIND])
            more, left = await self._take(self._behind, most, _HELPING_BYTES, parts)
            count, room = count + more, room - (most - left)
        if self._throttled:
            count += await self._take_throttled(room, parts)
        if not count and not self._beat_due:
            return None
        self._beat_due = False
        return wire.encode_batches(self._around.incarnation, self._incarnation, count, parts)

    async def _take_throttled(self, room: int, parts: list[Buffer]) -> int:
        """Add sections of throttled partitions while there are tokens; return their number."""
        throttle, now = self._around.throttles.leader, self._around.clock.monotonic()
        tokens = throttle.room(now)
        if tokens is not None and tokens <= 0:
            self._wake_with_tokens(throttle.wait_s(now))
            return 0
        room = min(room, _THROTTLED_BYTES - self._flying[_THROTTLED])
        most = room if tokens is None else min(room, tokens)
        return (await self._take(self._throttled, most, room, parts))[0]

    def _wake_with_tokens(self, wait_s: float) -> None:
        def wake() -> None:
            self._tokens_timer = None
            self._wake.set()

        if self._tokens_timer is None:
            self._tokens_timer = asyncio.get_running_loop().call_later(wait_s, wake)

    async def _take(
        self, queue: deque[Sending], room: int, helping: int, parts: list[Buffer]
    ) -> tuple[int, int]:
        """Add sections of one queue, each partition once; return their number and the remaining room."""
        count = 0
        for number in range(min(len(queue), _FRAME_SECTIONS)):
            if number and number % _SECTIONS_PER_TURN == 0:
                await give_way()
            if room <= 0:
                break
            sending = queue.popleft()
            if sending.led.key in self._told:
                queue.append(sending)  # S6: the next frame begins with the answer.
                continue
            if queue is self._throttled and self._has_left(sending):
                continue
            sending.is_queued = False
            if sending.is_ended or sending.next_offset < 0 or sending.is_reading:
                continue
            size = self._fill(sending, min(room, helping), parts)
            if size >= 0:
                count += 1
                room -= size
                if sending.next_offset < sending.led.log.end_offset:
                    self.enqueue(sending)
        return count, room

    def _has_left(self, sending: Sending) -> bool:
        """Whether the partition is no longer throttled: it is in another queue then."""
        if sending.lane != _THROTTLED:
            return True  # Since it was marked.
        if sending.is_ended or self.lane_of(sending) == _THROTTLED:
            return False
        self.enqueue(sending)
        return True

    def _fill(self, sending: Sending, room: int, parts: list[Buffer]) -> int:
        """Add the next section of a partition; return the size of its batches, -1 if there is nothing to send."""
        led = sending.led
        log, offset = led.log, sending.next_offset
        records: Buffer = b""
        if offset < log.end_offset:
            found = self._records(sending, log, offset, room)
            if found is None:
                return -1
            records = found
        elif sending.mark_sent == led.high_watermark and sending.start_sent == log.start_offset:
            return -1
        size = len(records)
        mark, start = led.high_watermark, log.start_offset
        asks, slow = sending.start_sent != start, sending.lane == _THROTTLED
        section = Section(
            led.key, SectionKind.BATCHES, sending.epoch, NO_EPOCH, offset, mark, start, b"", asks, slow
        )
        parts.append(wire.encode_section_header(section, size))
        if size:
            parts.append(records)
            self._note_sent(sending, size)
        sending.mark_sent, sending.start_sent = mark, start
        return size

    def _note_sent(self, sending: Sending, size: int) -> None:
        lane, around = sending.lane, self._around
        sending.flying.append((sending.next_offset, size, lane))
        self._flying[lane] += size
        around.probe.bytes_out += size
        if lane == _LIVE:
            self._sent_bytes += size
        elif lane == _THROTTLED and sending.role.throttles_sending:
            around.throttles.leader.take(size, around.clock.monotonic())
            around.probe.throttled_out += size

    def _records(self, sending: Sending, log: Log, offset: int, room: int) -> Buffer | None:
        """Read whole batches from the next offset on, and advance it; None if not possible now."""
        try:
            cold, sending.cold = sending.cold, None
            if cold is not None:
                return self._whole(sending, log, cold.data, cold.damage)
            reader = sending.reader
            extent = reader.locate(log, offset, room, limit_offset=log.end_offset)
            if extent is None:
                return None
            records = reader.cached(extent)
            if records is None:
                self._begin_read(sending, self._wait_for_disk(sending, extent))
                return None
            active = log.segments[-1]
            is_all = extent.file is active.file and extent.position + extent.size == active.size
            if is_all and sending.lane == _LIVE:
                sending.next_offset = log.end_offset  # The common case: all there is.
                return records
            # In-sync followers are sent what was just written.
            return self._whole(sending, log, records, check_crc=sending.lane != _LIVE)
        except NotLoaded as missing:
            self._begin_read(sending, self._warm(sending, missing))
        except OffsetOutOfRange:
            self._tell(sending, SectionKind.START, NO_EPOCH, log.start_offset)
        except (KafkaStorageError, CorruptMessage, ValueError) as error:
            # The log is offline or damaged there. The follower is no longer served, and so leaves the ISR in time. If
            # other replicas have everything, one of them will lead (`partition.mending`).
            _log.error("batches not readable for a follower", key=sending.led.key.hex(), reason=str(error))
            self._leave(sending)
        return None

    def _whole(
        self,
        sending: Sending,
        log: Log,
        data: bytes,
        damage: CorruptMessage | None = None,
        *,
        check_crc: bool = False,
    ) -> Buffer:
        """The whole batches in `data`. `damage`: what a thread has found behind them."""
        offset = sending.next_offset
        try:
            if damage is not None and not data:
                raise damage
            records, sending.next_offset = whole_batches_in(data, check_crc=check_crc)
            return records
        except CorruptMessage:
            log.note_damage(offset, f"a damaged batch behind offset {offset}")
            raise

    def _begin_read(self, sending: Sending, read: Coroutine[None, None, None]) -> None:
        """S4."""
        sending.is_reading = True
        task = asyncio.get_running_loop().create_task(read)
        self._reads[task] = None
        task.add_done_callback(self._reads.pop)

    async def _warm(self, sending: Sending, missing: NotLoaded) -> None:
        """Load or rebuild indexes that are not in memory."""
        await sending.reader.warm(missing)
        self._end_read(sending)

    async def _wait_for_disk(self, sending: Sending, extent: Extent) -> None:
        wanted = sending.next_offset
        try:
            found = await sending.reader.on_thread(extent, check=sending.lane != _LIVE)
            if sending.next_offset == wanted and (found.data or found.damage):
                sending.cold = found
        except OSError as error:
            key = sending.led.key.hex()
            _log.error("read for a follower failed; retrying", key=key, reason=str(error))
            await self._around.clock.sleep(_REREAD_S)
        self._end_read(sending)

    def _end_read(self, sending: Sending) -> None:
        sending.is_reading = False
        if sending.is_ended:
            sending.cold = None
        else:
            sending.mark()
