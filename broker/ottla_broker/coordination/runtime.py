"""Runs the shards of one internal topic: loads them, appends what they decide, sends replies once committed. [S]

One shard per partition of the topic that this broker leads. A shard lives as long as the leadership (design rule 20):
its state is replayed from the log up to the end found at the election, it answers COORDINATOR_LOAD_IN_PROGRESS until
that is done and committed, and when the leadership ends all waiting requests get NOT_COORDINATOR; a later epoch's high
watermark completes nothing.

The path of a request: `ask` -> `Shard.handle` -> records are replayed at once, and appended together with those of
other requests of the same loop turn -> when they are committed, the replies go out in order and the effects begin. If
an append fails although it was possible a moment ago, the shard has replayed what the log does not hold, so it is
dropped and loaded again.

Effects run through `perform`, which returns the request that tells the shard the outcome. A new cluster image goes to
every shard that is ready, and again later if its decision could not be written now. One timer of the loop serves the
deadlines of all shards.

A bug ends the shard it occurred in. An invariant violation goes to the loop's handler, which stops the broker
(`process.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

import structlog

from ottla_broker.coordination.hosted import Hosted
from ottla_broker.coordination.loading import replay_log
from ottla_broker.coordination.metadata_change import MetadataChange
from ottla_broker.coordination.shard import NO_TICKET, Decision, Now, Shard, Ticket
from ottla_broker.coordination.tasks import surface
from ottla_broker.exposed import Histogram
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.partition.host import PartitionHost
from ottla_broker.partition.partition import Partition
from ottla_broker.requests import Maybe
from ottla_core.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvariantViolation,
    NotCoordinator,
    RequestError,
)
from ottla_core.ids import TopicPartition
from ottla_core.ports.clock import Clock
from ottla_core.ports.offload import Offload

_log = structlog.get_logger("ottla.coordinators")

#: Shards loaded at the same time; more would only slow each other down.
_LOADING_MAX = 4
#: Pause after a failed load (a damaged log, an offline disk).
_RELOAD_PAUSE_S = 2.0
#: Pause before timers and new images are retried while the log cannot be written.
_RETRY_MS = 500
#: How often a loaded shard checks whether its log is committed.
_COMMITTED_CHECK_S = 1.0


class RuntimeProbe(Protocol):
    """What the runtime measures, whatever its shards coordinate."""

    load_seconds: Histogram


async def _no_effects(effect: Any, epoch: int) -> Any:
    raise InvariantViolation(f"a shard without effects decided on {effect!r}")


class Runtime:
    def __init__(
        self,
        topic: str,
        host: PartitionHost,
        clock: Clock,
        offload: Offload,
        probe: RuntimeProbe,
        make_shard: Callable[[], Shard],
        *,
        commit_timeout_s: float,
        perform: Callable[[Any, int], Awaitable[Any]] = _no_effects,
    ) -> None:
        """`perform` carries out one effect and returns the request with its outcome, or None if there is none. It is
        given the leader epoch under which the shard decided, which fences effects of earlier leaders (rule 21)."""
        self.topic = topic
        self._host = host
        self._clock = clock
        self._offload = offload
        self._probe = probe
        self._make_shard = make_shard
        self._commit_timeout_s = commit_timeout_s
        self._perform = perform
        #: The newest cluster image; shards are given it when they are ready.
        self._image: ClusterImage | None = None
        self._hosted: dict[int, Hosted] = {}
        self._loading = asyncio.Semaphore(_LOADING_MAX)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._closed = False

    # ------------------------------------------------------------------ following leaderships

    def on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """Called after the partitions were reconciled with the image: start and drop shards, and pass it to the
        others."""
        topic = new.topics.get(self.topic)
        self._image = new
        if old.topics.get(self.topic) is not topic:
            count = 0 if topic is None else len(topic.partitions)
            for index in range(max(count, max(self._hosted, default=-1) + 1)):
                self._follow(index)
        change = MetadataChange(old, new)
        for hosted in list(self._hosted.values()):
            if hosted.ready:
                self._show_image(hosted, change if hosted.image is old else None)

    def _follow(self, index: int) -> Hosted | None:
        """The shard of a partition as its leadership stands now; a new one begins to load."""
        partition = self._led(index)
        hosted = self._hosted.get(index)
        if hosted is not None:
            if partition is hosted.partition and partition.image.leader_epoch == hosted.epoch:
                return hosted
            self._drop(hosted, NotCoordinator())
        if partition is None:
            return None
        hosted = Hosted(
            index,
            partition,
            self._make_shard(),
            self._clock,
            self._commit_timeout_s,
            self._fail,
            self._run_effect,
        )
        self._hosted[index] = hosted
        if partition.log.start_offset == hosted.end_offset <= partition.high_watermark:
            # Nothing to load, as in all partitions of a new topic: the first request is not refused.
            self._take_up(hosted)
            return hosted
        hosted.loading = asyncio.get_running_loop().create_task(
            self._load(hosted), name=f"load {self.topic}-{index}"
        )
        hosted.loading.add_done_callback(surface)
        return hosted

    def _led(self, index: int) -> Partition | None:
        if self._closed:
            return None
        try:
            partition = self._host.find(TopicPartition(self.topic, index))
        except RequestError:
            return None
        return partition if partition.is_leader else None

    def _drop(self, hosted: Hosted, error: RequestError) -> None:
        if self._hosted.get(hosted.index) is hosted:
            del self._hosted[hosted.index]
        hosted.end(error)

    def _fail(self, hosted: Hosted, error: RequestError) -> None:
        """The shard's decision was not appended, or will not be committed by this leader."""
        _log.info("coordinator dropped", partition=str(hosted.partition.tp), reason=str(error))
        self._drop(hosted, NotCoordinator())
        self._follow(hosted.index)

    def close(self) -> None:
        """The broker stops: all waiting requests get NOT_COORDINATOR."""
        self._closed = True
        for hosted in list(self._hosted.values()):
            self._drop(hosted, NotCoordinator())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------------ loading

    async def _load(self, hosted: Hosted) -> None:
        began = self._clock.monotonic()
        partition, end_offset = hosted.partition, hosted.end_offset
        try:
            async with self._loading:
                count = await replay_log(
                    partition, hosted.epoch, end_offset, hosted.shard, self._clock, self._offload
                )
            await self._until_committed(hosted)
        except (RequestError, OSError) as error:
            await self._give_up_loading(hosted, str(error))
            return
        except InvariantViolation:
            raise  # To the loop, and from there to the broker, which ends.
        except Exception as error:  # A bug: it ends this shard, and is logged with its traceback.
            _log.exception("coordinator loading failed unexpectedly", partition=str(partition.tp))
            await self._give_up_loading(hosted, repr(error))
            return
        took_s = self._clock.monotonic() - began
        self._probe.load_seconds.observe(took_s)
        if count:
            _log.info("coordinator loaded", partition=str(partition.tp), records=count, seconds=took_s)
        self._take_up(hosted)

    def _take_up(self, hosted: Hosted) -> None:
        hosted.ready = True
        self._carry_out(hosted, hosted.shard.loaded(self._now()))
        self._show_image(hosted)

    async def _until_committed(self, hosted: Hosted) -> None:
        partition = hosted.partition
        while partition.high_watermark < hosted.end_offset:
            moved = asyncio.Event()
            partition.when_readable(moved.set)
            try:
                await asyncio.wait_for(moved.wait(), _COMMITTED_CHECK_S)
            except TimeoutError:
                partition.forget_reader(moved.set)
            partition.check_leader(hosted.epoch)
        partition.check_leader(hosted.epoch)

    async def _give_up_loading(self, hosted: Hosted, reason: str) -> None:
        if self._hosted.get(hosted.index) is not hosted:
            return
        _log.error("coordinator not loaded; retrying", partition=str(hosted.partition.tp), reason=reason)
        await self._clock.sleep(_RELOAD_PAUSE_S)
        if self._hosted.get(hosted.index) is hosted:
            hosted.loading = None
            self._drop(hosted, NotCoordinator())
            self._follow(hosted.index)

    # ------------------------------------------------------------------ requests

    def ask(self, index: int, request: Any) -> Maybe[Any]:
        """The shard's reply, or an awaitable of it. RequestError when it is refused at once.

        The awaitable gives the reply or the refusal as a value, so that an abandoned one leaves no exception behind.
        """
        hosted = self._follow(index)
        if hosted is None:
            raise NotCoordinator()
        if not hosted.ready:
            raise CoordinatorLoadInProgress()
        hosted.check_work(writes=request.writes)
        ticket = hosted.take_ticket()
        self._decide(hosted, request, ticket)
        return hosted.answer(ticket)

    def _decide(self, hosted: Hosted, request: Any, ticket: Ticket) -> None:
        try:
            decision = hosted.shard.handle(request, ticket, self._now())
        except RequestError:
            hosted.give_back(ticket)
            raise
        except BaseException:
            # A bug: the state of the shard is not trusted any more.
            self._fail(hosted, CoordinatorNotAvailable("The coordinator failed unexpectedly."))
            raise
        self._carry_out(hosted, decision)

    def ready(self) -> Iterator[tuple[int, Shard]]:
        """All shards that can answer, for inspection."""
        return ((hosted.index, hosted.shard) for hosted in list(self._hosted.values()) if hosted.ready)

    @property
    def is_loading(self) -> bool:
        return any(not hosted.ready for hosted in self._hosted.values())

    def __len__(self) -> int:
        return len(self._hosted)

    def _carry_out(self, hosted: Hosted, decision: Decision) -> None:
        hosted.carry_out(decision)
        next_ms = hosted.shard.timers.next_ms()
        if next_ms is not None:
            self._arm_by(next_ms)

    # ------------------------------------------------------------------ images and effects

    def _show_image(self, hosted: Hosted, change: MetadataChange | None = None) -> None:
        """Let a shard decide about the newest image; later, if nothing can be written now."""
        image = self._image
        if image is None or hosted.image is image or self._follow(hosted.index) is not hosted:
            return
        try:
            hosted.check_work(writes=True)
        except RequestError:
            self._arm_by(self._now().monotonic_ms + _RETRY_MS)
            return
        change = change or MetadataChange(hosted.image, image)
        hosted.image = image
        try:
            self._carry_out(hosted, hosted.shard.on_metadata(change, self._now()))
        except InvariantViolation:
            raise  # As in `_load`.
        except Exception:  # As in `ask`; and the other shards must see the image, too.
            _log.exception("coordinator failed on a new metadata image", partition=str(hosted.partition.tp))
            self._fail(hosted, CoordinatorNotAvailable("The coordinator failed unexpectedly."))

    async def _run_effect(self, hosted: Hosted, effect: Any) -> None:
        try:
            outcome = await self._perform(effect, hosted.epoch)
        except InvariantViolation:
            raise
        except Exception as error:  # Loading the shard again decides on its effects again.
            _log.exception("coordinator effect failed unexpectedly", partition=str(hosted.partition.tp))
            self._fail(hosted, CoordinatorNotAvailable(f"An effect failed: {error!r}"))
            return
        while outcome is not None and self._hosted.get(hosted.index) is hosted:
            try:
                hosted.check_work(writes=True)
            except RequestError:
                await self._clock.sleep(_RETRY_MS / 1000)
                continue
            try:
                self._decide(hosted, outcome, NO_TICKET)
            except RequestError as error:
                _log.error(
                    "outcome of a coordinator effect refused",
                    partition=str(hosted.partition.tp),
                    reason=str(error),
                )
            return

    # ------------------------------------------------------------------ time

    def _now(self) -> Now:
        return Now(self._clock.wall_ms(), int(self._clock.monotonic() * 1000))

    def _arm_by(self, at_ms: int) -> None:
        if self._timer is None or at_ms < self._timer_ms:
            self._arm(at_ms)

    def _arm(self, at_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = at_ms
        # Half a millisecond more: `_now` cuts off fractions, and would not have come to `at_ms` yet.
        delay_s = max(0.0, (at_ms + 0.5) / 1000 - self._clock.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        now = self._now()
        later: list[int] = []
        for hosted in list(self._hosted.values()):
            if not hosted.ready:
                continue
            self._show_image(hosted)
            next_ms = hosted.shard.timers.next_ms()
            if next_ms is not None and next_ms <= now.monotonic_ms:
                next_ms = self._expire(hosted, now)
            if next_ms is not None:
                later.append(next_ms)
        if later:
            self._arm_by(min(later))

    def _expire(self, hosted: Hosted, now: Now) -> int | None:
        """Let a shard act on its timers; return when to call it next."""
        if self._follow(hosted.index) is not hosted:
            return None
        try:
            hosted.check_work(writes=True)
        except RequestError:
            # While the log cannot be written, no member expires because of the broker's problem.
            return now.monotonic_ms + _RETRY_MS
        try:
            hosted.carry_out(hosted.shard.expire(now))
        except InvariantViolation:
            raise  # As in `_load`.
        except Exception:  # As in `ask`; and the timers of the other shards must go on.
            _log.exception("coordinator timers failed unexpectedly", partition=str(hosted.partition.tp))
            self._fail(hosted, CoordinatorNotAvailable("The coordinator failed unexpectedly."))
            return None
        return hosted.shard.timers.next_ms()
