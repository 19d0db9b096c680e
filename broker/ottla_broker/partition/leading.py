"""A partition while this broker leads it and others follow: executes the leader machine's decisions. [S]

The partition creates it when such an epoch begins, and ends it with the epoch. A partition with one replica needs
none of this: there the end of the log is the high watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from ottla_broker.metadata.image import PartitionImage
from ottla_broker.replication.effects import OF_PARTITION, AdvanceHighWatermark, LeaderEffect, ProposeIsr
from ottla_broker.replication.leader import Leader, OwnLog, Position
from ottla_broker.replication.lineage import leading as leading_lineage
from ottla_broker.replication.outlet import Outlet
from ottla_broker.replication.selection import closest
from ottla_broker.replication.throttle import Throttles
from ottla_core.errors import NotLeaderOrFollower, invariant
from ottla_core.ports.clock import Clock

if TYPE_CHECKING:
    from ottla_broker.partition.partition import Partition

_log = structlog.get_logger("ottla.replication")

#: Without a confirmed lease, acks=1 continues only while every electable replica reported within this time (rule 14).
HEARD_WITHIN_S = 2.0


def _nothing(partition: Partition, wanted: ProposeIsr, expected: PartitionImage) -> None:
    """A host without a metadata store: proposals stay unanswered, which is safe."""


@dataclass
class Replication:
    """Replication state that all partitions of a broker share."""

    broker_id: int = -1
    lag_max_s: float = 30.0
    #: Incarnations of brokers that may be in an ISR: admitted, and not stopping (rule 8).
    admitted: Mapping[int, UUID] = field(default_factory=dict)
    #: Racks of those brokers, as far as they have one; empty if consumers always read from leaders.
    racks: Mapping[int, str] = field(default_factory=dict)
    #: Pass a proposal to the metadata store; its outcome comes back through `Leading.on_outcome`.
    propose: Callable[[Partition, ProposeIsr, PartitionImage], None] = _nothing
    #: Whether this broker's lease is confirmed (rule 14).
    is_confirmed: Callable[[], bool] = lambda: True
    #: Rates of replicas that catch up, for all streams of this broker.
    throttles: Throttles = field(default_factory=Throttles)
    #: A leadership began: handle the requests of followers that knew the epoch first.
    on_led: Callable[[bytes], None] = lambda key: None


class Leading:
    __slots__ = ("_clock", "_outlets", "_partition", "_shared", "machine")

    def __init__(
        self, partition: Partition, image: PartitionImage, shared: Replication, clock: Clock
    ) -> None:
        self._partition = partition
        self._shared = shared
        self._clock = clock
        #: Streams that carry this partition, by follower.
        self._outlets: dict[int, Outlet] = {}
        log = partition.log
        self.machine = Leader(
            shared.broker_id,
            image,
            now=clock.monotonic(),
            epoch_start=partition.epoch_start,
            position=partition.position,
            high_watermark=partition.high_watermark,
            min_insync=log.config.min_insync_replicas,
            lag_max_s=shared.lag_max_s,
            admitted=shared.admitted,
        )

    def begin(self) -> None:
        self._do(self.machine.begun())
        self._shared.on_led(self._partition.key)

    def end(self) -> None:
        """The epoch is over: remove this partition from all streams."""
        outlets, self._outlets = self._outlets, {}
        for outlet in outlets.values():
            outlet.end()

    # ------------------------------------------------------------------ events

    def appended(self, size: int = 0) -> None:
        """`size` bytes were written, or more was flushed: send them, and advance the high watermark if possible."""
        effects = self.machine.appended(self._partition.position)
        if effects:
            self._do(effects)
        self.tell_followers(size)

    def tell_followers(self, size: int = 0) -> None:
        """There is something to send: `size` bytes of batches, or where the log begins now."""
        for outlet in self._outlets.values():
            outlet.mark(size)

    def hear(self, said: Position, outlet: Outlet) -> list[LeaderEffect]:
        """Handle a follower's position; return the effects that its stream has to execute."""
        partition, broker_id = self._partition, said.broker_id
        if said.wants:
            self._attach(broker_id, outlet)
        log, machine = partition.log, self.machine
        lineage = leading_lineage(log.epochs.entries, machine.image.leader_epoch, machine.epoch_start)
        own = OwnLog(log.start_offset, log.end_offset, lineage)
        return self._do(machine.on_position(said, own, self._clock.monotonic()))

    def hear_start(self, said: Position) -> None:
        """Handle a follower's log start, which may complete a DeleteRecords."""
        self.machine.on_log_start(said)
        self._do([])

    def _attach(self, broker_id: int, outlet: Outlet) -> None:
        former = self._outlets.get(broker_id)
        if former is not outlet:
            self._outlets[broker_id] = outlet
            if former is not None:
                former.end()  # The follower reconnected before its old stream was found dead.

    def detach(self, broker_id: int, outlet: Outlet) -> None:
        """A stream has ended, or its follower no longer follows this partition."""
        if self._outlets.get(broker_id) is outlet:
            del self._outlets[broker_id]
            self._do(
                self.machine.on_stream_lost(
                    broker_id, self._partition.log.end_offset, self._clock.monotonic()
                )
            )

    def on_image(self, image: PartitionImage) -> None:
        for broker_id in [b for b in self._outlets if b not in image.replicas]:
            self._outlets.pop(broker_id).reject()
        self._do(self.machine.on_image(image, self._clock.monotonic()))

    def on_outcome(self, proposal: ProposeIsr, image: PartitionImage | None) -> None:
        self._do(self.machine.on_outcome(proposal, image, self._clock.monotonic()))

    def on_members(self) -> None:
        self._do(self.machine.on_members(self._shared.admitted, self._clock.monotonic()))

    def on_config(self) -> None:
        self.tell_followers()  # Other replicas may be throttled now.
        self._do(self.machine.on_min_insync(self._partition.log.config.min_insync_replicas))

    def tick(self) -> None:
        self._do(self.machine.tick(self._partition.log.end_offset, self._clock.monotonic()))

    # ------------------------------------------------------------------ being asked

    def is_in_sync(self, broker_id: int) -> bool:
        machine = self.machine
        return broker_id in machine.image.isr or (
            machine.proposed is not None and broker_id in machine.proposed.isr
        )

    @property
    def throttles_sending(self) -> bool:
        partition = self._partition
        throttled = partition.log.config.leader_replication_throttled_replicas
        return throttled.has(partition.tp.partition, self._shared.broker_id)

    def throttles_copying(self, broker_id: int) -> bool:
        partition = self._partition
        throttled = partition.log.config.follower_replication_throttled_replicas
        return throttled.has(partition.tp.partition, broker_id)

    def closest_replica(self, rack: str, offset: int) -> int:
        """The follower that a consumer in `rack` should read from; NO_BROKER to stay with the leader."""
        machine = self.machine
        return closest(
            rack, offset, machine.broker_id, machine.image.isr, machine.positions, self._shared.racks
        )

    def lags(self, now: float) -> Mapping[int, tuple[int, float]]:
        """Per follower: records that it lacks, and seconds since it had all."""
        return self.machine.lags(self._partition.log.end_offset, now)

    def check_work(self) -> None:
        """Rule 14: a reply that no other replica confirms needs a lease, or recent reports of all electable
        replicas."""
        if self._shared.is_confirmed():
            return
        since, image = self._clock.monotonic() - HEARD_WITHIN_S, self.machine.image
        for broker_id in (*image.isr, *image.elr):
            if broker_id == self._shared.broker_id:
                continue
            outlet = self._outlets.get(broker_id)
            if outlet is None or outlet.heard_at < since:
                raise NotLeaderOrFollower(
                    "This broker cannot tell whether it still leads the partition: its lease is not confirmed, "
                    f"and broker {broker_id} sent nothing recently."
                )

    # ------------------------------------------------------------------ carrying out

    def _do(self, effects: list[LeaderEffect]) -> list[LeaderEffect]:
        """Execute the effects of the partition, which come first; return those of the reporting follower's stream."""
        partition, machine = self._partition, self.machine
        if partition.image is not machine.image:
            partition.confirm(machine.image)
            self.tell_followers()  # One that is in sync now is no longer throttled.
        if partition.is_deleting:
            partition.deleted_to(machine.low_watermark(partition.log.start_offset))
        for at, effect in enumerate(effects):
            if isinstance(effect, AdvanceHighWatermark):
                partition.commit_to(effect.offset)
                for outlet in self._outlets.values():
                    outlet.mark_watermark()
            elif isinstance(effect, ProposeIsr):
                self._propose(effect)
            else:
                rest = effects[at:]
                invariant(not any(isinstance(each, OF_PARTITION) for each in rest), "effects in order")
                return rest
        return []

    def _propose(self, wanted: ProposeIsr) -> None:
        partition, image = self._partition, self.machine.image
        _log.info(
            "proposing an in-sync set",
            partition=str(partition.tp),
            epoch=image.leader_epoch,
            isr=image.isr,
            proposed=wanted.isr,
            elr=wanted.elr,
        )
        self._shared.propose(partition, wanted, image)
        self.tell_followers()  # The high watermark waits for a proposed replica, so it is no longer throttled.
