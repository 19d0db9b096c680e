"""Why a pod is not up, in the words of Kubernetes, for a Cluster's condition, where people look first. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: On its way, as every pod is for a moment.
_UNDERWAY = ("ContainerCreating", "PodInitializing")


def first_trouble(pods: Iterable[Mapping[str, Any]]) -> str:
    """Of the first of these pods that has any; empty if all are up or on their way."""
    for pod in pods:
        found = trouble_of(pod)
        if found:
            return f"{pod['metadata']['name']}: {found}"
    return ""


def trouble_of(pod: Mapping[str, Any]) -> str:
    status = pod.get("status") or {}
    for row in status.get("conditions") or ():
        if row["type"] == "PodScheduled" and row["status"] == "False":
            return _sentence(row.get("reason", "Unschedulable"), row.get("message"))
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason")
        if not reason or reason in _UNDERWAY:
            continue
        ended = (container.get("lastState") or {}).get("terminated")
        if ended is not None:  # how it ended says more than how long Kubernetes waits before it tries again
            return _sentence(reason, f"the last one ended with code {ended.get('exitCode')}")
        return _sentence(reason, waiting.get("message"))
    return ""


def _sentence(reason: str, message: str | None) -> str:
    text = f"{reason}: {message}" if message else reason
    return text if text.endswith(".") else f"{text}."
