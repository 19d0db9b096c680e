"""What must hold in a world, whatever happens: the invariants of docs/invariants.md, by their numbers.

Looked at on three occasions: when a broker takes over a new image (roles change then, and only then), when the store
is written, and every few milliseconds. At the end, after the faults, everything once more from the readers' side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ottla_broker.metadata.image import INTERNAL_TOPICS, BrokerImage, PartitionImage
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.controller import CONTROLLER
from ottla_broker.metadata.sections.partitions import PARTITIONS
from ottla_broker.metadata.sections.topics import TOPICS
from ottla_broker.partition.partition import Partition
from ottla_core.ids import NO_BROKER
from ottla_core.ports.store import Entry
from ottla_core.records.batch import BatchHeader, complete_batches
from sim.batches import Rec, is_abort_key, read_batches
from sim.copies import MOVES_MAX, Copies
from sim.group_ledger import GroupLedger
from sim.loop import Place
from sim.spots import Spot
from sim.txn_ledger import TxnLedger

if TYPE_CHECKING:
    from sim.world import Process, World

POLL_S = 0.04
#: Topics of this name come and go; all others are there for ever.
FICKLE = "fickle"
_BY_PRODUCER = re.compile(rb"p(\d+)\.(\d+):")


def spot_of(partition: Partition) -> Spot:
    return Spot(partition.tp.topic, partition.topic_id, partition.tp.partition)


class Decided:
    """Records of a compacted log that do not count, because their transaction is open or aborted."""

    def __init__(self) -> None:
        self.uncounted: set[int] = set()
        self._open: dict[int, list[int]] = {}

    def note(self, offset: int, record: Rec, header: BatchHeader) -> None:
        if header.is_control:
            ended = self._open.pop(header.producer_id, [])
            if not is_abort_key(record.key):
                self.uncounted.difference_update(ended)
        elif header.is_transactional:
            self.uncounted.add(offset)
            self._open.setdefault(header.producer_id, []).append(offset)


class Checkers:
    def __init__(self, world: World) -> None:
        self._world = world
        #: Who led an epoch, and in which life.
        self._led: dict[tuple[Spot, int], str] = {}
        #: Of each replica, while its log is open: the highest epoch and high watermark, and how far it was compared.
        self._seen: dict[Partition, tuple[int, int, int]] = {}
        self._spots: dict[Partition, Spot] = {}
        #: All that was ever below anybody's high watermark: batches by base offset, and where they end.
        self.committed: dict[Spot, dict[int, bytes]] = {}
        self.committed_end: dict[Spot, int] = {}
        #: Acknowledged with acks=all, and what readers were given: values by offset.
        self.acknowledged: dict[tuple[Spot, int], bytes] = {}
        self.read: dict[tuple[Spot, int], bytes] = {}
        self._acknowledged_end: dict[Spot, int] = {}
        #: Up to where somebody has wished records to be deleted.
        self.trimmed: dict[Spot, int] = {}
        self._unseen: dict[Spot, dict[int, None]] = {}
        #: Of compacted topics: all records that were ever committed, by offset.
        self._compacted: dict[Spot, dict[int, Rec]] = {}
        #: Which topic a value was meant for, by the broker that took it.
        self._meant_for: dict[bytes, UUID] = {}
        #: Where partitions must be in the end: the last move of each that was confirmed.
        self.wishes: dict[Spot, frozenset[int]] = {}
        self._copies = Copies()
        #: Of each group: the last offset that was acknowledged, and the last that was tried.
        self.offsets: dict[str, tuple[int, int]] = {}
        self.transactions = TxnLedger(world)
        self.groups = GroupLedger(world.clock.monotonic, self.fail)
        self._decided: dict[Spot, Decided] = {}

    def fail(self, text: str) -> None:
        from sim.world import Violation

        self._world.fail(Violation(text))

    # ------------------------------------------------------------------ occasions

    def on_image(self, process: Process) -> None:
        for partition in process.partitions():
            self._check_role(process, partition)

    def poll(self) -> None:
        replicas: dict[Process, dict[Spot, Partition]] = {}
        for process in self._world.processes:
            there = replicas[process] = {}
            for partition in process.partitions():
                there[self._spot(partition)] = partition
                self._check_role(process, partition)
                self._check_marks(process, partition)
        self._check_in_sync(replicas)

    def _spot(self, partition: Partition) -> Spot:
        """Asked for again and again."""
        spot = self._spots.get(partition)
        if spot is None:
            spot = self._spots[partition] = spot_of(partition)
        return spot

    def on_store_write(
        self, place: Place | None, key: str, old: Entry | None, new: Entry | None, controller: Entry | None
    ) -> None:
        """I6 and I7: who wrote, and whether it may."""
        if place is None:
            return
        writer = self._world.process_in(place)
        if key.startswith("brokers/") and old is not None and new is None:
            self._check_removal(place, writer, BROKERS.decode(old))
        if not key.startswith(("partitions/", "members/", "topics/")):
            return
        if new is None:
            self._copies.forget(key)
        own = None if writer is None else writer.incarnation
        elected = None if controller is None else CONTROLLER.decode(controller).incarnation
        if key.startswith("partitions/") and old is not None and new is not None:
            was, now = PARTITIONS.decode(old), PARTITIONS.decode(new)
            if now.leader_epoch < was.leader_epoch:
                self.fail(f"I6 {key}: epoch went back from {was.leader_epoch} to {now.leader_epoch}")
            if now.leader not in (was.leader, NO_BROKER) and now.leader_epoch == was.leader_epoch:
                self.fail(f"I6 {key}: leader {was.leader} became {now.leader} in epoch {now.leader_epoch}")
            self._check_replicas(key, was, now)
            self._check_copies(key, was, now)
            self.poll()
            same_epoch = was.leader == now.leader and was.leader_epoch == now.leader_epoch
            if same_epoch and writer is not None and writer.id == was.leader:
                return  # A leader's own in-sync set.
        if new is None and key.startswith("topics/") and key != TOPICS.key(FICKLE):
            self.fail(f"I5 {place} deleted {key}, which nobody asked for")
        if own is None or own != elected:
            self.fail(f"I7 {place} wrote {key} and is not controller")

    def _check_replicas(self, key: str, was: PartitionImage, now: PartitionImage) -> None:
        """I14: a replica is removed when nothing counts on it, and every replica that was added is in sync."""
        removed = set(was.replicas) - set(now.replicas)
        counted = removed & {was.leader, *was.isr, *was.elr}
        if counted:
            self.fail(f"I14 {key}: {sorted(counted)} were removed, and still counted")
        if removed and not set(now.replicas) & set(was.adding) <= set(was.isr):
            self.fail(f"I14 {key}: {sorted(removed)} were removed before the added replicas were in sync")

    def _check_copies(self, key: str, was: PartitionImage, now: PartitionImage) -> None:
        """I24: no move begins to copy to a broker that copies as many as it may."""
        for broker, count in self._copies.note(key, was, now).items():
            if count > MOVES_MAX:
                self.fail(f"I24 {key}: broker {broker} copies {count} partitions at once")

    def on_move(self, spot: Spot, before: PartitionImage, target: tuple[int, ...] | None) -> None:
        """I14: a confirmed move, or its cancellation, is under way or complete."""
        state = self._world.states().get(spot)
        if state is None:
            return
        wanted = frozenset(before.original if target is None else target)
        if target is None and not (state.is_moving or state.planned):
            wanted = frozenset(state.replicas)  # There was nothing to cancel, or it was complete already.
        if wanted != frozenset(state.wanted):
            self.fail(f"I14 {spot}: was to be on {sorted(wanted)}, is on its way to {state.wanted}")
        self.wishes[spot] = wanted

    def _check_removal(self, place: Place, writer: Process | None, broker: BrokerImage) -> None:
        """I12: nobody is removed by others while it lives."""
        machine = self._world.machines[broker.id].process
        if machine is not None and machine is not writer and machine.incarnation == broker.incarnation:
            self.fail(f"I12 {place} removed broker {broker.id}, whose process {machine.place} lives")

    # ------------------------------------------------------------------ replicas

    def _check_role(self, process: Process, partition: Partition) -> None:
        """I1, I2."""
        spot, epoch, name = self._spot(partition), partition.image.leader_epoch, process.place.name
        if partition.is_leader:
            first = self._led.setdefault((spot, epoch), name)
            if first != name:
                self.fail(f"I1 {spot}: epoch {epoch} is led by {name}, and was by {first}")
        most, mark, compared = self._seen.get(partition, (0, 0, 0))
        if epoch < most:
            self.fail(f"I2 {spot} on {name}: epoch went back from {most} to {epoch}")
        if partition.high_watermark < mark:
            self.fail(
                f"I2 {spot} on {name}: high watermark went back from {mark} to {partition.high_watermark}"
            )
        self._seen[partition] = epoch, partition.high_watermark, compared
        start = partition.log.start_offset
        if start > self.trimmed.get(spot, 0):
            self.fail(f"I13 {spot} on {name}: begins at {start}, nobody deleted that much")

    def _check_marks(self, process: Process, partition: Partition) -> None:
        """I3: what is below a high watermark is the same everywhere, for ever."""
        spot, name = self._spot(partition), process.place.name
        epoch, mark, compared = self._seen[partition]
        if self._world.shape.is_compacted and spot.topic in INTERNAL_TOPICS:
            self._check_compacted(process, partition)
            return
        batches = self.committed.setdefault(spot, {})
        end = self.committed_end.setdefault(spot, 0)
        compared = max(compared, partition.log.start_offset)
        unseen = self._unseen.setdefault(spot, {})
        if compared > end:
            # Committed and deleted before anybody looked: of that, who is first with a batch is believed.
            unseen.update(dict.fromkeys(range(end, compared)))
            end = compared
        while compared < mark:
            extent = partition.log.read(compared, 1 << 20, limit_offset=mark)
            if extent is None:
                self.fail(f"I3 {spot} on {name}: nothing at {compared}, below its high watermark {mark}")
                return
            data = extent.file.read(extent.position, extent.size)
            for position, header in complete_batches(data):
                base, batch = header.base_offset, data[position : position + header.size]
                is_new = base >= end or base in unseen
                known = batches.setdefault(base, batch) if is_new else batches.get(base)
                if known != batch or base > end:
                    self.fail(f"I3 {spot} on {name}: the batch at {base} is another than was committed")
                    return
                compared = base + header.last_offset_delta + 1
                end = max(end, compared)
        self.committed_end[spot] = end
        self._seen[partition] = epoch, mark, compared

    def _check_compacted(self, process: Process, partition: Partition) -> None:
        """I3 where records go: those that are there are the same everywhere, and the newest of each key is there."""
        spot, name = self._spot(partition), process.place.name
        epoch, mark, compared = self._seen[partition]
        if compared == mark and self._world.chance_of_rereading():
            compared = 0  # The cleaner may have been at work since.
        known = self._compacted.setdefault(spot, {})
        end, found = self.committed_end.get(spot, 0), dict[int, Rec]()
        decided = self._decided.setdefault(spot, Decided())
        for offset, record, header in self._records(partition, compared, mark):
            if offset >= end:
                decided.note(offset, record, header)
            if header.is_control:
                continue
            found[offset] = record
            if (known.setdefault(offset, record) if offset >= end else known.get(offset)) != record:
                self.fail(f"I3 {spot} on {name}: the record at {offset} is another than was committed")
                return
        # Above this replica's mark there may be a newer one of the same key, by which a leader has cleaned.
        newest = {record.key: at for at, record in sorted(known.items()) if at not in decided.uncounted}
        for offset in newest.values():
            is_due = compared <= offset < mark and known[offset].value is not None
            if is_due and offset not in found:
                self.fail(f"I3 {spot} on {name}: the newest record of its key is not at {offset}")
        self.committed_end[spot] = max(end, mark)
        self._seen[partition] = epoch, mark, mark

    def _records(
        self, partition: Partition, offset: int, limit: int
    ) -> Iterator[tuple[int, Rec, BatchHeader]]:
        log = partition.log
        while offset < limit and (extent := log.read(offset, 1 << 20, limit_offset=limit)) is not None:
            data = extent.file.read(extent.position, extent.size)
            for position, header in complete_batches(data):
                batch = data[position : position + header.size]
                yield from (
                    (at, record, header) for at, record in read_batches(batch) if offset <= at < limit
                )
            offset = header.next_offset

    def _check_in_sync(self, replicas: dict[Process, dict[Spot, Partition]]) -> None:
        """I4: who is in sync by the store, and is not known to be torn, has all that was committed."""
        world = self._world
        serving = {p.id: p for p in world.serving if world.is_admitted(p)}
        for spot, state in world.states().items():
            end = self.committed_end.get(spot, 0)
            for broker_id in dict.fromkeys((*state.isr, *state.elr)):
                process = serving.get(broker_id)
                if process is None or broker_id in state.torn:
                    continue
                partition = replicas[process].get(spot)
                if partition is None:
                    continue
                log = partition.log
                has = log.recovery_point if log.config.flush_before_ack else log.end_offset
                if has < end:
                    self.fail(f"I4 {spot}: {process.place} is in sync, has {has}, committed are {end}")

    # ------------------------------------------------------------------ clients

    def on_sent(self, spot: Spot, values: list[bytes]) -> None:
        self._meant_for.update(dict.fromkeys(values, spot.topic_id))

    def on_deleting(self, spot: Spot, offset: int) -> None:
        self.trimmed[spot] = max(offset, self.trimmed.get(spot, 0))

    def on_deleted(self, leading: Partition, low_watermark: int) -> None:
        """I5: no in-sync replica that follows this leader still has records below the low watermark."""
        if low_watermark > leading.log.start_offset:
            self.fail(
                f"I5 {leading.tp}: deleted to {low_watermark}, the leader to {leading.log.start_offset}"
            )
        for process in self._world.processes:
            for replica in process.partitions():
                following = replica.following
                if (
                    replica.key == leading.key
                    and process.machine.id in leading.image.isr
                    and following is not None
                    and following.machine.leader_epoch == leading.leader_epoch
                    and following.machine.is_heard
                    and replica.log.start_offset < low_watermark
                ):
                    self.fail(
                        f"I5 {leading.tp}: deleted to {low_watermark}, but {process.place} still begins at "
                        f"{replica.log.start_offset}"
                    )

    def on_acknowledged(self, spot: Spot, offset: int, value: bytes) -> None:
        known = self.acknowledged.setdefault((spot, offset), value)
        self._acknowledged_end[spot] = max(self._acknowledged_end.get(spot, 0), offset + 1)
        if known != value:
            self.fail(f"I5 {spot}: {known!r} and {value!r} were both acknowledged at {offset}")

    def on_acknowledging(self, partition: Any, last_offset: int) -> None:
        if partition.high_watermark <= last_offset:
            self.fail(
                f"I5 {partition.tp}: {last_offset} is acknowledged, the high watermark is {partition.high_watermark}"
            )

    def on_read(self, spot: Spot, offset: int, value: bytes) -> None:
        known = self.read.setdefault((spot, offset), value)
        if known != value:
            self.fail(f"I8 {spot}: readers saw {known!r} and then {value!r} at {offset}")
        if self._meant_for.get(value) != spot.topic_id:
            self.fail(f"I8 {spot}: {value!r} at {offset} was never written to this topic")

    def on_latest(self, process: Process, partition: Partition, told: int) -> None:
        """I8: the end that a leader tells is not below what was acknowledged, unless it was replaced already."""
        spot = spot_of(partition)
        state = self._world.states().get(spot)
        leads = state is not None and (state.leader, state.leader_epoch) == (
            process.id,
            partition.leader_epoch,
        )
        if leads and told < (end := self._acknowledged_end.get(spot, 0)):
            self.fail(f"I8 {spot} on {process.place}: the end is told as {told}, acknowledged are {end}")

    def on_offset_read(self, group: str, acknowledged: int, found: int) -> None:
        """I11: what a group reads back is the last offset that was acknowledged before, or one tried later."""
        tried = self.offsets.get(group, (-1, -1))[1]
        if not acknowledged <= found <= tried:
            self.fail(f"I11 {group}: {found} is committed; acknowledged was {acknowledged}, tried {tried}")

    def check_end(self, logs: dict[Spot, dict[int, bytes]]) -> None:
        """After the faults: I5 and I8 against what a reader finds now, I14 against the last wishes. What was deleted is
        gone with its topic."""
        for spot, state in self._world.states().items():
            if set(state.replicas) != self.wishes.get(spot, set(state.replicas)):
                self.fail(f"I14 {spot}: is on {state.replicas}, was moved to {sorted(self.wishes[spot])}")
        for spot, log in logs.items():
            if len(set(log.values())) != len(log):
                self.fail(f"I5 {spot}: a record is there twice")
            self._check_order(spot, [log[offset] for offset in sorted(log)])
        existing = {spot.topic_id for spot in logs}
        for what, found in (("I5 acknowledged", self.acknowledged), ("I8 read once", self.read)):
            for (spot, offset), value in found.items():
                there = logs.get(spot, {}).get(offset)
                if there is None and offset < self.trimmed.get(spot, 0):
                    continue  # Deleted, as somebody wished.
                if there != value and spot.topic_id in existing:
                    self.fail(f"{what}: {value!r} at {spot} {offset}, where now is {there!r}")

    def _check_order(self, spot: Spot, values: list[bytes]) -> None:
        """I5: an idempotent producer's records are there once, in its order, without a gap."""
        last: dict[bytes, int] = {}
        for value in values:
            if (named := _BY_PRODUCER.match(value)) is not None:
                producer, number = named[1], int(named[2])
                if producer not in last and self.trimmed.get(spot):
                    last[producer] = number - 1  # What came before it is deleted.
                if number != last.get(producer, -1) + 1:
                    self.fail(f"I5 {spot}: {value!r} of a producer follows its number {last.get(producer)}")
                last[producer] = number
