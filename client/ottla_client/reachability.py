"""Warns, once per outage, of a broker that cannot be reached while calls to it are retried. [S]

Used by `Cluster` around every call. Without it a client whose broker advertises a wrong address retries in silence
until its request timeout.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType

from ottla_client.background import Background
from ottla_client.errors import CannotConnect
from ottla_client.wrong_port import explain, unreachable
from ottla_core.ports.clock import Clock

log = logging.getLogger(__name__)

#: A healthy broker accepts a connection in milliseconds. With the time of the probe this is less than two seconds.
_SILENT_S = 0.7
#: A restarting broker refuses connections for about this long; nobody needs to know.
_REFUSING_S = 1.0


class Reachability:
    def __init__(self, clock: Clock, background: Background) -> None:
        self._clock = clock
        self._background = background
        #: Addresses that answered their last call; slow calls to them (joins, long polls) are normal.
        self._answering: set[str] = set()
        #: Monotonic time of the first failure, by address.
        self._failing_since: dict[str, float] = {}
        self._reported: set[str] = set()

    def call_to(self, address: str) -> _Call:
        return _Call(self, address)

    def silent(self, address: str) -> None:
        """The call has been unanswered for a while."""
        if address not in self._reported:
            self._background.spawn(self._check(address), "reachability")

    async def _check(self, address: str) -> None:
        sentence = await unreachable(address)
        if sentence is not None and address not in self._answering:
            self._report(address, sentence)

    def answered(self, address: str) -> None:
        self._answering.add(address)
        self._failing_since.pop(address, None)
        self._reported.discard(address)

    def failed(self, address: str, error: CannotConnect) -> None:
        self._answering.discard(address)
        since = self._failing_since.setdefault(address, self._clock.monotonic())
        if self._clock.monotonic() - since >= _REFUSING_S and address not in self._reported:
            self._reported.add(address)
            self._background.spawn(self._explain(address, str(error)), "reachability")

    async def _explain(self, address: str, error: str) -> None:
        self._report(address, await explain(address, error))

    def _report(self, address: str, sentence: str) -> None:
        self._reported.add(address)
        log.warning("%s Still trying.", sentence)

    def is_answering(self, address: str) -> bool:
        return address in self._answering


class _Call:
    """One call: `with` starts a timer for silence, and records how the call ended."""

    def __init__(self, owner: Reachability, address: str) -> None:
        self._owner = owner
        self._address = address
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        if not self._owner.is_answering(self._address):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_SILENT_S, self._owner.silent, self._address)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if error is None:
            self._owner.answered(self._address)
        elif isinstance(error, CannotConnect):
            self._owner.failed(self._address, error)
