"""Schedules work of connections on the event loop: one run queue, and a time budget per loop turn. [P]

Theory of operation. A turn is one iteration of the event loop. Work that arrives while the queue is empty and the
turn has time left runs at once (`admit`). Everything else is queued and served in the next turns, round robin, one
slice per visit. When the budget is used up the loop goes on with whatever else is due: the lease, followers, probes,
timers.

* S1: a turn ends within TURN_S plus one step of work. Steps are short: a request, or a slice of a large one.
* S2: urgent work is served before bulk work, and bulk work gets a slice in every turn all the same.
* S3: queued work is served in the order of its queue; one visit lasts SLICE_S at most while others wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

#: Bulk work per loop turn. A message between brokers takes three to five turns, so it is delayed by some 10 ms at
#: most; with 1 ms the loop's own overhead per turn takes a noticeable share of the throughput.
TURN_S = 0.002
#: One visit while others wait: some ten small requests, so that a flush to the socket still carries several answers.
#: A client that asks one thing waits for this much per flooding connection.
SLICE_S = 0.0005
#: Urgent work may take this share of a turn before bulk work gets its slice.
_URGENT_SHARE = 0.5


class Work(Protocol):
    def run(self, until: float) -> None:
        """Do at least one step, then more until the clock shows `until`. Must call `queue` if something is left."""


class Scheduler:
    def __init__(
        self,
        now: Callable[[], float],
        later: Callable[[Callable[[], None]], object],
        observe: Callable[[float], None],
    ) -> None:
        """`later` calls back in the next loop turn; `observe` gets the time that each turn's work took."""
        self._now = now
        self._later = later
        self._observe = observe
        self._urgent: OrderedDict[Work, None] = OrderedDict()
        self._bulk: OrderedDict[Work, None] = OrderedDict()
        #: Whether `_turn` will be called back.
        self._is_open = False
        self._ends = 0.0
        #: When the last work was admitted.
        self.admitted_at = 0.0
        self._used = 0.0

    @property
    def waiting(self) -> int:
        return len(self._urgent) + len(self._bulk)

    @property
    def is_busy(self) -> bool:
        """True while work waits for a later turn."""
        return bool(self._bulk or self._urgent)

    def admit(self) -> float | None:
        """How long work that just arrived may run, to be followed by `done`; None if it has to be queued."""
        now = self._now()
        if not self._is_open:
            self._is_open = True
            self._ends = now + TURN_S
            self._later(self._turn)
        elif self._bulk or self._urgent or now >= self._ends:
            return None
        self.admitted_at = now
        return self._ends

    def done(self) -> None:
        """The end of the work that `admit` let in."""
        self._used += self._now() - self.admitted_at

    def spend(self, seconds: float) -> None:
        """Leave this much less of the turn: for work that was admitted, and runs outside of the queue."""
        self._ends -= seconds

    def queue(self, work: Work, *, urgent: bool) -> None:
        """Serve `work` in a later turn. Once is enough; again moves it only if its urgency changed."""
        if urgent:
            self._bulk.pop(work, None)
            self._urgent[work] = None
        else:
            self._urgent.pop(work, None)
            self._bulk[work] = None
        if not self._is_open:
            self._is_open = True
            self._ends = 0.0
            self._later(self._turn)

    def is_over(self, until: float) -> bool:
        """Whether a visit that lasts until then has to end."""
        return self._now() >= until

    def forget(self, work: Work) -> None:
        self._urgent.pop(work, None)
        self._bulk.pop(work, None)

    def _turn(self) -> None:
        """Close the turn before, and serve the queues in the next one."""
        used, self._used = self._used, 0.0
        if used:
            self._observe(used)
        if not self._bulk and not self._urgent:
            self._is_open = False
            return
        start = now = self._now()
        self._ends = start + TURN_S
        self._later(self._turn)
        urgent_ends = start + TURN_S * _URGENT_SHARE
        owes_bulk = True
        try:
            while True:
                ends = self._ends
                if self._urgent and (now < urgent_ends or not self._bulk) and now < ends:
                    queue = self._urgent
                elif self._bulk and (owes_bulk or now < ends):
                    queue, owes_bulk = self._bulk, False
                else:
                    return
                work, _ = queue.popitem(last=False)
                work.run(now + SLICE_S if self._bulk or self._urgent else ends)
                now = self._now()
        finally:
            self._used = self._now() - start
