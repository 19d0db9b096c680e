"""Reconciles all partitions with the brokers that are online; run by the controller. [S]

Called once per turn of the controller; a turn without work costs a few comparisons.
The planner derives the changes from the current state, never from past events: so a controller that
died at any point is simply continued by the next one.

When the set of live brokers has changed, all partitions are checked, in slices, with the loop
free in between; else only those whose state has changed since the last check.

While over half of the members are missing, nothing is done for up to one lease: after a power cut or a
partition of the network the others will probably return, and leaders elected among few would only shrink
every in-sync set (design rule 17).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

import structlog

from ottla_broker.controller.changes import Changes
from ottla_broker.controller.election import Position
from ottla_broker.controller.leaders import LiveBrokers, waits_for_positions
from ottla_broker.controller.planner import (
    BrokersArrived,
    Event,
    MovesWait,
    PartitionsChecked,
    PreferredLeadersWanted,
    plan,
)
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.move_config import moves_limit
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition
from ottla_core.ports.clock import Clock
from ottla_core.ports.peers import PeerUnavailable

_log = structlog.get_logger("ottla.controller")

#: Numbers of partitions by topic.
Chosen: TypeAlias = dict[str, list[int]]
#: The log ends of some partitions at one broker, in their order; None where it has no log.
AskPositions: TypeAlias = Callable[[int, Sequence[tuple[UUID, int]]], Awaitable[Sequence[Position | None]]]

#: Partitions planned at a time: some milliseconds of the loop, and four transactions.
SLICE_PARTITIONS = 500
#: Partitions looked at before the loop is free again: a millisecond.
LOOKED_MAX = 5_000
#: Log ends are asked for so many partitions at a time.
_POSITIONS_MAX = 1000
_ASK_EVERY_S = 1.0
#: Looking through more moves than these takes milliseconds of the loop, so it is done less often.
_MOVES_FEW = 1000
_MOVES_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class CareConfig:
    """Timeouts and limits of the caretaker."""

    #: The lease of a broker's registration.
    ttl_s: float = 6.0
    #: How often leaderships return to preferred replicas; 0: never.
    rebalance_interval_s: float = 300.0
    #: How long a broker must have been online before leaderships return to it.
    rebalance_grace_s: float = 20.0
    #: Leaderships that return in one round: each costs its clients a metadata request.
    rebalance_max: int = 500
    #: Partitions that a broker copies at once because they move to it, where no setting says otherwise.
    moves_max: int = 10


class Caretaker:
    def __init__(
        self,
        changes: Changes,
        clock: Clock,
        metadata: Metadata,
        config: CareConfig,
        *,
        defaults: Callable[[ClusterImage], Mapping[str, str]],
        ask_positions: AskPositions | None = None,
    ) -> None:
        """`defaults` are the broker's settings for topics that do not say otherwise."""
        self._changes = changes
        self._clock = clock
        self._metadata = metadata
        self._config = config
        self._defaults = defaults
        self._ask_positions = ask_positions
        self._admitting = asyncio.Lock()
        #: The image at the last complete check.
        self._checked = ClusterImage(cluster_id="")
        #: Partitions that move, or wait for it, by the images checked so far.
        self._moving: dict[tuple[str, int], None] = {}
        #: When moves were last begun, and with which image.
        self._moves_at = float("-inf")
        self._moves_in: ClusterImage | None = None
        self._rebalanced_at = clock.monotonic()
        self._positions_at = float("-inf")
        #: When each registration was first seen.
        self._here_since: dict[tuple[int, int], float] = {}
        #: Since when over half of the members are missing.
        self._missing_since: float | None = None
        metadata.subscribe(self._on_image)

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """Every broker keeps these times, so that a new controller does not start its waits again."""
        if old.brokers is new.brokers and old.members is new.members:
            return
        now = self._clock.monotonic()
        live = {(b.id, b.revision) for b in new.brokers.values()}
        self._here_since = {key: self._here_since.get(key, now) for key in sorted(live)}
        missing = sum(1 for broker_id in new.members if broker_id not in new.brokers)
        if 2 * missing <= len(new.members):
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now

    @property
    def is_waiting(self) -> bool:
        """Whether too many brokers are missing to act (rule 17)."""
        since = self._missing_since
        return since is not None and self._clock.monotonic() - since < self._config.ttl_s

    async def turn(self) -> bool:
        """Reconcile all partitions with the live brokers; False while it has to wait. Raises RequestError."""
        if self.is_waiting:
            return False
        image = self._metadata.image
        arriving = tuple(i for i in sorted(image.brokers) if not image.is_admitted(i))
        if arriving:
            async with self._admitting:
                await self._deal_with(BrokersArrived(arriving))
        await self._check_partitions()
        await self._begin_moves()
        await self._ask_for_positions()
        await self._rebalance()
        return True

    async def admissions(self) -> None:
        """Wait until this broker's image shows just admitted brokers: they know it already, and so may clients."""
        async with self._admitting:
            return

    async def _deal_with(self, event: Event) -> None:
        await self._changes.settle(lambda image: plan(image, event, self._defaults(image)))

    # ------------------------------------------------------------------ leaders that fit

    async def _check_partitions(self) -> None:
        image, before = self._metadata.image, self._checked
        same_brokers = image.brokers is before.brokers and image.members is before.members
        same_policy = image.broker_configs is before.broker_configs
        if same_brokers and same_policy and image.topics is before.topics:
            return
        compared = before if same_brokers and same_policy else None
        for chosen in _slices(
            _leaderless_first(self._noting_moves(_differing(compared, image), image), image)
        ):
            if chosen:
                await self._deal_with(PartitionsChecked(chosen))
            await self._clock.sleep(0)
        self._checked = image

    # ------------------------------------------------------------------ moves

    def _noting_moves(
        self, partitions: Iterator[tuple[str, int]], image: ClusterImage
    ) -> Iterator[tuple[str, int]]:
        for name, index in partitions:
            state = image.topics[name].partitions[index]
            if state.is_moving or state.planned:
                self._moving[name, index] = None
            else:
                self._moving.pop((name, index), None)
            yield name, index

    async def _begin_moves(self) -> None:
        """Begin moves that wait, where brokers have room for them."""
        image, now, was = self._metadata.image, self._clock.monotonic(), self._moves_in
        if not self._moving or (len(self._moving) > _MOVES_FEW and now - self._moves_at < _MOVES_EVERY_S):
            return
        if was is not None and was.topics is image.topics and was.broker_configs is image.broker_configs:
            return
        self._moves_at = now
        chosen: Chosen = {}
        waiting = 0
        for name, index in list(self._moving):
            state = image.partition(TopicPartition(name, index))
            if state is None:
                del self._moving[name, index]
                continue
            waiting += bool(state.planned)
            chosen.setdefault(name, []).append(index)
        if waiting:
            limit_of = moves_limit(image.broker_configs, self._config.moves_max)
            await self._deal_with(MovesWait(chosen, limit_of))
        self._moves_in = image

    async def _ask_for_positions(self) -> None:
        """Rule 2: if all of ISR and ELR are torn and online, elect the longest log."""
        now = self._clock.monotonic()
        if self._ask_positions is None or now - self._positions_at < _ASK_EVERY_S:
            return
        self._positions_at = now
        image = self._metadata.image
        live = LiveBrokers.of(image)
        waiting: dict[tuple[UUID, int], tuple[int, ...]] = {}
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                if not partition.torn:  # First: with 100,000 partitions the rest is 6 ms, every second.
                    continue
                alive = live.for_partition(topic.id, index).alive
                if safe := waits_for_positions(partition, alive):
                    waiting[topic.id, index] = safe
        if not waiting:
            return
        some = dict(list(waiting.items())[:_POSITIONS_MAX])
        positions = await self._positions_of(some)
        chosen: Chosen = {}
        for topic_id, index in some:
            chosen.setdefault(image.names_by_id[topic_id], []).append(index)
        _log.warning("all in-sync replicas are torn; electing the longest logs", partitions=len(some))
        await self._deal_with(PartitionsChecked(chosen, positions))

    async def _positions_of(
        self, waiting: Mapping[tuple[UUID, int], tuple[int, ...]]
    ) -> dict[tuple[UUID, int], dict[int, Position]]:
        found: dict[tuple[UUID, int], dict[int, Position]] = {key: {} for key in waiting}
        if self._ask_positions is None:
            return found
        for broker_id in sorted({r for safe in waiting.values() for r in safe}):
            wanted = [key for key, safe in waiting.items() if broker_id in safe]
            try:
                answers = await self._ask_positions(broker_id, wanted)
            except (PeerUnavailable, RequestError) as error:
                _log.warning("log end offsets not known yet", broker=broker_id, reason=str(error))
                continue
            for key, position in zip(wanted, answers, strict=False):
                if position is not None:
                    found[key][broker_id] = position
        return found

    # ------------------------------------------------------------------ preferred leaders

    async def _rebalance(self) -> None:
        config, now = self._config, self._clock.monotonic()
        if not config.rebalance_interval_s or now - self._rebalanced_at < config.rebalance_interval_s:
            return
        self._rebalanced_at = now
        settled = sorted(
            broker_id
            for (broker_id, _), since in self._here_since.items()
            if now - since >= config.rebalance_grace_s
        )
        left = config.rebalance_max
        for chosen in _slices(_led_by_others(self._metadata.image, settled)):
            some = _first(chosen, left)
            left -= sum(map(len, some.values()))
            if some:
                await self._deal_with(PreferredLeadersWanted(some, settled))
            await self._clock.sleep(0)
            if left <= 0:
                return


