"""Why a pod is not up, in the words of Kubernetes, for a Cluster's condition, where people look first. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: On its way, as every pod is for a moment, or for ever: a volume or Secret that it waits for is named in events only.
_UNDERWAY = "ContainerCreating"
_LINE_MAX = 500


def first_trouble(pods: Iterable[Mapping[str, Any]]) -> str:
    """Of the first of these pods that has any, those that may just be on their way last; empty if all are up."""
    said = [(pod["metadata"]["name"], found) for pod in pods if (found := trouble_of(pod))]
    said.sort(key=lambda pair: pair[1].startswith(_UNDERWAY))
    return ": ".join(said[0]) if said else ""


def trouble_of(pod: Mapping[str, Any]) -> str:
    status = pod.get("status") or {}
    for row in status.get("conditions") or ():
        if row["type"] == "PodScheduled" and row["status"] == "False":
            return _sentence(row.get("reason", "Unschedulable"), row.get("message"))
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason")
        if not reason:
            continue
        if reason == _UNDERWAY:
            return _sentence(reason, "its events say what it waits for")
        ended = (container.get("lastState") or {}).get("terminated")
        if ended is not None:  # how it ended says more than how long Kubernetes waits before it tries again
            words = (
                _last_line(ended.get("message")) or f"the last one ended with code {ended.get('exitCode')}"
            )
            return _sentence(reason, words)
        return _sentence(reason, waiting.get("message"))
    return ""


def _last_line(message: str | None) -> str:
    """Of what a container wrote before it ended (terminationMessagePolicy): a broker's last line says why."""
    lines = (message or "").strip().splitlines()
    return lines[-1].strip()[:_LINE_MAX] if lines else ""


def _sentence(reason: str, message: str | None) -> str:
    text = f"{reason}: {message}" if message else reason
    return text if text.endswith((".", "?", "!")) else f"{text}."
