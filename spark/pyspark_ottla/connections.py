"""One event loop and one connection to each cluster per Python worker, kept from task to task. [S]

Spark reuses its Python workers. A task that connects again spends 20 ms of CPU on channels and metadata, which is more
than reading a small partition takes. So `fetch` borrows a connection, and returns it when its task ends. A connection
that saw an error is closed and not reused; its successor connects from the start.

Nothing runs in the loop between tasks. A connection whose brokers have closed it meanwhile reconnects when it is used.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
from collections.abc import Coroutine, Iterator
from typing import Any, NamedTuple, TypeVar

from ottla_client.cluster import Cluster
from ottla_client.security import PLAINTEXT, Security
from ottla_core.real.chance import RealChance
from ottla_core.real.clock import RealClock

T = TypeVar("T")
#: Clusters that a worker stays connected to; a query that joins more of them connects more often.
_CLUSTERS_MAX = 4


class _Key(NamedTuple):
    bootstrap: str
    timeout_s: float
    security: Security


class Connection:
    """An open cluster, and the loop that it lives in."""

    def __init__(self, worker: _Worker, key: _Key) -> None:
        self._worker = worker
        self.cluster = Cluster(
            key.bootstrap,
            clock=RealClock(),
            chance=RealChance(),
            request_timeout_s=key.timeout_s,
            security=key.security,
            client_id="ottla-spark",
        )
        #: Tasks that use it now. More than one only if Spark interleaves two reads in one worker.
        self.borrowers = 0
        #: Close it when the last task returns it.
        self.doubtful = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._worker.runner.run(work)

    def close(self) -> None:
        self.run(self.cluster.close())


class _Worker:
    """The connections of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.runner = asyncio.Runner()
        self._kept: dict[_Key, Connection] = {}

    def borrow(self, key: _Key) -> Connection:
        kept = self._kept.pop(key, None)
        if kept is None:
            kept = Connection(self, key)
            try:
                kept.run(kept.cluster.open())
            except BaseException:
                kept.close()
                raise
        self._kept[key] = kept  # the most recently used is the last
        kept.borrowers += 1
        return kept

    def give_back(self, key: _Key, connection: Connection) -> None:
        connection.borrowers -= 1
        if connection.doubtful and self._kept.get(key) is connection:
            del self._kept[key]
        if connection.doubtful and not connection.borrowers:
            connection.close()
        for other, idle in list(self._kept.items()):
            if len(self._kept) > _CLUSTERS_MAX and not idle.borrowers:
                del self._kept[other]
                idle.close()

    def close(self) -> None:
        if self.pid != os.getpid():
            return  # a forked child: the connections are the parent's
        for connection in self._kept.values():
            connection.close()
        self._kept.clear()
        self.runner.close()


#: The worker of this process; a list, so that a fork can be told apart and replaced.
_workers: list[_Worker] = []


@contextlib.contextmanager
def borrowed(bootstrap: str, timeout_s: float, security: Security = PLAINTEXT) -> Iterator[Connection]:
    """A connection for the time of one read. If the read raises, the connection is not used again."""
    worker = _this_worker()
    key = _Key(bootstrap, timeout_s, security)
    connection = worker.borrow(key)
    try:
        yield connection
    except Exception:
        connection.doubtful = True
        raise
    finally:
        worker.give_back(key, connection)


def close_all() -> None:
    """Close the connections of this process, if any."""
    while _workers:
        _workers.pop().close()


def _this_worker() -> _Worker:
    if not _workers or _workers[-1].pid != os.getpid():
        _workers.append(_Worker())
        atexit.register(close_all)
    return _workers[-1]
