"""Service for both edges: moves of partitions with their progress, elections, cordons, log directories, and the load of
brokers. [S]

Changes go to the controller (`controller_calls.py`). A move is answered when it has begun; `moves` says how far it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from ottla_broker.controller.commands.cordon_broker import CordonBroker
from ottla_broker.controller.commands.elect_leaders import ElectLeaders
from ottla_broker.controller.commands.move_partitions import Move, MovePartitions
from ottla_broker.controller.commands.unregister_broker import UnregisterBroker
from ottla_broker.controller.reassignment import announced
from ottla_broker.metadata.image import BrokerImage, ClusterImage, PartitionImage
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.requests import PartitionResult
from ottla_broker.service.broker_dirs import BrokerDirs
from ottla_broker.service.controller_calls import ControllerCalls
from ottla_broker.service.log_dirs import UNKNOWN_BYTES, DescribedDir, DirTarget
from ottla_broker.service.replica_sizes import BrokerSizes, ReplicaSizes, Wanted
from ottla_core.errors import RequestError
from ottla_core.ids import NO_BROKER, TopicPartition


@dataclass(frozen=True, slots=True)
class AddedReplica:
    broker: int
    in_sync: bool
    bytes_copied: int = UNKNOWN_BYTES
    bytes_total: int = UNKNOWN_BYTES


class Obstacle(IntEnum):
    """Why a move copies nothing now; the numbers of `MoveObstacle` in the protocol."""

    NONE = 0
    #: Its brokers copy as many other partitions as they may.
    QUEUED = 1
    NO_LEADER = 2
    #: A broker that is to copy is offline.
    BROKER_OFFLINE = 3


@dataclass(frozen=True, slots=True)
class OngoingMove:
    tp: TopicPartition
    state: PartitionImage
    progress: tuple[AddedReplica, ...]
    #: Not begun yet.
    waits: bool = False
    obstacle: Obstacle = Obstacle.NONE


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    id: int
    #: None while it is offline.
    broker: BrokerImage | None
    cordoned: bool
    replicas: int
    leaders: int
    #: None: not asked, or it did not answer.
    sizes: BrokerSizes | None
    #: Also of an offline broker: where it was when it was last online.
    rack: str | None = None


class ClusterService:
    def __init__(
        self, metadata: Metadata, controller: ControllerCalls, sizes: ReplicaSizes, dirs: BrokerDirs
    ) -> None:
        self._dirs = dirs
        self._metadata = metadata
        self._controller = controller
        self._sizes = sizes

    # ------------------------------------------------------------------ changes

    async def move(
        self, moves: Sequence[Move], *, keep_replication_factor: bool = False, timeout_s: float
    ) -> list[PartitionResult]:
        return await self._controller.execute(
            MovePartitions(tuple(moves), keep_replication_factor), timeout_s=timeout_s
        )

    async def elect(
        self, partitions: Mapping[str, Sequence[int]] | None, *, unclean: bool, timeout_s: float
    ) -> list[PartitionResult]:
        chosen = None
        if partitions is not None:
            chosen = {name: tuple(self._numbers(name, some)) for name, some in partitions.items()}
        return await self._controller.execute(ElectLeaders(chosen, unclean), timeout_s=timeout_s)

    async def cordon(self, broker: int, *, cordoned: bool, timeout_s: float) -> None:
        await self._controller.execute(CordonBroker(broker, cordoned), timeout_s=timeout_s)

    async def unregister(self, broker: int, *, timeout_s: float) -> None:
        await self._controller.execute(UnregisterBroker(broker), timeout_s=timeout_s)

    def _numbers(self, name: str, some: Sequence[int]) -> Sequence[int]:
        """All partitions of the topic if none are named; the controller refuses an unknown topic."""
        topic = self._metadata.image.topics.get(name)
        return some or range(1 if topic is None else len(topic.partitions))

    async def alter_log_dirs(
        self, targets: Mapping[int, Sequence[DirTarget]]
    ) -> dict[int, list[RequestError | None]]:
        """By broker: the outcomes in the order of its targets."""
        return await self._dirs.alter(targets)

    # ------------------------------------------------------------------ questions

    async def log_dirs(self, wanted: Wanted = None) -> dict[int, list[DescribedDir] | None]:
        """Of the online brokers; None for those that did not answer."""
        return await self._dirs.describe(sorted(self._metadata.image.brokers), wanted)

    async def moves(self, wanted: Wanted = None) -> list[OngoingMove]:
        """Partitions in motion, with the progress of each added replica."""
        image = self._metadata.image
        moving = [(tp, announced(state), bool(state.planned)) for tp, state in _moving(image, wanted)]
        asked: dict[int, dict[str, set[int]]] = {}
        for tp, state, _ in moving:
            for broker in (state.leader, *state.adding):
                if broker in image.brokers:
                    asked.setdefault(broker, {}).setdefault(tp.topic, set()).add(tp.partition)
        sizes = {
            broker: {} if answer is None else answer.by_partition()
            for broker, answer in (await self._sizes.ask(asked)).items()
        }
        return [
            OngoingMove(
                tp, state, tuple(_progress(tp, state, sizes)), waits, _obstacle(state, waits, image.brokers)
            )
            for tp, state, waits in moving
        ]

    async def loads(self, *, sizes: bool) -> list[BrokerLoad]:
        """Every broker of the cluster, online or not, by id."""
        image = self._metadata.image
        held, led = _counts(image)
        answers: Mapping[int, BrokerSizes | None] = {}
        if sizes:
            answers = await self._sizes.ask(dict.fromkeys(image.brokers))
        return [
            BrokerLoad(
                id_,
                image.brokers.get(id_),
                id_ in image.cordons,
                held.get(id_, 0),
                led.get(id_, 0),
                answers.get(id_),
                image.rack_of(id_),
            )
            for id_ in sorted({*image.members, *image.brokers})
        ]

    async def replica_sizes(self, wanted: Wanted = None) -> dict[int, BrokerSizes | None]:
        """Of the online brokers; None for those that did not answer."""
        return await self._sizes.ask(dict.fromkeys(self._metadata.image.brokers, wanted))


def _moving(
    image: ClusterImage, wanted: Mapping[str, Collection[int]] | None
) -> Iterator[tuple[TopicPartition, PartitionImage]]:
    for topic in image.topics.values():
        if wanted is not None and topic.name not in wanted:
            continue
        some = () if wanted is None else wanted[topic.name]
        for index, state in enumerate(topic.partitions):
            if (state.is_moving or state.planned) and (not some or index in some):
                yield TopicPartition(topic.name, index), state


def _obstacle(state: PartitionImage, waits: bool, online: Collection[int]) -> Obstacle:
    copying = [r for r in state.adding if r not in state.isr and r not in state.removing]
    if copying and state.leader == NO_BROKER:
        return Obstacle.NO_LEADER
    if any(r not in online for r in copying):
        return Obstacle.BROKER_OFFLINE
    return Obstacle.QUEUED if waits else Obstacle.NONE


def _progress(
    tp: TopicPartition, state: PartitionImage, sizes: Mapping[int, Mapping[TopicPartition, int]]
) -> Iterator[AddedReplica]:
    total = sizes.get(state.leader, {}).get(tp, UNKNOWN_BYTES)
    for broker in state.adding:
        # A broker that answered without this log has not created it yet.
        copied = sizes[broker].get(tp, 0) if sizes.get(broker) is not None else UNKNOWN_BYTES
        in_sync = broker in state.isr
        yield AddedReplica(
            broker, in_sync, total if in_sync else min(copied, total) if total >= 0 else copied, total
        )


def _counts(image: ClusterImage) -> tuple[dict[int, int], dict[int, int]]:
    """Replicas and leaderships by broker."""
    held: dict[int, int] = {}
    led: dict[int, int] = {}
    for topic in image.topics.values():
        for state in topic.partitions:
            for broker in state.replicas:
                held[broker] = held.get(broker, 0) + 1
            if state.leader != NO_BROKER:
                led[state.leader] = led.get(state.leader, 0) + 1
    return held, led
