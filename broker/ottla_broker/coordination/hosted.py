"""One shard at work: its partition, its uncommitted appends, and the replies and effects that wait for them. [S]

Replies and effects are parked behind numbered appends. Append n is committed when its last record is; then everything
parked behind n goes out. A reply that came with no records is parked behind the last append, because what it says may
rest on it (`shard`, C3). A commit that takes too long refuses the replies; the effects stay parked until it is done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from ottla_broker.coordination.batching import batches_of
from ottla_broker.coordination.effects import EffectQueue
from ottla_broker.coordination.shard import Decision, Entry, Shard, Ticket, replay_entry
from ottla_broker.coordination.tasks import surface
from ottla_broker.log.origin import AppendOrigin
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.partition.partition import ACKS_ALL, Partition
from ottla_broker.requests import Appended, Maybe
from ottla_core.errors import (
    CoordinatorNotAvailable,
    NotCoordinator,
    NotEnoughReplicasAfterAppend,
    RequestError,
    RequestTimedOut,
)
from ottla_core.ports.clock import Clock

#: Requests that wait in one shard: joins and syncs of its groups, and replies to be committed.
_WAITING_MAX = 20_000
#: How often the commit is checked while too few replicas are in sync.
_RETRY_S = 0.25


class _Parked(NamedTuple):
    #: The number of the append that has to be committed first.
    after: int
    ticket: Ticket
    reply: Any


class _ParkedEffect(NamedTuple):
    after: int
    effect: Any


class _Gate(NamedTuple):
    number: int
    appended: Appended


class Hosted:
    def __init__(
        self,
        index: int,
        partition: Partition,
        shard: Shard,
        clock: Clock,
        commit_timeout_s: float,
        on_failed: Callable[[Hosted, RequestError], None],
        run_effect: Callable[[Hosted, Any], Awaitable[None]],
    ) -> None:
        self.index = index
        self.partition = partition
        self.epoch = partition.image.leader_epoch
        #: Where the log ended at the election: all before that is to be replayed and committed first.
        self.end_offset = partition.log.end_offset
        self.shard = shard
        #: Whether it has been loaded and may answer.
        self.ready = False
        #: The last cluster image that the shard has decided about.
        self.image: ClusterImage | None = None
        self.loading: asyncio.Task[None] | None = None
        self._clock = clock
        self._commit_timeout_s = commit_timeout_s
        self._on_failed = on_failed
        self._ended = False
        #: Unanswered requests. None: still within `ask`, the answer is put into `_instant`.
        self._waiting: dict[Ticket, asyncio.Future[Any] | None] = {}
        self._instant: dict[Ticket, Any] = {}
        self._tickets = 0
        #: Decided and replayed, not appended yet; they become append number `_appends + 1`.
        self._unwritten: list[Entry] = []
        self._appends = 0
        #: Appended, not known to be committed, in order.
        self._gates: deque[_Gate] = deque()
        self._parked: deque[_Parked] = deque()
        self._parked_effects: deque[_ParkedEffect] = deque()
        self.effects = EffectQueue(lambda effect: run_effect(self, effect))
        self._commits: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ requests

    def check_work(self, *, writes: bool) -> None:
        """Refuse requests whose decision could not be appended."""
        partition = self.partition
        leading, in_sync = partition.leading, len(partition.image.isr)
        try:
            partition.check_leader(self.epoch)
            if leading is not None:
                in_sync = leading.machine.in_sync
                # Rule 14: a leader that may have been replaced answers no request, not even from memory.
                leading.check_work()
        except RequestError as error:
            raise NotCoordinator(error.message) from None
        if writes and in_sync < partition.needed_in_sync:
            raise CoordinatorNotAvailable("Too few replicas of the coordinator's partition are in sync.")
        if len(self._waiting) >= _WAITING_MAX:
            raise CoordinatorNotAvailable("Too many requests are waiting in this coordinator; try again.")

    def take_ticket(self) -> Ticket:
        self._tickets += 1
        self._waiting[self._tickets] = None
        return self._tickets

    def give_back(self, ticket: Ticket) -> None:
        self._waiting.pop(ticket, None)

    def answer(self, ticket: Ticket) -> Maybe[Any]:
        """What has been answered at once, or a future that will give it."""
        if ticket in self._instant:
            reply = self._instant.pop(ticket)
            if isinstance(reply, RequestError):
                raise reply
            return reply
        future = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        return future

    def carry_out(self, decision: Decision) -> None:
        """Replay and append the entries; send the replies and begin the effects once they are committed."""
        if decision.records:
            for entry in decision.records:
                replay_entry(self.shard, entry)
            if not self._unwritten:
                asyncio.get_running_loop().call_soon(self._write)
            self._unwritten += decision.records
        if self._unwritten or self._gates:
            after = self._appends + 1 if self._unwritten else self._appends
            self._parked.extend(_Parked(after, ticket, reply) for ticket, reply in decision.replies)
            self._parked_effects.extend(_ParkedEffect(after, effect) for effect in decision.effects)
        else:
            for ticket, reply in decision.replies:
                self._send(ticket, reply)
            for effect in decision.effects:
                self.effects.add(effect)

    def _send(self, ticket: Ticket, reply: Any) -> None:
        if ticket not in self._waiting:
            return  # It has timed out.
        future = self._waiting.pop(ticket)
        if future is None:
            self._instant[ticket] = reply
        elif not future.done():
            future.set_result(reply)

    # ------------------------------------------------------------------ writing

    def _write(self) -> None:
        records, self._unwritten = self._unwritten, []
        if self._ended or not records:
            return
        self._appends += 1
        try:
            for batch in batches_of(records, self._clock.wall_ms()):
                now_ms = self._clock.wall_ms()
                appended = self.partition.append(batch, ACKS_ALL, now_ms, origin=AppendOrigin.COORDINATOR)
                self._gates.append(_Gate(self._appends, appended))
        except RequestError as error:
            self._on_failed(self, error)
            return
        self._release_committed()

    def _release_committed(self) -> None:
        """Send what is committed; a task waits for the rest."""
        if self._commits is not None:
            return
        while self._gates:
            wait = self.partition.acknowledged(self._gates[0].appended, ACKS_ALL, self._commit_timeout_s)
            if wait is not None:
                waiting = asyncio.ensure_future(wait)
                waiting.add_done_callback(_looked_at)
                self._commits = asyncio.get_running_loop().create_task(self._await_commits(waiting))
                self._commits.add_done_callback(surface)
                return
            self._pass_gate()

    async def _await_commits(self, wait: Awaitable[None] | None) -> None:
        while True:
            try:
                if wait is not None:
                    await wait
                self._pass_gate()
            except (RequestTimedOut, NotEnoughReplicasAfterAppend) as error:
                # It may still be committed, and until then no later reply is sent.
                self._refuse_parked()
                if isinstance(error, NotEnoughReplicasAfterAppend):
                    await self._clock.sleep(_RETRY_S)
            except RequestError as error:
                self._commits = None
                self._on_failed(self, error)
                return
            if self._ended or not self._gates:
                self._commits = None
                return
            wait = self.partition.acknowledged(self._gates[0].appended, ACKS_ALL, self._commit_timeout_s)

    def _pass_gate(self) -> None:
        passed = self._gates.popleft().number
        if self._gates and self._gates[0].number == passed:
            return  # The append took several batches; this was not the last.
        while self._parked and self._parked[0].after <= passed:
            parked = self._parked.popleft()
            self._send(parked.ticket, parked.reply)
        while self._parked_effects and self._parked_effects[0].after <= passed:
            self.effects.add(self._parked_effects.popleft().effect)

    def _refuse_parked(self) -> None:
        error = CoordinatorNotAvailable("The change was written, but not committed in time; try again.")
        while self._parked:
            self._send(self._parked.popleft().ticket, error)

    # ------------------------------------------------------------------ the end

    def end(self, error: RequestError) -> None:
        """The leadership is over, or the state is not trusted: send nothing more."""
        self._ended = True
        self.ready = False
        for task in (self.loading, self._commits):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self.loading = self._commits = None
        self._unwritten, self._gates = [], deque()
        self._parked.clear()
        self._parked_effects.clear()
        self.effects.close()
        for ticket in list(self._waiting):
            self._send(ticket, error)


def _looked_at(wait: asyncio.Future[None]) -> None:
    """Mark the exception as retrieved; the shard that waited may have ended."""
    if not wait.cancelled():
        wait.exception()
