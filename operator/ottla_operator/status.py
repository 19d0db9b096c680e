"""Conditions and statuses as plain values; the time is a parameter. [P]

Every kind has the condition Ready; `kubectl wait` uses it. A condition keeps its
lastTransitionTime as long as its status stays the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ottla_operator.specs import Meta

READY = "Ready"
#: The reason of a Ready resource whose spec is in force. Earlier versions wrote the second name.
RECONCILED = "Reconciled"
IN_FORCE = (RECONCILED, "AsWanted")
_MESSAGE_MAX = 1000


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    #: None: unknown.
    holds: bool | None
    reason: str
    message: str

    @property
    def status(self) -> str:
        return "Unknown" if self.holds is None else str(self.holds)


def ready(message: str, reason: str = RECONCILED) -> Condition:
    return Condition(READY, True, reason, message)


def not_ready(reason: str, message: str) -> Condition:
    return Condition(READY, False, reason, message)


def with_conditions(
    meta: Meta,
    previous: Mapping[str, Any] | None,
    conditions: Sequence[Condition],
    now: str,
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """The complete status. Facts that are None are left out, so that server-side apply removes them."""
    before = {row["type"]: row for row in (previous or {}).get("conditions") or ()}
    rows = []
    for condition in conditions:
        row: dict[str, Any] = {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message[:_MESSAGE_MAX],
            "observedGeneration": meta.generation,
            "lastTransitionTime": now,
        }
        old = before.get(condition.type)
        if old is not None and old.get("status") == row["status"]:
            row["lastTransitionTime"] = old.get("lastTransitionTime", now)
        rows.append(row)
    status: dict[str, Any] = {"observedGeneration": meta.generation, "conditions": rows}
    status.update((name, value) for name, value in facts.items() if value is not None)
    return status


def conditions_in(status: Mapping[str, Any] | None) -> list[Condition]:
    """Those of a status that was written before."""
    holds = {"True": True, "False": False}
    return [
        Condition(row["type"], holds.get(row["status"]), row.get("reason", ""), row.get("message", ""))
        for row in (status or {}).get("conditions") or ()
    ]


def is_ready(status: Mapping[str, Any] | None) -> bool:
    return any(
        row.get("type") == READY and row.get("status") == "True"
        for row in (status or {}).get("conditions") or ()
    )


def reason_of(error_name: str) -> str:
    """`INVALID_REPLICATION_FACTOR` -> `InvalidReplicationFactor`, the form of condition reasons."""
    words: Iterable[str] = re.split(r"[^A-Za-z0-9]+", error_name)
    return "".join(word.capitalize() for word in words if word) or "Failed"


#: Facts that stay in the status while no broker answers: old ones are better than none, and Ready is False.
def kept(previous: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        name: value
        for name, value in (previous or {}).items()
        if name not in ("conditions", "observedGeneration")
    }
