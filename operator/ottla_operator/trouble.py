"""Why a pod does not run, in Kubernetes' own message, for the Cluster's Ready condition. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: Every pod is in this state for a moment. One that stays there waits for a volume or Secret that only its events name.
_UNDERWAY = "ContainerCreating"
_LINE_MAX = 500


def first_trouble(pods: Iterable[Mapping[str, Any]]) -> str:
    """The problem of the first pod that has one; pods that are being created come last. Empty if all run."""
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
            return _sentence(reason, "see the pod's events for what it waits for")
        ended = (container.get("lastState") or {}).get("terminated")
        if ended is not None:  # the exit says more than the back-off time in Kubernetes' message
            words = (
                _last_line(ended.get("message"))
                or f"the last container exited with code {ended.get('exitCode')}"
            )
            return _sentence(reason, words)
        return _sentence(reason, waiting.get("message"))
    return ""


def _last_line(message: str | None) -> str:
    """Last line of the termination message (terminationMessagePolicy): a broker's says why it exited."""
    lines = (message or "").strip().splitlines()
    return lines[-1].strip()[:_LINE_MAX] if lines else ""


def _sentence(reason: str, message: str | None) -> str:
    text = f"{reason}: {message}" if message else reason
    return text if text.endswith((".", "?", "!")) else f"{text}."
