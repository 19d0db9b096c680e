"""Repair of damaged replicas: truncate before the damage, and copy again from the leader. [S]

A read, the cleaner, the scrubber or a start can find damage. Requests for the damaged range fail. If other replicas
have all of it, this replica is given up and copied again from them. The host calls this periodically.

Theory of operation. A replica in ISR or ELR must not get shorter: it could be elected, and records that it
acknowledged would be lost. So, in this order:

* D1: the broker announces the partition as offline in its registration, if enough other replicas are in sync without
  it. The controller elects another leader, and removes this broker from the ISR. This replica does not follow
  meanwhile: the leader would add it to the ISR again.
* D2: once one image shows the announcement, another leader, and this broker neither in the ISR nor in the ELR nor
  among the dropped, the log is truncated before the damage and follows from there. No leader can add this broker
  meanwhile: its proposal compares this broker's registration (W3 in `controller.isr_writer`).
* D3: the announcement is withdrawn only after the leader has answered the new position. Until then the leader may use
  a position from before the truncation.

If too few others are in sync, everything stays as it is: a damaged replica is better than none. The same while there
is no leader: the election may wait for this replica, and there is no source to copy from. A log that cannot be
opened is set aside and recreated by the same rules. Mending must never truncate a replica in ISR or ELR.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import structlog

from ottla_broker.metadata.image import ClusterImage, PartitionImage
from ottla_broker.partition.partition import Partition
from ottla_core.ids import NO_BROKER

_log = structlog.get_logger("ottla.partitions")


def is_free(broker_id: int, image: ClusterImage, topic_id: UUID, index: int, state: PartitionImage) -> bool:
    """D2: whether this replica may be discarded."""
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
        #: End offsets after the truncation, of partitions whose leader has not answered yet (D3).
        self._cut: dict[Partition, int] = {}
        self._seen = 0
        #: Partitions that do not follow meanwhile (D1).
        self.silent: list[Partition] = []

    def forget(self, partition: Partition) -> None:
        """The partition was removed from this broker."""
        self._damaged.pop(partition, None)
        self._cut.pop(partition, None)
        self.silent = [other for other in self.silent if other is not partition]

    def look(self, partitions: Iterable[Partition], found: int) -> list[Partition]:
        """Return the partitions to announce. `found` counts damage so far; logs are checked if it is
        more than before."""
        if found != self._seen:
            self._seen = found
            for partition in partitions:
                if partition.log.damage is not None and partition not in self._damaged:
                    self._damaged[partition] = None
        for partition in list(self._damaged):
            if partition.log.damage is None or partition.log.broken is not None:
                del self._damaged[
                    partition
                ]  # Retention deleted the damage, or the whole directory has failed.
        for partition, end in list(self._cut.items()):
            if partition.log.end_offset != end or partition.log.broken is not None:
                del self._cut[partition]
                _log.info("damaged replica is being copied again", partition=str(partition.tp), after=end)
        self.silent = [partition for partition in self._damaged if self._can_be_spared(partition)]
        return [*self._cut, *self.silent]

    def ready(self, image: ClusterImage) -> list[Partition]:
        """Return the partitions that may be truncated now (D2)."""
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
        """Truncate the log before the damage. KafkaStorageError if the disk fails."""
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
