"""Metrics interface of the gRPC edge. [P]

The metrics of the process implement it; tests may count with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ottla_broker.request_metrics import ApiTimes, ClientTraffic


class GrpcProbe(Protocol):
    def answered(self, method: str, errors: Iterable[str] = ()) -> None:
        """One request (of a call or of a stream) has its answer; `errors` are the names of those in it."""

    def api(self, method: str) -> ApiTimes:
        """Where the time of a method's requests is counted."""

    def connected(self, client_id: str) -> ClientTraffic:
        """Where the traffic of a client is counted, until `disconnected`."""

    def disconnected(self, traffic: ClientTraffic) -> None: ...

    def stream_opened(self, method: str) -> None: ...

    def stream_closed(self, method: str) -> None: ...


class SilentProbe:
    """A probe that counts nothing."""

    def answered(self, method: str, errors: Iterable[str] = ()) -> None:
        pass

    def api(self, method: str) -> ApiTimes:
        return ApiTimes(method)

    def connected(self, client_id: str) -> ClientTraffic:
        return ClientTraffic()

    def disconnected(self, traffic: ClientTraffic) -> None:
        pass

    def stream_opened(self, method: str) -> None:
        pass

    def stream_closed(self, method: str) -> None:
        pass
