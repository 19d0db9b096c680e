"""What the shells of both group protocols share: the user's turns inside `poll`, timers, leaving. [S]

A subclass has the machine of its protocol and executes its effects. Owned by one `Consumer`, which applies
assignments (`Holder`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ottla_client.assignors import Assignor
from ottla_client.cluster import Cluster
from ottla_client.coordinator import Coordinator
from ottla_client.group_effects import Identity, Partitions, TakeTurn, Turn, Warn
from ottla_client.listener import OnPartitions, RebalanceListener
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition
from ottla_core.ports.clock import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    group_id: str
    group_instance_id: str
    client_id: str
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    assignors: tuple[Assignor, ...]
    request_timeout_s: float
    backoff_s: float
    backoff_max_s: float
    topics_max_age_s: float
    #: Of the broker-side protocol: the member id, and what the coordinator may consider.
    member_id: str = ""
    rack: str = ""
    remote_assignor: str = ""
    #: Join as a classic member where the broker-side protocol is not offered.
    may_fall_back: bool = False


class Holder(Protocol):
    """The reader of the assigned partitions."""

    def adopt(self, partitions: Sequence[TopicPartition]) -> None:
        """Replace the assignment; new partitions start at the committed offsets."""

    async def before_revocation(self) -> None:
        """Commit offsets while the partitions are still assigned."""

    def wake(self) -> None:
        """Wake a waiting poll: something has changed."""


class Membership(Protocol):
    """The state machine of a group protocol, as far as both have it in common."""

    identity: Identity
    failure: Exception | None

    @property
    def held(self) -> Partitions: ...

    @property
    def topics(self) -> tuple[str, ...]: ...

    def poll_began(self, now: float) -> Sequence[Any]: ...

    def poll_ended(self, now: float) -> None: ...

    def begin_turn(self) -> Turn | None: ...

    def turn_done(self, now: float) -> Sequence[Any]: ...

    def leave(self, now: float, reason: str) -> Sequence[Any]: ...

    def commit_refused(self, identity: Identity, error: Exception, now: float) -> Sequence[Any]: ...

    def tick(self, now: float) -> Sequence[Any]: ...

    def wakes_at(self) -> float | None: ...


class GroupShell(ABC):
    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        coordinator: Coordinator,
        settings: GroupSettings,
        holder: Holder,
        machine: Membership,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._coordinator = coordinator
        self._settings = settings
        self._holder = holder
        self._machine: Membership = machine
        self._listener = RebalanceListener()
        self._timer: asyncio.TimerHandle | None = None
        self._turns = asyncio.Lock()
        #: Steps of the current turn that are done, in case a poll is cancelled in the middle of it.
        self._turn_step = 0
        self._closed = False

    # ------------------------------------------------------------------ for the consumer

    @property
    def identity(self) -> Identity:
        return self._machine.identity

    @property
    def is_subscribed(self) -> bool:
        return bool(self._machine.topics)

    @property
    def subscription(self) -> tuple[str, ...]:
        return self._machine.topics

    @abstractmethod
    def subscribe(
        self, topics: Sequence[str] | re.Pattern[str], listener: RebalanceListener | None
    ) -> None: ...

    async def poll_began(self) -> None:
        """Run the user's turn, if one is due. Raises errors of listeners and the fatal error of the membership."""
        self._do(self._machine.poll_began(self._now()))
        async with self._turns:
            while (turn := self._machine.begin_turn()) is not None:
                try:
                    await self._take(turn)
                except asyncio.CancelledError:
                    raise  # the next poll continues here
                except BaseException:
                    self._turn_done(turn)
                    raise
                self._turn_done(turn)
        if self._machine.failure is not None:
            raise self._machine.failure

    def poll_ended(self) -> None:
        self._machine.poll_ended(self._now())
        self._set_timer()

    def commit_refused(self, identity: Identity, error: RequestError) -> None:
        self._do(self._machine.commit_refused(identity, error, self._now()))

    async def leave(self, reason: str) -> None:
        """Revoke all partitions and leave the group. Listeners are called as in a rebalance."""
        async with self._turns:
            held = self._machine.held
            try:
                if held and self._machine.identity.generation >= 0:
                    await self._holder.before_revocation()
                    await self._tell(self._listener.on_revoked, held)
                elif held:
                    await self._tell(self._listener.on_lost or self._listener.on_revoked, held)
            finally:
                self._turn_step = 0
                effects = self._machine.leave(self._now(), reason)
                self._holder.adopt(())
                for effect in effects:
                    await self._say_goodbye(effect)

    async def close(self) -> None:
        try:
            if self.is_subscribed or self._machine.held:
                await self.leave("the consumer was closed")
        finally:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()

    # ------------------------------------------------------------------ the user's turn

    async def _take(self, turn: Turn) -> None:
        listener = self._listener
        if self._turn_step == 0 and turn.lost:
            self._turn_step = 1
            log.warning("Partitions were lost: %s", ", ".join(map(str, turn.lost)))
            await self._tell(listener.on_lost or listener.on_revoked, turn.lost)
        if self._turn_step <= 1 and turn.revoked:
            await self._holder.before_revocation()
            self._turn_step = 2
            await self._tell(listener.on_revoked, turn.revoked)
        if self._turn_step <= 2:
            self._turn_step = 3
            self._holder.adopt(turn.assignment)
            if turn.added is not None:
                await self._tell(listener.on_assigned, turn.added)

    def _turn_done(self, turn: Turn) -> None:
        if self._turn_step < 3:
            # Apply the assignment even if a listener failed.
            self._holder.adopt(turn.assignment)
        self._turn_step = 0
        self._do(self._machine.turn_done(self._now()))

    async def _tell(self, callback: OnPartitions | None, partitions: Sequence[TopicPartition]) -> None:
        if callback is not None:
            waiting = callback(list(partitions))
            if inspect.isawaitable(waiting):
                await waiting

    # ------------------------------------------------------------------ effects

    @abstractmethod
    def _start(self, effect: Any) -> None:
        """Execute an effect of this protocol, in the background."""

    @abstractmethod
    async def _say_goodbye(self, effect: Any) -> None:
        """Wait for the request that leaves the group, if the effect is that."""

    def _now(self) -> float:
        return self._clock.monotonic()

    def _do(self, effects: Iterable[Any]) -> None:
        for effect in effects:
            if isinstance(effect, TakeTurn):
                self._holder.wake()
            elif isinstance(effect, Warn):
                log.warning("Group %s: %s", self._settings.group_id, effect.sentence)
            else:
                self._start(effect)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        when = self._machine.wakes_at()
        if when is not None and not self._closed:
            delay_s = max(0.001, when - self._now())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._do(self._machine.tick(self._now()))
