"""The leader's side of Follow streams: accepts followers and serves each of them. [S]

One stream per follower broker, for all partitions that it follows. The gRPC edge passes each stream as a
link; `follow_stream` serves it. Partitions wake streams through their outlets, streams find partitions by key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import structlog

from ottla_broker.metrics import ReplicationProbe
from ottla_broker.replication import follow_wire as wire
from ottla_broker.replication.follow_stream import FollowStream, Surroundings
from ottla_broker.replication.follow_wire import Kind, WireError
from ottla_broker.replication.led import Led
from ottla_broker.replication.throttle import Throttles
from ottla_core.ports.clock import Clock
from ottla_core.ports.offload import Offload
from ottla_core.ports.peers import FollowLink, PeerUnavailable

_log = structlog.get_logger("ottla.follow")

#: A follower sends its greeting at once; a stream without one ends after this time.
_GREETING_S = 5.0
#: A follower has one stream, and for a while broken ones that are not noticed yet. One more ends the oldest.
_STREAMS_PER_FOLLOWER_MAX = 4


class FollowServer:
    def __init__(
        self,
        broker_id: int,
        incarnation: UUID,
        find: Callable[[bytes], Led | None],
        clock: Clock,
        offload: Offload,
        probe: ReplicationProbe,
        *,
        on_lost: Callable[[int], None] | None = None,
        throttles: Throttles | None = None,
    ) -> None:
        """`on_lost` is called with the follower whose stream ended unexpectedly."""
        self._on_lost = on_lost
        self._broker_id = broker_id
        self._around = Surroundings(incarnation.bytes, find, clock, offload, probe, throttles or Throttles())
        self._probe = probe
        self._streams: dict[FollowStream, None] = {}
        self._is_stopped = False

    async def serve(self, link: FollowLink, follower: int) -> None:
        """Serve one stream until it ends. `follower` is the authenticated broker that opened it."""
        try:
            stream = await self._greet(link, follower)
        except (PeerUnavailable, WireError) as error:
            _log.warning("follow stream not established", reason=str(error))
            return
        if stream is None or self._is_stopped:
            return
        others = [s for s in self._streams if s.follower == follower]
        for oldest in others[: len(others) - _STREAMS_PER_FOLLOWER_MAX + 1]:
            oldest.stop()
        self._streams[stream] = None
        self._probe.streams += 1
        _log.info("follower connected", follower=stream.follower)
        try:
            reason = await stream.run()
            _log.info("follower disconnected", follower=stream.follower, reason=reason)
            if self._on_lost is not None and not self._is_stopped:
                self._on_lost(stream.follower)
        finally:
            self._probe.streams -= 1
            self._streams.pop(stream, None)

    async def _greet(self, link: FollowLink, follower: int) -> FollowStream | None:
        try:
            async with asyncio.timeout(_GREETING_S):
                frame = await link.receive()
        except TimeoutError:
            raise WireError(f"No greeting within {_GREETING_S:g} s.") from None
        if frame is None:
            return None
        header = wire.decode_header(frame)
        if header.kind != Kind.HELLO:
            raise WireError(f"A stream begins with a greeting, not with kind {header.kind}.")
        hello = wire.decode_hello(frame)
        if hello.follower != follower:
            raise WireError(f"Broker {follower} sent a greeting as broker {hello.follower}.")
        if hello.leader != self._broker_id or header.receiver != self._around.incarnation:
            # Rule 9. It means an earlier incarnation of this broker, or another broker that had this address.
            raise WireError(f"Broker {hello.follower} follows another incarnation of broker {hello.leader}.")
        return FollowStream(self._around, link, hello.follower, header.sender)

    def on_led(self, key: bytes) -> None:
        """A leadership began: handle the waiting requests of followers that knew the epoch first."""
        for stream in list(self._streams):
            stream.on_led(key)

    def stop(self) -> None:
        """End all streams, take no new ones."""
        self._is_stopped = True
        for stream in list(self._streams):
            stream.stop()
