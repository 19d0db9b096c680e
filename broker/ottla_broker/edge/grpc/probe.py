"""Metrics interface of the gRPC edge. [P]

The metrics of the process implement it; tests may count with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class GrpcProbe(Protocol):
    def answered(self, method: str, errors: Iterable[str] = ()) -> None:
        """One request (of a call or of a stream) has its answer; `errors` are the names of those in it."""

    def stream_opened(self, method: str) -> None: ...

    def stream_closed(self, method: str) -> None: ...


class SilentProbe:
    """A probe that counts nothing."""

    def answered(self, method: str, errors: Iterable[str] = ()) -> None:
        pass

    def stream_opened(self, method: str) -> None:
        pass

    def stream_closed(self, method: str) -> None:
        pass
