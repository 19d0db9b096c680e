"""Evicts all brokers, one after another, as `kubectl drain` does with the pods of a node. [A]

The eviction API refuses while the PodDisruptionBudget allows none; a drain tries again until it is accepted. A broker
is ready only when it is in sync, so the next one is evicted only after the previous one has caught up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import NamedTuple

from ottla_e2e.kube import NAMESPACE, Kube
from ottla_e2e.say import Fault

_TIMEOUT_S = 120.0
_PAUSE_S = 0.2
#: How the API server refuses, by kubectl: status 429.
_REFUSED = "disruption budget"


class Eviction(NamedTuple):
    pod: str
    #: Wall clock, to compare with what programs in pods have seen.
    accepted_at: float
    waited_s: float
    refusals: int


def evict_all(kube: Kube, pods: Sequence[str]) -> list[Eviction]:
    return [_evict(kube, pod) for pod in pods]


def _evict(kube: Kube, pod: str) -> Eviction:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    began, refusals = time.monotonic(), 0
    while True:
        now = time.time()
        try:
            kube.run("create", "--raw", path, "-f", "-", stdin=json.dumps(body))
            return Eviction(pod, now, time.monotonic() - began, refusals)
        except Fault as refused:
            if _REFUSED not in str(refused) or time.monotonic() - began > _TIMEOUT_S:
                raise
        refusals += 1
        time.sleep(_PAUSE_S)


def in_sync_at(moment: float, changes: Sequence[tuple[float, int]]) -> int:
    """The fewest in-sync replicas that a client had seen at that moment; 0 if it had seen none yet."""
    return next((fewest for seen_at, fewest in reversed(changes) if seen_at <= moment), 0)
