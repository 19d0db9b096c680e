"""Volumes of brokers that grow: which claims to change, what to report. [P]

`volumes.py` lists the claims of a Cluster's brokers and applies `growths`; Kubernetes and its storage driver do the
rest, usually while the broker runs. The claim templates of a StatefulSet cannot change, so they keep the size that
they were created with (`with_old_templates`): claims of brokers that are added later are grown after their creation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ottla_operator.cluster_spec import Storage
from ottla_operator.status import Condition

RESIZED = "VolumesResized"
RESIZING, REFUSED = "Resizing", "Refused"
_UNITS = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("kMGTPE", 1)},
}
#: Of a claim whose file system grows when its pod starts again; most drivers need no restart.
_PENDING = "FileSystemResizePending"

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Growth:
    """A claim that is to become larger."""

    claim: str
    size: str


def parsed(quantity: str) -> Decimal:
    """Kubernetes' quantities, as far as the schema accepts them for volumes: 10Gi, 1.5G, 1000m."""
    number = quantity.rstrip("kMGTPEim")
    return Decimal(number) * _UNITS[quantity[len(number) :]]


def growths(storage: Storage, claims: Sequence[Object]) -> list[Growth]:
    found = []
    for claim in claims:
        size = _wanted(storage, claim)
        is_bound = (claim.get("status") or {}).get("phase") == "Bound"  # others are refused
        if size is not None and is_bound and parsed(_requested(claim)) < parsed(size):
            found.append(Growth(claim["metadata"]["name"], size))
    return found


def condition_of(storage: Storage, claims: Sequence[Object], refused: Mapping[str, str]) -> Condition:
    """`claims` as they are after the changes; `refused` has the API server's reason by claim."""
    if refused:
        name, why = next(iter(refused.items()))
        return Condition(RESIZED, False, REFUSED, f"{len(refused)} claims did not grow. {name}: {why}")
    left = [
        each
        for each in claims
        if (size := _wanted(storage, each)) is not None and parsed(_capacity(each)) < parsed(size)
    ]
    if not left:
        return Condition(RESIZED, True, "AsSpecified", "All volumes have the size of the spec, or more.")
    pending = [each for each in left if _has(each, _PENDING)]
    hint = f" {pending[0]['metadata']['name']} grows when its pod starts again." if pending else ""
    first = left[0]
    return Condition(
        RESIZED,
        False,
        RESIZING,
        f"{len(left)} of {len(claims)} claims are still to grow. {first['metadata']['name']} has {_capacity(first)} "
        f"of {_wanted(storage, first)}.{hint}",
    )


def is_of_broker(claim: Object, cluster: str) -> bool:
    """By its name: a copy of a claim, made by hand, has the same labels."""
    pattern = rf"data-\d+-{re.escape(cluster)}-broker-\d+"
    return re.fullmatch(pattern, claim["metadata"]["name"]) is not None


def broker_of(claim: Object) -> int:
    """A file system of a broker that was removed may grow only when the broker returns, so it does not count."""
    return int(claim["metadata"]["name"].rpartition("-")[2])


def with_old_templates(wanted: dict[str, Any], there: Object | None) -> dict[str, Any]:
    """The StatefulSet with the claim sizes of the one that exists."""
    if there is None or wanted["kind"] != "StatefulSet":
        return wanted
    old = {
        each["metadata"]["name"]: _requested(each)
        for each in (there.get("spec") or {}).get("volumeClaimTemplates") or ()
    }
    templates = [
        _with_size(each, old.get(each["metadata"]["name"], _requested(each)))
        for each in wanted["spec"]["volumeClaimTemplates"]
    ]
    return {**wanted, "spec": {**wanted["spec"], "volumeClaimTemplates": templates}}


def _with_size(template: Object, size: str) -> dict[str, Any]:
    return {**template, "spec": {**template["spec"], "resources": {"requests": {"storage": size}}}}


def _wanted(storage: Storage, claim: Object) -> str | None:
    """The size in the spec of a claim named data-<volume>-<pod>."""
    number = claim["metadata"]["name"].split("-")[1]
    known = number.isdigit() and int(number) < len(storage.volumes)
    return storage.volumes[int(number)].size if known else None


def _requested(claim: Object) -> str:
    return str(claim["spec"]["resources"]["requests"]["storage"])


def _capacity(claim: Object) -> str:
    """What the volume has, or will have if there is none yet."""
    return str(((claim.get("status") or {}).get("capacity") or {}).get("storage") or _requested(claim))


def _has(claim: Object, kind: str) -> bool:
    rows = (claim.get("status") or {}).get("conditions") or ()
    return any(row["type"] == kind and row["status"] == "True" for row in rows)