def _differing(before: ClusterImage | None, image: ClusterImage) -> Iterator[tuple[str, int]]:
    """Partitions whose state has changed; all of them if there is no earlier image."""
    for name, topic in image.topics.items():
        was = before.topics.get(name) if before is not None else None
        if was is topic:
            continue
        old = was.partitions if was is not None else ()
        for index, partition in enumerate(topic.partitions):
            if index >= len(old) or old[index] is not partition:
                yield name, index


def _leaderless_first(
    partitions: Iterator[tuple[str, int]], image: ClusterImage
) -> Iterator[tuple[str, int] | None]:
    """Sort partitions without a live leader first: more clients wait for them than for a smaller ISR.

    None: as many were looked at as the loop can wait for.
    """
    alive, rest = LiveBrokers.of(image).alive, list[tuple[str, int]]()
    for name, index in partitions:
        if image.topics[name].partitions[index].leader in alive:
            rest.append((name, index))
            if len(rest) % LOOKED_MAX == 0:
                yield None
        else:
            yield name, index
    yield from rest


def _led_by_others(image: ClusterImage, settled: Sequence[int]) -> Iterator[tuple[str, int] | None]:
    looked = 0
    for name, topic in image.topics.items():
        for index, partition in enumerate(topic.partitions):
            first = partition.replicas[:1]
            if first and partition.leader != first[0] and first[0] in settled and first[0] in partition.isr:
                yield name, index
        looked += len(topic.partitions)
        if looked >= LOOKED_MAX:
            looked = 0
            yield None


def _slices(partitions: Iterator[tuple[str, int] | None]) -> Iterator[Chosen]:
    """Slices of at most SLICE_PARTITIONS; an empty one for each None, which only frees the loop."""
    chosen: Chosen = {}
    count = 0
    for found in partitions:
        if found is None:
            yield {}
            continue
        name, index = found
        chosen.setdefault(name, []).append(index)
        count += 1
        if count == SLICE_PARTITIONS:
            yield chosen
            chosen, count = {}, 0
    if chosen:
        yield chosen


def _first(chosen: Chosen, limit: int) -> Chosen:
    """The first `count` of them."""
    made: Chosen = {}
    for name, indexes in chosen.items():
        if limit <= 0:
            break
        made[name] = indexes[:limit]
        limit -= len(made[name])
    return made
