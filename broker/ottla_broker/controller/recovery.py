"""`ottla cluster recover`: makes a cluster usable whose store has lost history for good. [S]

The last resort of design rule 18, for when etcd was restored from a backup that is older than what brokers have
seen. Its leaders and in-sync sets may be outdated, so they are not used:

* R1: every partition has no leader, and all its replicas are in sync and torn. So its election waits for all of them,
  and elects the longest log (rule 2). No replica is truncated before that.
* R2: leader epochs and producer ids skip all that can have been allocated since the backup (`EPOCH_LEAP`,
  `PRODUCER_ID_LEAP`), so none is allocated twice, whatever is on the brokers' disks.
* R3: the recovery's number is written last. Brokers refuse the store until it is there, so a recovery that was
  interrupted is simply run again.
* R4: no broker may run: every transaction compares that there is no controller and no concurrent recovery.

The backup does not know topics that were created after it; brokers leave their directories alone (rule 4). Topics
that were deleted after it exist again.

Called by the command line only. A broker must never run it: an operator decides whether history is lost for good.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ottla_broker.controller import keys
from ottla_broker.controller.image import PartitionImage
from ottla_core.ids import NO_BROKER
from ottla_core.ports.store import (
    BRANCHES_MAX,
    Branch,
    CreateRevisionIs,
    Entry,
    MetadataStore,
    ModRevisionIs,
    Put,
    Snapshot,
)

#: More elections of one partition than any cluster sees between two backups; an epoch has 31 bits.
EPOCH_LEAP = 1_000_000
#: As many ids as a million broker restarts would take; an id has 63 bits.
PRODUCER_ID_LEAP = 1_000_000_000


class CannotRecover(Exception):
    """The store needs no recovery, or must not be changed now; the text says what to do."""


class Recovered(NamedTuple):
    cluster_id: str
    topics: int
    partitions: int
    #: How often this was done, this time included.
    number: int


def recovered(partition: PartitionImage) -> PartitionImage:
    """R1 and R2."""
    return replace(
        partition,
        leader=NO_BROKER,
        leader_epoch=partition.leader_epoch + EPOCH_LEAP,
        isr=partition.replicas,
        elr=(),
        torn=partition.replicas,
        dropped=(),
    )


async def recover(store: MetadataStore) -> Recovered:
    """CannotRecover if it is not allowed, StoreError if the store is unavailable: then run the command again."""
    snapshot = await store.scan("")
    entries = {entry.key: entry for entry in snapshot.entries}
    cluster = entries.get(keys.CLUSTER)
    if cluster is None:
        raise CannotRecover(
            "There is no cluster in this store: etcd.endpoints or cluster.name lead elsewhere, or it is empty. "
            "Restore a backup of etcd first, however old it is."
        )
    _check_nobody_is_there(snapshot)
    known = entries.get(keys.RECOVERIES)
    number = 1 + (0 if known is None else keys.decode_recoveries(known))
    guard = (
        CreateRevisionIs(keys.CONTROLLER, 0),
        ModRevisionIs(keys.RECOVERIES, 0 if known is None else known.mod_revision),
    )
    partitions = [entry for entry in snapshot.entries if entry.key.startswith(keys.PARTITIONS)]
    writes = [
        _rewritten(entry, keys.encode_partition(recovered(keys.decode_partition(entry))))
        for entry in partitions
    ]
    block = entries.get(keys.PRODUCER_BLOCK)
    if block is not None:
        leapt = keys.decode_producer_block(block) + PRODUCER_ID_LEAP
        writes.append(_rewritten(block, keys.encode_producer_block(leapt)))
    done = Branch((), (Put(keys.RECOVERIES, keys.encode_recoveries(number)),))
    batches = [writes[at : at + BRANCHES_MAX] for at in range(0, len(writes), BRANCHES_MAX)]
    for branches in (*batches, [done]):  # R3
        outcome = await store.transact(guard, branches)
        if not outcome.all_taken:
            raise CannotRecover(
                "Another process changed the store meanwhile: stop all brokers, and run this again."
            )
    topics = sum(entry.key.startswith(keys.TOPICS) for entry in snapshot.entries)
    return Recovered(keys.decode_cluster(cluster), topics, len(partitions), number)


def _check_nobody_is_there(snapshot: Snapshot) -> None:
    here = [entry.key for entry in snapshot.entries if entry.key.startswith(keys.BROKERS)]
    controller = any(entry.key == keys.CONTROLLER for entry in snapshot.entries)
    if here or controller:
        names = ", ".join(str(keys.broker_id_of(key)) for key in here) or "the controller"
        raise CannotRecover(
            f"Brokers are still registered ({names}): stop all of them, wait ten seconds, and run this again."
        )


def _rewritten(entry: Entry, value: bytes) -> Branch:
    return Branch((ModRevisionIs(entry.key, entry.mod_revision),), (Put(entry.key, value),))
