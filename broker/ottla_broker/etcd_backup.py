"""Saves a snapshot of etcd into a folder, with the settings of a broker; deletes the oldest ones. [A]

    python -m ottla_broker.etcd_backup --to DIR [--keep 48] [--config FILE]

What the chart's CronJob runs, in the broker's image: endpoints, TLS and login are those of the brokers, and no shell is
needed. Only their settings of etcd are read: others are valid in the brokers' pods only. The file is what `etcdctl
snapshot save` writes: etcd's database and its SHA-256, which is checked before the file gets its name. `etcdctl
snapshot restore` reads it (docs/kubernetes.md).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence

from ottla_core.real.clock import RealClock

_PREFIX, _SUFFIX = "etcd-", ".db"
_HASH_BYTES = 32
#: etcd's database has whole pages, so that a snapshot with a hash is recognised by its size.
_PAGE_BYTES = 512
#: The largest database that etcd allows by default is 2 GB.
_TIMEOUT_S = 600.0


class BackupFailed(Exception):
    """Says in one sentence why there is no new snapshot."""


async def write_snapshot(chunks: AsyncIterator[bytes], path: str) -> int:
    """Write and check a snapshot; its size. The file is complete, or it is not there."""
    partial = f"{path}.part"
    digest, tail, size = hashlib.sha256(), b"", 0
    # A new file: two jobs may start in the same second, and would write into each other's.
    file = open(partial, "xb")  # noqa: ASYNC230, SIM115  # nothing else runs in this process
    try:
        with file:
            async for chunk in chunks:
                file.write(chunk)
                size += len(chunk)
                whole = tail + chunk
                digest.update(whole[:-_HASH_BYTES])
                tail = whole[-_HASH_BYTES:]
            if size % _PAGE_BYTES != _HASH_BYTES or digest.digest() != tail:
                raise BackupFailed(
                    f"The snapshot of {size} bytes does not match its checksum; it was cut off."
                )
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
    return size


def superfluous(names: Sequence[str], keep: int) -> list[str]:
    """The snapshots to delete, oldest first: their names sort by time. Other files are left alone."""
    ours = sorted(name for name in names if name.startswith(_PREFIX) and name.endswith(_SUFFIX))
    return ours[: max(0, len(ours) - keep)]


async def back_up(config_path: str | None, folder: str, keep: int, now_s: float) -> str:
    """The path of the new snapshot. BackupFailed, ConfigError or OSError if there is none."""
    from ottla_broker.__main__ import read_store_settings
    from ottla_broker.etcd_access import etcd_store
    from ottla_core.ports.store import StoreError

    store = etcd_store(*read_store_settings(config_path, {}, os.environ))
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    path = os.path.join(folder, f"{_PREFIX}{stamp}{_SUFFIX}")
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await write_snapshot(store.snapshot(), path)
    except TimeoutError:
        raise BackupFailed(f"etcd did not send the snapshot within {_TIMEOUT_S:g} s.") from None
    except StoreError as failed:
        raise BackupFailed(f"etcd sent no snapshot: {failed}") from None
    finally:
        await store.close()
    for name in superfluous(os.listdir(folder), keep):
        os.unlink(os.path.join(folder, name))
    return path


def main(argv: Sequence[str] | None = None) -> int:
    from ottla_broker.setting import ConfigError

    parser = argparse.ArgumentParser(prog="etcd_backup", description="Save a snapshot of a cluster's etcd.")
    parser.add_argument("--to", metavar="DIR", required=True)
    parser.add_argument("--keep", type=int, default=48, help="snapshots that stay, with the new one")
    parser.add_argument("--config", metavar="FILE", help="a broker's settings (also OTTLA_CONFIG)")
    given = parser.parse_args(argv)
    if given.keep < 1:
        parser.error("--keep must be at least 1")
    try:
        path = asyncio.run(back_up(given.config, given.to, given.keep, RealClock().wall_ms() / 1000))
    except (BackupFailed, ConfigError, OSError) as failed:
        sys.stderr.write(f"etcd-backup: {failed}\n")
        return 1
    sys.stdout.write(f"{path} {os.path.getsize(path)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
