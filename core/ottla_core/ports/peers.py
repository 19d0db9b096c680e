"""Calls to other brokers: the replication stream, a probe, and one request-response call.

A link carries whole frames, in order, each at most once, until it breaks; then every call raises
PeerUnavailable. Buffers are bounded: `send` waits while the other side does not read.

Addresses come from the metadata image; the adapter does no lookups itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from uuid import UUID


class PeerUnavailable(Exception):
    """The broker cannot be reached, or the link to it broke; the text says why."""


class FollowLink(Protocol):
    """One end of a Follow stream. One task may send and another receive at the same time, no more."""

    async def send(self, frame: bytes) -> None:
        """Send a frame; waits while the link is full. PeerUnavailable if it is broken."""

    async def receive(self) -> bytes | None:
        """The next frame; None if the other side has ended the stream. PeerUnavailable if it broke."""

    async def close(self) -> None:
        """End the stream; unreceived frames are lost. May be called on an ended stream."""


class Presence(Enum):
    HERE = "here"
    #: Connection refused: the process has exited, but its host answers.
    REFUSED = "refused"
    #: No answer in time: the broker may be dead, paused or partitioned.
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of a probe; `incarnation` only if the broker is alive."""

    presence: Presence
    incarnation: UUID | None = None


class Peers(Protocol):
    async def follow(self, broker_id: int) -> FollowLink:
        """Open a Follow stream to a broker. PeerUnavailable on failure."""

    async def probe(self, broker_id: int, timeout_s: float = 1.0) -> Probe:
        """Check whether a broker is alive. Failures are results, not exceptions."""

    async def ask(self, broker_id: int, request: bytes, timeout_s: float) -> bytes:
        """One request, one response. PeerUnavailable on a timeout; the request may have been executed."""

    async def close(self) -> None: ...
