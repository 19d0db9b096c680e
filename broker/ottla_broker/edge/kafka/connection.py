"""One client connection: bytes to requests, requests to handlers, responses in order. [S]

Theory of operation. `_pump` sends answers that are ready, then takes whole frames from the framer and handles them,
until nothing is left, the connection is blocked, or its time is up. What blocks it: an answer that must be there
before the next request is handled, too many unanswered requests, or a client that does not take its answers.

When its time is up, the connection waits in the run queue that all connections share (`scheduler`) and `run`
goes on in a later turn of the event loop. A large request is a generator (`Steps`): each step is a slice of it, and
the next request is handled after its last one. While the connection waits or is blocked, at most one buffer of bytes
is read and then reading stops, so TCP holds the client back.

* I1: requests are handled in the order in which they came, and answered in that order.
* I2: an answer that is there at once costs no task, no future and no queue.
* I3: every byte kept outside the shared receive buffer is counted in `Memory`, until `connection_lost` at
  the latest.
* I4: whatever a peer sends, the worst that happens is that this connection ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Generator, Sequence
from struct import Struct
from types import GeneratorType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import structlog

from ottla_broker.caller import ANONYMOUS, Caller
from ottla_broker.edge.kafka import codec
from ottla_broker.edge.kafka.decode import Cursor, Malformed
from ottla_broker.edge.kafka.frame import Framer
from ottla_broker.edge.kafka.request import Context, Disconnect, Encoded, Reply, Request, Steps
from ottla_broker.edge.kafka.sasl import SaslGate
from ottla_broker.edge.kafka.throttle import Muting
from ottla_broker.edge.kafka.versions import API_VERSIONS_KEY, APIS, URGENT
from ottla_broker.edge.memory import Hold
from ottla_broker.requests import Maybe
from ottla_core.errors import RequestError
from ottla_core.ports.disk import Buffer

if TYPE_CHECKING:
    from ottla_broker.edge.kafka.shared import Route, Shared
    from ottla_broker.request_metrics import ApiTimes, ClientTraffic

_log = structlog.get_logger("ottla.kafka")

#: API key, version, correlation id, length of the client id.
_HEADER = Struct(">hhih")
_HEADER_BYTES = _HEADER.size
#: Frame length and correlation id of an answer.
_ANSWER = Struct(">ii")
#: The same, and no tagged fields.
_FLEXIBLE_ANSWER = Struct(">iiB")
#: Answers up to this size are sent as one buffer: joining is cheaper than another entry in the write queue.
_JOIN_BYTES_MAX = 1 << 12
#: Unsent bytes of a connection are counted above this; below it they cost no more than the connection itself.
_COUNTED_BYTES = 1 << 16
#: Answers to pipelined requests are collected up to this size before they are sent.
_OUTBOX_BYTES_MAX = 1 << 16
#: Read at once while the run queue is not empty: what is read then is copied and waits, so less of it is better.
_BUSY_READ_BYTES = 1 << 14


#: The rest of the slices that encode an answer; returns the encoded answer.
Encoding: TypeAlias = Generator[None, None, list[Buffer]]


class _Slot:
    """The place of one request in the order of answers."""

    __slots__ = (
        "arrived",
        "buffers",
        "future",
        "hold",
        "is_done",
        "reply",
        "request",
        "route",
        "started",
        "waits_from",
    )

    def __init__(self, route: Route, request: Request, arrived: float, started: float) -> None:
        self.route = route
        self.request = request
        self.arrived = arrived
        self.started = started
        #: When the handler had done what it can do at once; 0 if nothing was left.
        self.waits_from = 0.0
        #: The answer when it is there: not encoded yet, or the rest of the slices that make it.
        self.reply: Reply | Steps | Encoding = None
        #: The encoded answer; empty for "none will be sent".
        self.buffers: list[Buffer] | None = None
        #: The memory that it is counted in.
        self.hold: Hold | None = None
        self.future: asyncio.Future[Reply | Steps] | None = None
        #: The answer is there, or the future that has it.
        self.is_done = False


class Connection(asyncio.BufferedProtocol):
    #: Whether connection_creation_rate was checked before the connection was made.
    _passed_quota = False

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._principal = ANONYMOUS
        self._framer = Framer(shared.receive_view, shared.memory, shared.config.request_max_bytes)
        self._transport: asyncio.Transport | None = None
        self._context = Context(
            shared.services,
            shared.config,
            shared.memory,
            shared.metadata_cache,
            shared.probe.errors,
            fetch_sessions=shared.fetch_sessions,
            opened_at=shared.clock.monotonic(),
            requests=shared.probe.times,
        )
        #: On a listener with logins.
        self._gate: SaslGate | None = None
        if shared.sasl is not None:
            self._gate = SaslGate(shared.sasl, self, shared.now, lambda: self._context.peer)
            self._context.login = self._gate
            self._framer.allow(shared.sasl.config.receive_max_bytes)
        #: Unanswered requests, oldest first.
        self._slots: deque[_Slot] = deque()
        #: The one that the next request has to wait for.
        self._exclusive: _Slot | None = None
        #: Answers made while handling what one read brought; they leave together.
        self._outbox: list[Buffer] = []
        self._outbox_bytes = 0
        self._outbox_holds: list[Hold] = []
        #: API of the last of them, which counts the time until a slow client takes them, and when that began.
        self._outbox_times: ApiTimes | None = None
        self._sending_from = 0.0
        #: When the requests that are handled next were complete, or when the connection became free for them.
        self._arrived = 0.0
        self._traffic: ClientTraffic | None = None
        #: A large request that is handled step by step, and what its next step has to wait for.
        self._steps: tuple[_Slot, Steps] | None = None
        self._pause: asyncio.Future[Any] | None = None
        self._is_queued = False
        self._is_pumping = False
        self._write_paused = False
        self._read_paused = False
        self._muting = Muting(shared.throttling, shared.now, lambda: None if self._closing else self._wake())
        self._closing = False
        #: Bytes of `Memory` that are ours: of the request that arrives, of those that wait, of unsent
        #: answers.
        self._reserved = 0
        self._parked = 0
        self._unsent = 0
        self._waits_for_memory = False
        self._client_id_raw = b""
        self._client_id: str | None = None
        self._address = ""
        #: For the sweeper: whether anything came since the last tick, and for how many ticks what has lasted.
        self._active = True
        self._quiet_ticks = 0
        self._frame_ticks = 0
        self._write_ticks = 0
        self._unsent_before = 0

    # ------------------------------------------------------------------ transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._context.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "?")
        self._address = str(peer[0]) if isinstance(peer, tuple) else ""
        self._enter()
        if not self._shared.admit(self, self._address):
            self._closing = True
            self._transport.abort()
            return
        if self._shared.throttling.limits_connections and not self._passed_quota:
            self._wait_for_quota(self._shared.throttling.connected(self._address))
        # From here on unsent bytes are counted; `_write_paused` begins at `write_buffer_bytes`.
        self._transport.set_write_buffer_limits(high=_COUNTED_BYTES)

    def _wait_for_quota(self, wait_s: float) -> None:
        """More connections than its address may open: nothing is read, and it is closed after the wait, as in Kafka."""
        if wait_s:
            self._muting.hold()
            self._shared.probe.connections_dropped.add("quota")
            asyncio.get_running_loop().call_later(wait_s, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._shared.scheduler.forget(self)
        self._is_queued = False
        if self._steps is not None:
            self._steps[1].close()
            self._steps = None
        memory = self._shared.memory
        memory.forget(self._granted)
        self._hold()
        memory.owe(-self._unsent)
        self._unsent = 0
        self._outbox_holds = []
        self._framer.drop()
        for slot in self._slots:
            if slot.hold is not None:
                slot.hold.release()
            if slot.future is not None and slot.route.read_only:
                slot.future.cancel()
        if self._context.fetch_session is not None:
            self._shared.fetch_sessions.close(self._context.fetch_session)
        if self._traffic is not None:
            self._shared.probe.times.disconnected(self._traffic)
            self._traffic = None
        self._shared.gone(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        space = self._framer.space()
        return space[:_BUSY_READ_BYTES] if self._shared.scheduler.is_busy and not self._framer.left else space

    def buffer_updated(self, nbytes: int) -> None:
        self._active = True
        self._shared.probe.bytes_in += nbytes
        self._framer.filled(nbytes)
        self._wake()

    def pause_writing(self) -> None:
        self._count_unsent()

    def _count_unsent(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        before, self._unsent = self._unsent, self._transport.get_write_buffer_size()
        self._shared.memory.owe(self._unsent - before)
        self._write_paused = self._unsent >= self._shared.config.write_buffer_bytes

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._sending_from and self._outbox_times is not None:
            self._outbox_times.send_s += self._shared.now() - self._sending_from
            self._sending_from = 0.0
        self._write_ticks = 0
        unsent, self._unsent = self._unsent, 0
        self._shared.memory.owe(-unsent)
        self._wake()

    # ------------------------------------------------------------------ turns

    def _wake(self) -> None:
        """Something came: deal with it now if this turn of the loop has time for it, else in a later one."""
        if self._is_pumping:
            return
        if self._is_queued:
            self._keep_rest()
            return
        scheduler = self._shared.scheduler
        until = scheduler.admit()
        if until is None:
            self._arrived = self._shared.now()
            self._queue_up()
            self._keep_rest()
            return
        self._arrived = scheduler.admitted_at
        try:
            self._pump(until)
        finally:
            scheduler.done()

    def run(self, until: float) -> None:
        """Called by the scheduler when it is this connection's turn."""
        self._is_queued = False
        self._pump(until)

    def _queue_up(self) -> None:
        """Ask for another turn if there is something to do in it."""
        slots = self._slots
        if slots and slots[0].is_done:
            key = slots[0].request.api.key
        elif self._steps is not None and self._pause is None:
            key = self._steps[0].request.api.key
        elif self._blocked or self._waits_for_memory:
            return
        else:
            next_key = self._framer.peek()
            if next_key is None:
                return
            key = next_key
        self._is_queued = True
        self._shared.scheduler.queue(self, urgent=key in URGENT)

    # ------------------------------------------------------------------ receiving

    @property
    def _blocked(self) -> bool:
        return (
            self._exclusive is not None
            or self._steps is not None
            or self._write_paused
            or self._muting.is_on
            or self._closing
            or len(self._slots) >= self._shared.config.requests_max
        )

    def _pump(self, until: float) -> None:
        """Handle what can be handled until the clock shows `until`, then keep what is left (I3)."""
        self._is_pumping = True
        now = self._shared.now
        is_timed = self._shared.throttling.is_timed
        if is_timed:
            self._muting.turn_began()
        try:
            while self._step():
                if now() >= until:
                    self._queue_up()
                    break
        except Malformed as error:
            self.drop("malformed", str(error))
        except Disconnect as error:
            self.drop("refused", str(error))
        except Exception as error:
            # I4. Errors of handlers are handled closer to them; this one is in the connection itself.
            _log.exception("kafka request failed", peer=self._context.peer, client=self._context.software)
            self._shared.report_bug(error)
            self.drop("internal error", "see the log")
        finally:
            self._is_pumping = False
        if self._outbox:
            self._flush()
        if is_timed:
            self._muting.turn_ended()
        if self._closing:
            self._close_when_done()
        self._keep_rest()

    def _step(self) -> bool:
        """One bounded piece of work; False if there is none."""
        slots = self._slots
        if slots and slots[0].is_done:
            self._finish_first()
            return True
        if self._steps is not None and self._pause is None:
            self._advance(*self._steps)
            return True
        if self._blocked or self._waits_for_memory:
            return False
        frame = self._framer.next()
        if frame is None:
            return False
        self._frame_ticks = 0
        self._handle(frame)
        return True

    def _keep_rest(self) -> None:
        """Move what is left out of the shared buffer, and read on only if there is a place to read to
        (I3)."""

        framer = self._framer
        left = framer.left
        if self._closing:
            self._set_reading(False)
            return
        if self._waits_for_memory:
            return
        if left == 0 and not self._reserved and not self._parked and not self._read_paused:
            return
        blocked = self._blocked or self._is_queued
        if left == 0:
            if self._reserved or self._parked:
                framer.drop()
                self._hold()
            self._set_reading(True)
            return
        size = framer.missing()
        if size == 0:
            self._set_reading(not blocked)
        elif size > left and not blocked and self._shared.memory.reserve(size, self._granted):
            framer.keep(size)
            self._hold(reserved=size)
            self._set_reading(True)
        else:
            # Reading must pause: either it is another connection's turn, or there is no memory for the rest of the
            # frame.
            self._waits_for_memory = size > left and not blocked
            if self._waits_for_memory:
                self._shared.probe.reading_paused += 1
            if framer.park():
                self._hold(parked=left)
            self._set_reading(False)

    def _granted(self) -> None:
        """Memory for the interrupted frame has been reserved for this connection."""
        self._waits_for_memory = False
        size = self._framer.missing()
        self._framer.keep(size)
        self._hold(reserved=size)
        self._set_reading(True)

    def _hold(self, *, reserved: int = 0, parked: int = 0) -> None:
        """Record the memory held from now on, of which `reserved` is taken already, and return the rest."""
        before, self._reserved = self._reserved, reserved
        self._shared.memory.park(parked - self._parked)
        self._parked = parked
        if before:
            self._shared.memory.release(before)

    def _set_reading(self, wanted: bool) -> None:
        if wanted is not self._read_paused or self._transport is None:
            return
        self._read_paused = not wanted
        if self._transport.is_closing():
            return
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # ------------------------------------------------------------------ handling

    def _handle(self, frame: memoryview) -> None:
        if len(frame) < _HEADER_BYTES:
            raise Malformed(f"a request of {len(frame)} bytes")
        shared = self._shared
        started = shared.now()
        key, version, correlation_id, client_length = _HEADER.unpack_from(frame)
        api = APIS.get(key)
        if api is None:
            raise Malformed(f"unknown API key {key}")
        if self._gate is not None:
            self._gate.admit(key, api.name)
        body_at = _HEADER_BYTES
        if not api.low <= version <= api.high:
            if key != API_VERSIONS_KEY or version < 0:
                raise Disconnect(f"{api.name} version {version} is not supported")
        else:
            if client_length > 0:
                body_at = self._read_client_id(frame, client_length)
            if version >= api.flexible_from:
                if body_at < len(frame) and frame[body_at] == 0:
                    body_at += 1
                else:
                    cursor = Cursor(frame, body_at)
                    cursor.skip_tagged()
                    body_at = cursor.at
        request = Request(api, version, correlation_id, self._client_id, frame[body_at:])
        route = shared.route(key)
        route.requests.n += 1
        self._context.api = api.name
        traffic = self._traffic or self._count_as_client()
        traffic.requests += 1
        traffic.bytes_in += len(frame) + 4
        self._run(route, request, started)

    def _read_client_id(self, frame: memoryview, length: int) -> int:
        end = _HEADER_BYTES + length
        raw = frame[_HEADER_BYTES:end]
        if len(raw) < length:
            raise Malformed("the frame ends within the client id")
        if raw != self._client_id_raw:
            self._client_id_raw = bytes(raw)
            self._client_id = str(raw, "utf-8", "replace")
            self._enter()
            self._count_as_client()
        return end

    def _count_as_client(self) -> ClientTraffic:
        """Count traffic for the client id, from now on."""
        times = self._shared.probe.times
        if self._traffic is not None:
            times.disconnected(self._traffic)
        elif self._gate is None:
            self._shared.has_begun(self)
        self._traffic = traffic = times.connected(self._client_id or "")
        return traffic

    def _enter(self) -> None:
        """Make the caller, and use the services through it from now on."""
        shared = self._shared
        caller = Caller(self._principal, self._client_id or "", self._address, shared.config.listener.name)
        self._context.services = shared.services.of(caller)

    def authenticated(self, principal: str) -> None:
        """The client has logged in."""
        self._principal = principal
        self._shared.has_begun(self)
        self._framer.allow(self._shared.config.request_max_bytes)
        self._enter()

    def _run(self, route: Route, request: Request, started: float) -> None:
        try:
            reply = route.handle(self._context, request)
        except (Malformed, Disconnect):
            raise
        except Exception as error:
            reply = self._reply_to(request, error)
        # By exact types first: `isinstance(…, Awaitable)` costs as much as the rest of this function.
        if type(reply) is Encoded or type(reply) is dict or reply is None:
            buffers = self._encode(request, reply)
            hold = reply.hold if type(reply) is Encoded else None
            if type(buffers) is list and not self._slots:
                route.times.answered_at_once(self._arrived, started, self._shared.now())
                self._finish(route, buffers, hold)  # I2
                return
            slot = _Slot(route, request, self._arrived, started)
            if type(buffers) is list:
                slot.buffers, slot.hold = buffers, hold
            else:
                slot.reply = cast(Encoding, buffers)
            slot.is_done = True
            self._slots.append(slot)
            return
        slot = _Slot(route, request, self._arrived, started)
        self._slots.append(slot)
        self._go_on(slot, reply)

    def _go_on(self, slot: _Slot, reply: Maybe[Reply | Steps]) -> None:
        """Note what the answer of a slot is, or how it will be made."""
        if type(reply) is GeneratorType:
            self._steps = (slot, cast(Steps, reply))
        elif type(reply) is Encoded or type(reply) is dict or reply is None:
            slot.reply = reply
            slot.is_done = True
        else:
            if not slot.route.overlaps:
                self._exclusive = slot
            slot.waits_from = self._shared.now()
            later = cast(Awaitable[Reply | Steps], reply)
            slot.future = self._shared.spawn(
                self._muting.timed(later) if self._shared.throttling.is_timed else later
            )
            slot.future.add_done_callback(lambda _: self._answered(slot))

    def _advance(self, slot: _Slot, steps: Steps) -> None:
        """The next slice of a large request."""
        try:
            pause = next(steps)
            if pause is not None:
                self._pause = asyncio.ensure_future(pause)
                self._pause.add_done_callback(self._resume)
        except StopIteration as last:
            self._steps = None
            self._go_on(slot, last.value)
        except (Malformed, Disconnect):
            self._steps = None
            slot.buffers, slot.is_done = [], True
            raise
        except Exception as error:
            self._steps = None
            self._go_on(slot, self._reply_to(slot.request, error))

    def _resume(self, _: asyncio.Future[Any]) -> None:
        """What the next step waited for is done."""
        self._pause = None
        self._wake()

    def _answered(self, slot: _Slot) -> None:
        """The future of one slot is done."""
        future = slot.future
        if self._exclusive is slot:
            self._exclusive = None
            if future is not None and not future.cancelled() and future.exception() is None:
                reply = future.result()
                if type(reply) is GeneratorType:
                    slot.future, self._steps = None, (slot, cast(Steps, reply))
                    self._wake()
                    return
        slot.is_done = True
        if not slot.route.overlaps or (self._slots and self._slots[0] is slot):
            self._wake()

    def _finish_first(self) -> None:
        """Send the answer of the oldest request, or do the next slice of it: all younger ones wait for it (I1)."""
        slot = self._slots[0]
        if slot.buffers is None:
            self._finish_slot(slot)
            if slot.buffers is None:
                return
        self._slots.popleft()
        self._observe(slot)
        self._finish(slot.route, slot.buffers, slot.hold)

    def _finish_slot(self, slot: _Slot) -> None:
        """Make the buffers of an answer, or do the next slice of that."""
        future = slot.future
        if future is not None:
            slot.future = None
            if future.cancelled():
                slot.buffers = []
                self._closing = True
            else:
                error = future.exception()
                if isinstance(error, Disconnect):
                    self.drop("refused", str(error))
                elif error is not None:
                    slot.reply = self._reply_to(slot.request, error)
                else:
                    slot.reply = future.result()
        if type(slot.reply) is GeneratorType:
            try:
                next(slot.reply)
                return
            except StopIteration as last:
                slot.reply = last.value
            except Exception as error:
                slot.reply = self._reply_to(slot.request, error)
        if type(slot.reply) is list:
            slot.buffers = slot.reply
            return
        made = self._encode(slot.request, cast(Reply, slot.reply))
        if type(made) is list:
            slot.buffers = made
            slot.hold = slot.reply.hold if type(slot.reply) is Encoded else None
        else:
            slot.reply = cast(Encoding, made)

    def _observe(self, slot: _Slot) -> None:
        """Count the time of a request whose answer was not there at once."""
        now, waits_from = self._shared.now(), slot.waits_from
        waited_s = now - waits_from if waits_from else 0.0
        # A fetch knows how long it waited for records; the rest of its time it read them.
        polled_s = slot.hold.polled_s if slot.hold is not None else 0.0
        if slot.hold is not None:
            waited_s = 0.0
        slot.route.times.answered(slot.started - slot.arrived, now - slot.started, waited_s, polled_s)

    def _reply_to(self, request: Request, error: BaseException) -> Reply:
        """What to answer instead, when a handler raised."""
        if not isinstance(error, RequestError):
            _log.error(
                "kafka request failed",
                api=request.api.name,
                version=request.version,
                peer=self._context.peer,
                client=self._context.software,
                exc_info=error,
            )
            self._shared.report_bug(error)
            error = RequestError()
        self._context.failed(error, request.api.name)
        reply = codec.error_response(request.api, request.version, error)
        if reply is None:
            # Such a response has no field for an error of the whole request. Only bugs are internal errors.
            reason = "internal error" if error.code == RequestError.code else "refused"
            self.drop(reason, f"{request.api.name} has no field for {error.name}")
        return reply

    # ------------------------------------------------------------------ answering

    def _encode(self, request: Request, reply: Reply) -> list[Buffer] | Encoding:
        """The answer in buffers; of a long one the rest of the slices that encode it."""
        if self._shared.throttling.is_on:
            times = self._shared.route(request.api.key).times
            reply = self._muting.charged(self._context.caller, request, reply, times)
        if reply is None:
            return []
        if isinstance(reply, Encoded):
            return self._framed(request, reply.body)
        api, version = request.api, request.version
        if version > api.high:
            version = 0  # ApiVersions only: the client does not know the supported versions yet
        try:
            body = codec.begin_response(api, version, reply)
        except Exception as error:
            return self._not_encodable(request, error)
        return self._framed(request, (body,)) if type(body) is bytearray else self._encode_rest(request, body)

    def _encode_rest(self, request: Request, steps: Any) -> Encoding:
        try:
            body = yield from steps
        except Exception as error:
            return self._not_encodable(request, error)
        return self._framed(request, (body,))

    def _not_encodable(self, request: Request, error: Exception) -> list[Buffer]:
        _log.exception("kafka response not encodable", api=request.api.name, version=request.version)
        self._shared.report_bug(error)
        self.drop("internal error", "see the log")
        return []

    def _framed(self, request: Request, body: Sequence[Buffer]) -> list[Buffer]:
        api, version = request.api, request.version
        if version > api.high:
            version = 0
        size = 4 + (len(body[0]) if len(body) == 1 else sum(map(len, body)))
        if version >= api.flexible_from and api.key != API_VERSIONS_KEY:
            head = _FLEXIBLE_ANSWER.pack(size + 1, request.correlation_id, 0)
        else:
            head = _ANSWER.pack(size, request.correlation_id)
        if size <= _JOIN_BYTES_MAX:
            return [b"".join((head, *body))]
        return [head, *body]

    def _finish(self, route: Route, buffers: list[Buffer], hold: Hold | None) -> None:
        transport = self._transport
        self._outbox_times = route.times
        if not buffers or transport is None or transport.is_closing():
            return
        if hold is not None:
            self._outbox_holds.append(hold)
        outbox = self._outbox
        for buffer in buffers:
            outbox.append(buffer)
            self._outbox_bytes += len(buffer)
        if not self._is_pumping or self._outbox_bytes > _OUTBOX_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        """Send what is in the outbox: one system call, however many answers."""
        outbox, size, holds = self._outbox, self._outbox_bytes, self._outbox_holds
        self._outbox, self._outbox_bytes = [], 0
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._shared.probe.bytes_out += size
        if self._traffic is not None:
            self._traffic.bytes_out += size
        if len(outbox) == 1:
            transport.write(outbox[0])
        elif size <= _JOIN_BYTES_MAX:
            transport.write(b"".join(outbox))
        else:
            transport.writelines(outbox)
        if self._unsent:
            self._count_unsent()
            self._sending_from = self._sending_from or self._shared.now()
        if holds:
            self._outbox_holds = []
            for hold in holds:
                hold.release()

    # ------------------------------------------------------------------ ending

    def drop(self, reason: str, detail: str) -> None:
        """End this connection once the requests before this one are answered. Without a detail it is not logged."""
        if self._closing:
            return
        self._closing = True
        self._shared.probe.connections_dropped.add(reason)
        if detail:
            client = self._client_id or self._context.software
            _log.info(
                "kafka connection dropped",
                reason=reason,
                peer=self._context.peer,
                client=client,
                detail=detail,
            )
        if not self._is_pumping:
            self.drain()

    def drain(self) -> None:
        """Take no more requests; close as soon as those in hand are answered."""
        self._closing = True
        self._set_reading(False)
        self._close_when_done()

    def _close_when_done(self) -> None:
        if self._slots:
            if self._slots[0].is_done and not self._is_queued:
                self._queue_up()  # Several long answers may be left to encode.
        elif self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def tick(self, stall_ticks: int, idle_ticks: int) -> None:
        """Called periodically by the sweeper; closes idle and stalled connections."""
        if self._gate is not None and not self._closing and self._gate.is_late():
            self.drop("no login", "the client did not log in in time")
            return
        if self._unsent or self._closing:
            self._tick_writing(stall_ticks)
            return
        was_active, self._active = self._active, False
        self._quiet_ticks = 0 if was_active or self._slots else self._quiet_ticks + 1
        if self._framer.left and not self._blocked and not self._is_queued and not self._waits_for_memory:
            # A large frame may take its time, but not forever, however steadily its bytes drip in.
            self._frame_ticks += 1
            if self._frame_ticks > stall_ticks + self._reserved // self._shared.least_bytes_per_tick:
                self.drop("stalled request", f"only {self._framer.left} bytes received")
                return
        if self._quiet_ticks > idle_ticks:
            self.drop("idle", "no request within connections.max.idle.ms")

    def _tick_writing(self, stall_ticks: int) -> None:
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if self._closing and not unsent and self._slots:
            return  # still waiting for a handler, which has its own deadline
        self._write_ticks = self._write_ticks + 1 if unsent >= self._unsent_before else 0
        self._unsent_before = unsent
        if self._write_ticks > stall_ticks:
            self._shared.probe.connections_dropped.add("stalled answer")
            _log.info(
                "kafka connection dropped: stalled answer", peer=self._context.peer, unsent_bytes=unsent
            )
            self.abort()
