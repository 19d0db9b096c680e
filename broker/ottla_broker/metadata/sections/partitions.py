"""`partitions/<topic id>/<n>`: replicas, leader and in-sync replicas of each partition. [P]

    {"v":1,"replicas":[1],"leader":1,"epoch":4,"isr":[1]}

What changes together is one value (design rule 5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias
from uuid import UUID

from ottla_broker.metadata.section import Family
from ottla_broker.metadata.values import (
    Extra,
    decode_fields,
    decoder,
    encode_fields,
    number_from_text,
    take_int,
    take_ints,
    uuid_from_text,
    uuid_text,
)
from ottla_core.ids import NO_BROKER
from ottla_core.ports.store import Entry

#: More elections of one partition than any cluster sees between two backups; an epoch has 31 bits.
EPOCH_LEAP = 1_000_000


#: Topic id and number.
PartitionId: TypeAlias = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class PartitionImage:
    replicas: tuple[int, ...]
    leader: int = NO_BROKER
    leader_epoch: int = 0
    isr: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    #: Mod revision of `partitions/<topic id>/<n>`: what the next writer compares. 0: the key is missing.
    revision: int = 0
    extra: Extra = ()
    #: Of ISR and ELR, those that came back with a torn log, while no whole replica is online (rule 2).
    torn: tuple[int, ...] = ()
    #: Replicas that the controller removed from ISR or ELR, until a leader has written after that: used only when all
    #: of ISR and ELR are torn (decision 9).
    dropped: tuple[int, ...] = ()
    #: The target of a move that waits for its turn (`controller/move_queue.py`).
    planned: tuple[int, ...] = ()

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """Where the partition will be when its move is complete."""
        return tuple(r for r in self.replicas if r not in self.removing) if self.removing else self.replicas

    @property
    def wanted(self) -> tuple[int, ...]:
        """Where the partition will be when its move and the one that waits behind it are complete."""
        return self.planned or self.target

    @property
    def copying(self) -> tuple[int, ...]:
        """Brokers that copy the log now, because they were added. Without a leader there is nothing to copy from."""
        if not self.adding or self.leader == NO_BROKER:
            return ()
        return tuple(r for r in self.adding if r not in self.removing and r not in self.isr)

    @property
    def original(self) -> tuple[int, ...]:
        """Where the partition was before its move, and goes back to when that is cancelled."""
        return tuple(r for r in self.replicas if r not in self.adding) if self.adding else self.replicas

    @property
    def has_caught_up(self) -> bool:
        """Whether every added replica of the target is in sync, so that others may be removed."""
        return all(r in self.isr for r in self.adding if r not in self.removing)

    @property
    def is_under_replicated(self) -> bool:
        """As in Kafka: added replicas that still copy the log are not missing."""
        return len(self.isr) < min(len(self.original), len(self.target))

    def needed_in_sync(self, min_insync: int) -> int:
        """Effective `min.insync.replicas`: a broker's default may ask for more than there are replicas, and
        then nothing could ever be written. As in Kafka, the number of replicas is the maximum. During a move it is
        the smaller number: one replica that becomes three must be writable while the other two copy the log."""
        return min(min_insync, len(self.original), len(self.target))


def partition_key(topic_id: UUID, index: int) -> str:
    return PARTITIONS.key((topic_id, index))


def _id_text(id_: PartitionId) -> str:
    topic_id, index = id_
    return f"{uuid_text(topic_id)}/{index}"


def _id_from_text(text: str) -> PartitionId:
    topic_id, _, index = text.partition("/")
    return uuid_from_text(topic_id), number_from_text(index)


def _encode(image: PartitionImage) -> bytes:
    fields: dict[str, object] = {
        "replicas": image.replicas,
        "leader": image.leader,
        "epoch": image.leader_epoch,
        "isr": image.isr,
    }
    if image.elr:
        fields["elr"] = image.elr
    if image.adding:
        fields["adding"] = image.adding
    if image.removing:
        fields["removing"] = image.removing
    if image.torn:
        fields["torn"] = image.torn
    if image.dropped:
        fields["dropped"] = image.dropped
    if image.planned:
        fields["planned"] = image.planned
    return encode_fields(fields, image.extra)


@decoder
def _decode(entry: Entry) -> PartitionImage:
    replicas, leader, epoch, isr, elr, adding, removing, torn, dropped, planned, extra = _states(entry.value)
    return PartitionImage(
        replicas, leader, epoch, isr, elr, adding, removing, entry.mod_revision, extra, torn, dropped, planned
    )


_Ints: TypeAlias = tuple[int, ...]


@lru_cache(maxsize=8192)  # Thousands of partitions share a few states: decoded once, and kept once.
def _states(value: bytes) -> tuple[_Ints, int, int, _Ints, _Ints, _Ints, _Ints, _Ints, _Ints, _Ints, Extra]:
    fields = decode_fields(value)
    return (
        take_ints(fields, "replicas"),
        take_int(fields, "leader"),
        take_int(fields, "epoch"),
        take_ints(fields, "isr"),
        take_ints(fields, "elr"),
        take_ints(fields, "adding"),
        take_ints(fields, "removing"),
        take_ints(fields, "torn"),
        take_ints(fields, "dropped"),
        take_ints(fields, "planned"),
        tuple(fields.items()),
    )


def _after_loss(image: PartitionImage) -> PartitionImage:
    """R1 and R2 of `controller/recovery.py`: all replicas are in sync and torn, at an epoch above all disks'."""
    return replace(
        image,
        leader=NO_BROKER,
        leader_epoch=image.leader_epoch + EPOCH_LEAP,
        isr=image.replicas,
        elr=(),
        torn=image.replicas,
        dropped=(),
    )


PARTITIONS: Family[PartitionId, PartitionImage] = Family(
    "partitions/", _id_text, _id_from_text, _encode, _decode, _after_loss
)
