"""The store's history: detects that it was lost, and decides how much to keep. [P]

After a restore from an old backup, or with a fresh etcd under an old cluster, the store's revision or
cluster id differs from what this broker kept on disk. Acting on it could allocate epochs and ids a second
time, so the broker changes nothing, reports it, and waits for an operator (design rule 18): either a newer backup is
restored, or `ottla cluster recover` raises epochs and ids above all disks' (`recovery.py`). Each recovery is
numbered in the store, and revisions of different recoveries are not compared: a later number is ahead of all
that came before it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """The broker's record of the store on disk: `cluster_id` "" means that it never joined a cluster."""

    cluster_id: str = ""
    revision: int = 0
    recoveries: int = 0


def lost_history(seen: Seen, store: Seen) -> str | None:
    """A sentence if the store is behind what was seen, else None. In `store`, `cluster_id` "" means none."""
    if seen.cluster_id and not store.cluster_id:
        return (
            f"The metadata store has no cluster id, but this broker belongs to cluster {seen.cluster_id}: the store "
            "was emptied or replaced, or etcd.endpoints or cluster.name lead elsewhere. Nothing is changed until "
            "etcd's newest backup is restored, or the setting corrected, and the broker restarted."
        )
    if seen.cluster_id and store.cluster_id != seen.cluster_id:
        return (
            f"The metadata store belongs to cluster {store.cluster_id}, but this broker to {seen.cluster_id}: "
            "it points at another cluster's store, or uses another cluster's disk. Nothing is changed."
        )
    if (store.recoveries, store.revision) < (seen.recoveries, seen.revision):
        return (
            f"The metadata store is at {_point(store)}, but this broker has seen {_point(seen)}: it was "
            "restored from an older backup, which knows nothing of what was decided since. Nothing is changed until "
            "a newer backup is restored, or, if there is none, all brokers are stopped and `ottla cluster recover` "
            "was run; then the broker is to be restarted."
        )
    return None


def _point(seen: Seen) -> str:
    return f"revision {seen.revision}" + (f" of recovery {seen.recoveries}" if seen.recoveries else "")


class HistoryWindow:
    """Decides which revision may be compacted: a broker that was offline for less than `keep_s` need not read all
    again.

    etcd keeps every revision until told otherwise, and stops taking writes when its quota is full.
    """

    def __init__(self, keep_s: float, step_s: float) -> None:
        self._keep_s = keep_s
        self._step_s = step_s
        #: (when, revision) at steps of `step_s`, the oldest first.
        self._marks: deque[tuple[float, int]] = deque(maxlen=int(keep_s / step_s) + 2)
        self._compacted = 0

    def note(self, now: float, revision: int) -> int | None:
        """Record the current revision; return one to compact to, if it is newer than the last one."""
        if not self._marks or now - self._marks[-1][0] >= self._step_s:
            self._marks.append((now, revision))
        old = [r for when, r in self._marks if now - when >= self._keep_s]
        if not old or old[-1] <= self._compacted:
            return None
        self._compacted = old[-1]
        return self._compacted
