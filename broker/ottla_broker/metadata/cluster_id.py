"""The cluster id: created by the first broker of a cluster, kept in the store and on every disk. [S]"""

from __future__ import annotations

from ottla_broker.metadata.history import Seen, lost_history
from ottla_broker.metadata.sections.cluster import CLUSTER
from ottla_broker.metadata.values import BadValue, uuid_text
from ottla_broker.metadata.watcher import LostHistory
from ottla_core.ports.chance import Chance
from ottla_core.ports.store import Branch, MetadataStore, ModRevisionIs, Put, StoreError


async def find_or_create_cluster_id(store: MetadataStore, chance: Chance, seen: Seen) -> str:
    """The id in the store; a new one only if neither the store nor this broker's disk has one.

    A lost reply needs no handling: the next call finds what was written. LostHistory when the disk knows
    a cluster that the store does not, StoreError when the store is unavailable.
    """
    entry = await store.get(CLUSTER.key)
    if entry is None and not seen.cluster_id:
        made = Put(CLUSTER.key, CLUSTER.encode(uuid_text(chance.uuid())))
        await store.transact((), [Branch((ModRevisionIs(CLUSTER.key, 0),), (made,))])
        entry = await store.get(CLUSTER.key)  # Another broker's, if that was faster.
    try:
        cluster_id = "" if entry is None else CLUSTER.decode(entry)
    except BadValue as error:
        raise StoreError(str(error)) from None
    refusal = lost_history(Seen(seen.cluster_id), Seen(cluster_id))
    if refusal is not None:
        raise LostHistory(refusal)
    return cluster_id
