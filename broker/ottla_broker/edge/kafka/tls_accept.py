"""Accepts connections of a TLS listener: a bounded number of handshakes, then a `Connection` for each. [S]

A connection counts in `max.connections` from the moment it is accepted, so that half-open handshakes cannot use up the
process's descriptors, and each handshake has a time limit. Beyond a number of half-open handshakes the oldest ones are
cut off (`half_open.py`), so that they cannot use up the places of other clients either. Plaintext listeners do not pass
through here.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import structlog

from ottla_broker.caller import ANONYMOUS
from ottla_broker.certificate_subject import UnreadableName, name_of
from ottla_broker.edge.kafka.connection import Connection
from ottla_broker.edge.kafka.half_open import HalfOpen, half_open_max
from ottla_broker.principal_rules import PrincipalRules

if TYPE_CHECKING:
    from ottla_broker.edge.kafka.shared import Shared

_log = structlog.get_logger("ottla.kafka")

#: A handshake takes two round trips and some milliseconds.
HANDSHAKE_S = 10.0
#: After an accept that failed, for example because the process has no descriptor left.
_PAUSE_S = 0.5


class Security:
    """What a TLS listener needs: the context for each handshake, and rules for client certificates; None if clients
    log in and have no certificates."""

    def __init__(self, context: Callable[[], ssl.SSLContext], rules: PrincipalRules | None) -> None:
        self.context = context
        self.rules = rules


class TlsServer:
    def __init__(self, shared: Shared, security: Security) -> None:
        self._shared = shared
        self._security = security
        self._socket: socket.socket | None = None
        #: The accept loop and all handshakes.
        self._tasks: set[asyncio.Task[None]] = set()
        self._half_open: HalfOpen[asyncio.Task[None]] = HalfOpen(half_open_max(shared.seats.limit))

    def bind(self, host: str, port: int, backlog: int) -> int:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=backlog)
        self._socket.setblocking(False)
        return int(self._socket.getsockname()[1])

    def serve(self) -> None:
        if self._socket is not None:
            self._begin(self._accept(self._socket))

    async def close(self) -> None:
        """Accept no more connections, and end those that are not beyond their handshake."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _begin_handshake(self, accepted: socket.socket, peer: Any) -> None:
        task = self._begin(self._handshake(accepted, peer))
        task.add_done_callback(self._half_open.remove)
        oldest = self._half_open.add(task, str(peer[0]))
        if oldest is not None:
            self._shared.probe.connections_dropped.add("too many handshakes")
            oldest.cancel()

    async def _accept(self, listening: socket.socket) -> None:
        loop, shared = asyncio.get_running_loop(), self._shared
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except OSError as failed:
                _log.warning("cannot accept connections", reason=failed.strerror or str(failed))
                await shared.clock.sleep(_PAUSE_S)
                continue
            address = str(peer[0])
            if not shared.seats.take(address):
                shared.probe.connections_refused += 1
                accepted.close()
                continue
            wait_s = shared.throttling.connected(address) if shared.throttling.limits_connections else 0.0
            if wait_s:
                self._begin(self._refuse(accepted, address, wait_s))
            else:
                self._begin_handshake(accepted, peer)

    async def _refuse(self, accepted: socket.socket, address: str, wait_s: float) -> None:
        """More connections than connection_creation_rate: closed after the wait, as in Kafka."""
        self._shared.probe.connections_dropped.add("quota")
        try:
            await self._shared.clock.sleep(wait_s)
        finally:
            accepted.close()
            self._shared.seats.leave(address)

    async def _handshake(self, accepted: socket.socket, peer: Any) -> None:
        connection = _Secured(self._shared, self._security.rules, str(peer[0]))
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._security.context(),
                ssl_handshake_timeout=HANDSHAKE_S,
            )
        except (OSError, ssl.SSLError) as failed:
            self._shared.probe.connections_dropped.add("failed handshake")
            _log.info("TLS handshake failed", peer=f"{peer[0]}:{peer[1]}", reason=str(failed) or "timeout")
        finally:
            if not connection.is_made:
                accepted.close()
                self._shared.seats.leave(str(peer[0]))


class _Secured(Connection):
    """A connection whose handshake is done when it is made."""

    _passed_quota = True

    def __init__(self, shared: Shared, rules: PrincipalRules | None, address: str) -> None:
        super().__init__(shared)
        self._seated_as = address
        self._rules = rules
        self.is_made = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.is_made = True
        self._shared.seats.leave(self._seated_as)  # The place of its handshake; it takes one of its own now.
        principal, refusal = _principal(transport, self._rules)
        self._principal = principal
        super().connection_made(transport)
        if refusal:
            self.drop("no principal", refusal)


def _principal(transport: asyncio.BaseTransport, rules: PrincipalRules | None) -> tuple[str, str]:
    """The principal of the client's certificate, and why it has none."""
    if rules is None or not transport.get_extra_info("peercert"):
        return ANONYMOUS, ""
    der: bytes = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    try:
        name = name_of(der)
    except UnreadableName as unreadable:
        return ANONYMOUS, str(unreadable)
    principal = rules.principal(name)
    if principal is None:
        return ANONYMOUS, f"no rule of ssl.principal.mapping.rules matches {name!r}"
    return principal, ""
