"""Copies that are found to be damaged, and are copied anew from their leader. [S]

Bits rot. What was found by a read, the cleaner or a start is an error for whoever asks for it, and if others have all
of it, this copy is given up and made again from theirs. Looked at by the host now and then.

Theory of operation. A copy that counts must not get shorter: it could be elected, and what was acknowledged on the
strength of it would be gone. So, one after the other:

* D1: it is announced in the registration as one that this broker cannot serve, if others in sync are enough without
  it. The controller gives the partition another leader, and takes us out of the in-sync set. We do not follow
  meanwhile: the leader would wish us back.
* D2: once one image shows our announcement, another leader, and us neither in the in-sync set nor on any record of who
  may have what is committed, the log is cut before the damage, and followed from there. Nobody can add us meanwhile:
  who proposes it compares our registration (W3 in `controller.isr_writer`).
* D3: only when the leader has answered to where we are now is the announcement withdrawn. Until then it may believe
  what we said before the cut.

If others are not enough, everything stays as it is: better a damaged copy than none. So does it while nobody leads:
the election may wait for this copy, and there is none to make it anew from. A log that could not even be
opened is set aside and begun anew by the same rules. It must never cut what somebody may count on.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import structlog

from ottla_broker.controller.image import ClusterImage, PartitionImage
from ottla_broker.partition.partition import Partition
from ottla_core.ids import NO_BROKER

_log = structlog.get_logger("ottla.partitions")


def is_free(broker_id: int, image: ClusterImage, topic_id: UUID, index: int, state: PartitionImage) -> bool:
    """D2: whether this copy may be thrown away."""
    own = image.brokers.get(broker_id)
    return (
        own is not None
        and own.has_lost(topic_id, index)
        and state.leader not in (broker_id, NO_BROKER)
        and broker_id not in (*state.isr, *state.elr, *state.dropped)
    )


class Mending:
    __slots__ = ("_broker_id", "_cut", "_damaged", "_seen", "silent")

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._damaged: dict[Partition, None] = {}
        #: Where the log ended after the cut, of those whose leader has not answered yet (D3).
        self._cut: dict[Partition, int] = {}
        self._seen = 0
        #: Those that do not follow (D1).
        self.silent: list[Partition] = []

    def forget(self, partition: Partition) -> None:
        """It is not here any more."""
        self._damaged.pop(partition, None)
        self._cut.pop(partition, None)
        self.silent = [other for other in self.silent if other is not partition]

    def look(self, partitions: Iterable[Partition], found: int) -> list[Partition]:
        """Those that are to be announced. `found`: how often damage was met so far; logs are looked at if it is
        more than before."""
        if found != self._seen:
            self._seen = found
            for partition in partitions:
                if partition.log.damage is not None and partition not in self._damaged:
                    self._damaged[partition] = None
        for partition in list(self._damaged):
            if partition.log.damage is None or partition.log.broken is not None:
                del self._damaged[partition]  # Retention took it, or the whole folder has failed.
        for partition, end in list(self._cut.items()):
            if partition.log.end_offset != end or partition.log.broken is not None:
                del self._cut[partition]
                _log.info("damaged replica is being copied again", partition=str(partition.tp), after=end)
        self.silent = [partition for partition in self._damaged if self._can_be_spared(partition)]
        return [*self._cut, *self.silent]

    def ready(self, image: ClusterImage) -> list[Partition]:
        """Those that may be cut now (D2)."""
        found = []
        for partition in self._damaged:
            state = image.partition(partition.tp)
            if (
                state is not None
                and partition.following is not None
                and partition.leader_epoch == state.leader_epoch
                and is_free(self._broker_id, image, partition.topic_id, partition.tp.partition, state)
            ):
                found.append(partition)
        return found

    def cut(self, partition: Partition) -> None:
        """Drop what is damaged and all behind it. KafkaStorageError if the disk fails."""
        log = partition.log
        _log.error(
            "damaged replica truncated; copying it again from the leader",
            partition=str(partition.tp),
            damage=log.damage,
            end_offset=log.end_offset,
        )
        partition.begin_again()
        self.forget(partition)
        self._cut[partition] = log.end_offset

    def _can_be_spared(self, partition: Partition) -> bool:
        """D1."""
        image = partition.image
        if image.leader == NO_BROKER:
            return False
        others = sum(broker_id != self._broker_id for broker_id in image.isr)
        counts = self._broker_id in (*image.isr, *image.elr)
        return others >= (max(1, partition.log.config.min_insync_replicas) if counts else 1)
