"""The other brokers of the cluster: one stream for replication, and two questions.

A link carries whole frames, in order, each at most once, until it breaks; a broken link says so and carries nothing
more. Nothing is buffered without bound: `send` waits while the other side does not take what was sent before.

Who is where comes from the metadata image; the adapter is told and looks nothing up itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from uuid import UUID


class PeerUnavailable(Exception):
    """The broker cannot be reached, or the link to it broke; the text says what happened."""


class FollowLink(Protocol):
    """One end of a Follow stream. One task may send and another receive at the same time, no more."""

    async def send(self, frame: bytes) -> None:
        """Hand over a frame; waits while the link is full. PeerUnavailable when it is broken."""

    async def receive(self) -> bytes | None:
        """The next frame; None when the other side has ended the stream. PeerUnavailable when it broke."""

    async def close(self) -> None:
        """End the stream; what was not received yet is lost. Fine if it has ended."""


class Presence(Enum):
    HERE = "here"
    #: Nobody listens there: the process is gone, though its host answers.
    REFUSED = "refused"
    #: No answer in time: it may be dead, paused, or cut off. Nobody can tell.
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Probe:
    """What looking for a broker has found; `incarnation` only if it is here."""

    presence: Presence
    incarnation: UUID | None = None


class Peers(Protocol):
    async def follow(self, broker_id: int) -> FollowLink:
        """Open a Follow stream to a broker. PeerUnavailable when that fails."""

    async def probe(self, broker_id: int, timeout_s: float = 1.0) -> Probe:
        """Whether a broker lives. Never raises for what it finds."""

    async def ask(self, broker_id: int, request: bytes, timeout_s: float) -> bytes:
        """One question, one answer. PeerUnavailable when there is none in time; it may have been carried out."""

    async def close(self) -> None: ...
