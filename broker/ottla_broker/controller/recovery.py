"""`ottla cluster recover`: makes a cluster usable whose store has lost history for good. [S]

The last resort of design rule 18, for when etcd was restored from a backup that is older than what brokers have
seen. Its leaders and in-sync sets may be outdated, so they are not used:

* R1: every partition has no leader, and all its replicas are in sync and torn. So its election waits for all of them,
  and elects the longest log (rule 2). No replica is truncated before that.
* R2: leader epochs and producer ids skip all that can have been allocated since the backup (`EPOCH_LEAP`,
  `PRODUCER_ID_LEAP`: `after_loss` of each section), so none is allocated twice, whatever is on the brokers' disks.
* R3: the recovery's number is written last. Brokers refuse the store until it is there, so a recovery that was
  interrupted is simply run again.
* R4: no broker may run: every transaction compares that there is no controller and no concurrent recovery.

The backup does not know topics that were created after it; brokers leave their directories alone (rule 4). Topics
that were deleted after it exist again.

Called by the command line only. A broker must never run it: an operator decides whether history is lost for good.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.cluster import CLUSTER, RECOVERIES
from ottla_broker.metadata.sections.controller import CONTROLLER
from ottla_broker.metadata.sections.partitions import PARTITIONS
from ottla_broker.metadata.sections.topics import TOPICS
from ottla_broker.metadata.table import section_of
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


class CannotRecover(Exception):
    """The store needs no recovery, or must not be changed now; the text says what to do."""


class Recovered(NamedTuple):
    cluster_id: str
    topics: int
    partitions: int
    #: How often this was done, this time included.
    number: int


async def recover(store: MetadataStore) -> Recovered:
    """CannotRecover if it is not allowed, StoreError if the store is unavailable: then run the command again."""
    snapshot = await store.scan("")
    entries = {entry.key: entry for entry in snapshot.entries}
    cluster = entries.get(CLUSTER.key)
    if cluster is None:
        raise CannotRecover(
            "There is no cluster in this store: etcd.endpoints or cluster.name lead elsewhere, or it is empty. "
            "Restore a backup of etcd first, however old it is."
        )
    _check_no_broker_registered(snapshot)
    known = entries.get(RECOVERIES.key)
    number = 1 + (0 if known is None else RECOVERIES.decode(known))
    guard = (
        CreateRevisionIs(CONTROLLER.key, 0),
        ModRevisionIs(RECOVERIES.key, 0 if known is None else known.mod_revision),
    )
    writes = [branch for entry in snapshot.entries if (branch := _rewritten(entry)) is not None]
    done = Branch((), (Put(RECOVERIES.key, RECOVERIES.encode(number)),))
    batches = [writes[at : at + BRANCHES_MAX] for at in range(0, len(writes), BRANCHES_MAX)]
    for branches in (*batches, [done]):  # R3
        outcome = await store.transact(guard, branches)
        if not outcome.all_taken:
            raise CannotRecover(
                "Another process changed the store meanwhile: stop all brokers, and run this again."
            )
    counts = Counter(section_of(entry.key) for entry in snapshot.entries)
    return Recovered(CLUSTER.decode(cluster), counts[TOPICS], counts[PARTITIONS], number)


def _check_no_broker_registered(snapshot: Snapshot) -> None:
    here = [entry.key for entry in snapshot.entries if entry.key.startswith(BROKERS.prefix)]
    controller = any(entry.key == CONTROLLER.key for entry in snapshot.entries)
    if here or controller:
        names = ", ".join(str(BROKERS.id_of(key)) for key in here) or "the controller"
        raise CannotRecover(
            f"Brokers are still registered ({names}): stop all of them, wait ten seconds, and run this again."
        )


def _rewritten(entry: Entry) -> Branch | None:
    """R1 and R2, as each section says; None leaves the value as it is."""
    section = section_of(entry.key)
    if section is None or section.after_loss is None:
        return None
    value = section.encode(section.after_loss(section.decode(entry)))
    return Branch((ModRevisionIs(entry.key, entry.mod_revision),), (Put(entry.key, value),))
