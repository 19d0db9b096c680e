"""What must hold in a world, whatever happens: the invariants of docs/invariants.md, by their numbers.

Looked at on three occasions: when a broker takes over a new image (roles change then, and only then), when the store
is written, and every few milliseconds. At the end, after the faults, everything once more from the readers' side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla_broker.controller import keys
from ottla_broker.partition.partition import Partition
from ottla_core.ids import NO_BROKER, TopicPartition
from ottla_core.ports.store import Entry
from ottla_core.records.batch import complete_batches
from sim.loop import Place

if TYPE_CHECKING:
    from sim.world import Process, World

POLL_S = 0.04


class Checkers:
    def __init__(self, world: World) -> None:
        self._world = world
        #: Who led an epoch, and in which life.
        self._led: dict[tuple[TopicPartition, int], str] = {}
        #: Of each life of each replica: the highest epoch and high watermark seen, and how far it was compared.
        self._seen: dict[tuple[str, TopicPartition], tuple[int, int, int]] = {}
        #: All that was ever below anybody's high watermark: batches by base offset, and where they end.
        self.committed: dict[TopicPartition, dict[int, bytes]] = {}
        self.committed_end: dict[TopicPartition, int] = {}
        #: Acknowledged with acks=all, and what readers were given: values by offset.
        self.acknowledged: dict[tuple[TopicPartition, int], bytes] = {}
        self.read: dict[tuple[TopicPartition, int], bytes] = {}
        self.looks = 0

    def fail(self, text: str) -> None:
        from sim.world import Violation

        self._world.fail(Violation(text))

    # ------------------------------------------------------------------ occasions

    def on_image(self, process: Process) -> None:
        for partition in process.partitions():
            self._check_role(process, partition)

    def poll(self) -> None:
        self.looks += 1
        for process in self._world.processes:
            for partition in process.partitions():
                self._check_role(process, partition)
                self._check_marks(process, partition)
        self._check_in_sync()

    def on_store_write(
        self, place: Place | None, key: str, old: Entry | None, new: Entry | None, controller: Entry | None
    ) -> None:
        """I6 and I7: who wrote, and whether it may."""
        if place is None or not key.startswith(("partitions/", "members/", "topics/")):
            return
        writer = self._world.process_in(place)
        own = None if writer is None else writer.incarnation
        elected = None if controller is None else keys.decode_controller(controller)[1]
        if key.startswith("partitions/") and old is not None and new is not None:
            was, now = keys.decode_partition(old), keys.decode_partition(new)
            if now.leader_epoch < was.leader_epoch:
                self.fail(f"I6 {key}: epoch went back from {was.leader_epoch} to {now.leader_epoch}")
            if now.leader not in (was.leader, NO_BROKER) and now.leader_epoch == was.leader_epoch:
                self.fail(f"I6 {key}: leader {was.leader} became {now.leader} in epoch {now.leader_epoch}")
            self.poll()
            same_epoch = was.leader == now.leader and was.leader_epoch == now.leader_epoch
            if same_epoch and writer is not None and writer.id == was.leader:
                return  # A leader's own in-sync set.
        if own is None or own != elected:
            self.fail(f"I7 {place} wrote {key} and is not controller")

    # ------------------------------------------------------------------ replicas

    def _check_role(self, process: Process, partition: Partition) -> None:
        """I1, I2."""
        tp, epoch, name = partition.tp, partition.image.leader_epoch, process.place.name
        if partition.is_leader:
            first = self._led.setdefault((tp, epoch), name)
            if first != name:
                self.fail(f"I1 {tp}: epoch {epoch} is led by {name}, and was by {first}")
        most, mark, compared = self._seen.get((name, tp), (0, 0, 0))
        if epoch < most:
            self.fail(f"I2 {tp} on {name}: epoch went back from {most} to {epoch}")
        if partition.high_watermark < mark:
            self.fail(
                f"I2 {tp} on {name}: high watermark went back from {mark} to {partition.high_watermark}"
            )
        self._seen[name, tp] = epoch, partition.high_watermark, compared

    def _check_marks(self, process: Process, partition: Partition) -> None:
        """I3: what is below a high watermark is the same everywhere, for ever."""
        tp, name = partition.tp, process.place.name
        epoch, mark, compared = self._seen[name, tp]
        batches = self.committed.setdefault(tp, {})
        end = self.committed_end.setdefault(tp, 0)
        while compared < mark:
            extent = partition.log.read(compared, 1 << 20, limit_offset=mark)
            if extent is None:
                self.fail(f"I3 {tp} on {name}: nothing at {compared}, below its high watermark {mark}")
                return
            data = extent.file.read(extent.position, extent.size)
            for position, header in complete_batches(data):
                base, batch = header.base_offset, data[position : position + header.size]
                known = batches.setdefault(base, batch) if base >= end else batches.get(base)
                if known != batch or base > end:
                    self.fail(f"I3 {tp} on {name}: the batch at {base} is another than was committed")
                    return
                compared = base + header.last_offset_delta + 1
                end = max(end, compared)
        self.committed_end[tp] = end
        self._seen[name, tp] = epoch, mark, compared

    def _check_in_sync(self) -> None:
        """I4: who is in sync by the store, and is not known to be torn, has all that was committed."""
        world = self._world
        for tp, state in world.states().items():
            end = self.committed_end.get(tp, 0)
            for broker_id in dict.fromkeys((*state.isr, *state.elr)):
                process = world.machines[broker_id].process
                member = world.etcd.entries.get(keys.member(broker_id))
                if process is None or member is None or not process.is_serving:
                    continue
                if keys.decode_member(member).incarnation != process.incarnation or broker_id in state.torn:
                    continue
                for partition in process.partitions():
                    if partition.tp == tp and partition.log.end_offset < end:
                        ends = partition.log.end_offset
                        self.fail(f"I4 {tp}: {process.place} is in sync, ends at {ends}, committed are {end}")

    # ------------------------------------------------------------------ clients

    def on_acknowledged(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        known = self.acknowledged.setdefault((tp, offset), value)
        if known != value:
            self.fail(f"I5 {tp}: {known!r} and {value!r} were both acknowledged at {offset}")

    def on_acknowledging(self, partition: Any, last_offset: int) -> None:
        if partition.high_watermark <= last_offset:
            self.fail(
                f"I5 {partition.tp}: {last_offset} is acknowledged, the high watermark is {partition.high_watermark}"
            )

    def on_read(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        known = self.read.setdefault((tp, offset), value)
        if known != value:
            self.fail(f"I8 {tp}: readers saw {known!r} and then {value!r} at {offset}")

    def check_end(self, logs: dict[TopicPartition, dict[int, bytes]]) -> None:
        """After the faults: I5 and I8 against what a reader finds now."""
        for tp, log in logs.items():
            if len(set(log.values())) != len(log):
                self.fail(f"I5 {tp}: a record is there twice")
        for what, found in (("I5 acknowledged", self.acknowledged), ("I8 read once", self.read)):
            for (tp, offset), value in found.items():
                there = logs.get(tp, {}).get(offset)
                if there != value:
                    self.fail(f"{what}: {value!r} at {tp} {offset}, where now is {there!r}")
