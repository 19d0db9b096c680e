"""`ottla cluster recover`: continue after etcd was restored from an old backup and no newer one exists. [A]

Talks to etcd itself, because no broker starts on a store that is behind.
`ottla_broker/controller/recovery.py` decides which keys change.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ottla_cli.broker_settings import pairs_of, read_store_settings
from ottla_cli.connecting import run
from ottla_cli.failure import Failure
from ottla_cli.quantities import plural
from ottla_cli.screen import confirm, note, print_json, say

if TYPE_CHECKING:
    from ottla_broker.config import EtcdConfig
    from ottla_broker.controller.recovery import Recovered
    from ottla_core.ports.store import MetadataStore

_QUESTION = (
    "Discard all metadata changes since the backup, and continue from it? All brokers must be stopped."
)


def recover(data: str | None, config: str | None, pairs: Sequence[str], *, yes: bool, as_json: bool) -> None:
    if data is not None and not os.path.isdir(os.path.join(data, "etcd")):
        raise Failure(f"{data} has no etcd of a local cluster; give the folder of `ottla up --data DIR`.")
    settings = pairs_of(pairs)
    confirm(_QUESTION, yes=yes)
    with _endpoint(data) as endpoint:
        if endpoint is not None:
            settings["etcd.endpoints"] = endpoint
        done = run(_recover(*read_store_settings(config, settings)))
    if as_json:
        print_json(done._asdict())
        return
    say(
        f"Cluster {done.cluster_id} continues from the backup: {plural(done.topics, 'topic')}, "
        f"{plural(done.partitions, 'partition')}."
    )
    note("Start all brokers now: a partition has no leader until all its replicas are online.")


@contextmanager
def _endpoint(data: str | None) -> Iterator[str | None]:
    """Run the etcd of a local cluster inside the block and yield its endpoint; None without a data folder."""
    if data is None:
        yield None
        return
    from ottla_cli.local_cluster import LocalCluster

    cluster = LocalCluster(data, say=note)
    cluster.begin_etcd()
    try:
        yield cluster.etcd_endpoint
    finally:
        cluster.stop()


async def _recover(etcd: EtcdConfig, cluster: str) -> Recovered:
    from ottla_broker.controller.recovery import CannotRecover, recover
    from ottla_broker.etcd_access import etcd_store
    from ottla_broker.metadata.values import BadValue
    from ottla_broker.setting import ConfigError
    from ottla_core.ports.store import StoreError

    try:
        store = etcd_store(etcd, cluster)
    except ConfigError as refused:
        raise Failure(str(refused), exit_code=2) from None
    try:
        await _answers(store, etcd.connect_timeout_ms / 1000)
        return await recover(store)
    except (CannotRecover, BadValue) as refused:
        raise Failure(str(refused)) from None
    except StoreError as failed:
        where = ", ".join(str(address) for address in etcd.endpoints)
        reason = str(failed).rstrip(".")
        raise Failure(f"etcd at {where} failed ({reason}); fix that, and run the command again.") from None
    finally:
        await store.close()


async def _answers(store: MetadataStore, timeout_s: float) -> None:
    """Wait for an etcd that is just starting; StoreError if it does not answer in time."""
    from ottla_core.ports.store import StoreError
    from ottla_core.real.clock import RealClock

    clock = RealClock()
    deadline = clock.monotonic() + timeout_s
    while True:
        try:
            await store.get("cluster")
            return
        except StoreError:
            if clock.monotonic() > deadline:
                raise
            await clock.sleep(0.2)
