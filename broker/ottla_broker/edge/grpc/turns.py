"""Limits the streams with an open read: as many as the budget has room for maximal messages. [S]

gRPC receives a whole message once it is requested, and a stream that waits for its next message has requested it. So
every open read may bring the longest message there is, and it is the number of open reads that bounds the memory. A
stream holds a place while its read is open and until the message is handled; a stream without a place waits, first
come, first served, and is not read from: it holds one HTTP/2 window, and its peer's writes wait.

An open read cannot be undone. So when another stream waits, the stream that has been silent longest, and long
enough, is asked to end; its peer opens another when it has something to say. The place is free when the stream has
ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla_broker.edge.memory import Memory

#: Closing a stream that is silent for this time costs its peer less than others lose by waiting for it.
QUIET_S = 1.0


class Turns:
    def __init__(self, places: int) -> None:
        self._free = max(1, places)
        #: Streams with an open read and since when, the longest silent first.
        self._reading: dict[Turn, float] = {}
        #: Streams that were silent too long, until they have ended.
        self._ending: dict[Turn, None] = {}
        self._waiting: dict[Turn, asyncio.Event] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(self, turn: Turn) -> asyncio.Event | None:
        """Give it a place, or something to wait for."""
        if self._free:
            self._free -= 1
            self._reading[turn] = asyncio.get_running_loop().time()
            return None
        granted = self._waiting[turn] = asyncio.Event()
        self._look_later()
        return granted

    def give_back(self, turn: Turn) -> None:
        """Its place, or its place in line."""
        if self._waiting.pop(turn, None) is not None:
            return
        if self._reading.pop(turn, None) is None:
            if turn not in self._ending:
                return
            del self._ending[turn]
        if not self._waiting:
            self._free += 1
            return
        first = next(iter(self._waiting))
        granted = self._waiting.pop(first)
        self._reading[first] = asyncio.get_running_loop().time()
        granted.set()
        self._look_later()

    def _look_later(self) -> None:
        if self._timer is None and self._reading and self._waiting:
            due = next(iter(self._reading.values())) + QUIET_S
            self._timer = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        """For each that waits, one that is silent ends."""
        self._timer = None
        long_ago = asyncio.get_running_loop().time() - QUIET_S
        wanted = len(self._waiting) - len(self._ending)
        silent = [turn for turn, since in self._reading.items() if since <= long_ago]
        for turn in silent[: max(0, wanted)]:
            del self._reading[turn]
            self._ending[turn] = None
            turn.end()
        if len(self._waiting) > len(self._ending):
            self._look_later()


class Turn:
    """One stream's. `end` asks the stream to answer what it has read and to end."""

    __slots__ = ("_turns", "end")

    def __init__(self, turns: Turns, end: Callable[[], None]) -> None:
        self._turns = turns
        self.end = end

    @property
    def is_wanted(self) -> bool:
        """Whether others stand in line."""
        return self._turns.waiting > 0

    def take(self) -> asyncio.Event | None:
        """Before each read: None if it may be opened now, else what to wait for."""
        return self._turns.take(self)

    def give_back(self) -> None:
        """After each message, and at the end."""
        self._turns.give_back(self)


def turns_within(memory: Memory, message_max_bytes: int) -> Turns:
    """Reads that are open may together bring as much as all requests that are being read."""
    return Turns(memory.limit // message_max_bytes)
