"""Helpers for structural schemas, so that `crds.py` reads like the resources it describes. [P]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]

#: Maximum rows of a status list; a resource must stay far below etcd's limit of 1.5 MiB.
ROWS_MAX = 500
#: Maximum names of partitions in one status.
NAMES_MAX = 2000
#: Maximum partitions of one offset reset: the status lists all of them before the first is moved.
MOVED_MAX = 5000


#: Keeps unknown fields: the operator passes them on to Kubernetes' own types, which validate them.
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def text(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, **more}


def whole(description: str, minimum: int, maximum: int | None = None, **more: Any) -> Schema:
    bounds: Schema = {"minimum": minimum} if maximum is None else {"minimum": minimum, "maximum": maximum}
    return {"type": "integer", "format": "int32", "description": description, **bounds, **more}


def long(description: str, minimum: int) -> Schema:
    return {"type": "integer", "format": "int64", "description": description, "minimum": minimum}


def fraction(description: str) -> Schema:
    return {"type": "number", "description": description, "minimum": 0, "maximum": 1}


def flag(description: str, **more: Any) -> Schema:
    return {"type": "boolean", "description": description, **more}


def choice(description: str, values: Sequence[str], **more: Any) -> Schema:
    return {"type": "string", "description": description, "enum": list(values), **more}


def passed_on(description: str) -> Schema:
    return {**OPEN, "description": description}


def texts(description: str, **more: Any) -> Schema:
    return {"type": "object", "description": description, "additionalProperties": {"type": "string"}, **more}


def settings(description: str, **more: Any) -> Schema:
    """name -> value. Unquoted numbers are common in YAML, so they are accepted too."""
    value = {"x-kubernetes-int-or-string": True}
    return {
        "type": "object",
        "description": description,
        "additionalProperties": value,
        "maxProperties": 200,
        **more,
    }


#: Kubernetes' own pattern for quantities, as its CRDs have it.
QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)


def resources(description: str) -> Schema:
    """Requests and limits of a container. The schema checks quantities, because later errors are hard to understand."""
    amounts: Schema = {
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": {
            "x-kubernetes-int-or-string": True,
            "pattern": QUANTITY,
            "maxLength": 64,
        },
    }
    return thing(
        description,
        {
            "requests": {**amounts, "description": "Resources reserved for each."},
            "limits": {**amounts, "description": "Maximum that each may use."},
            "claims": listed("As in a container.", passed_on("As in a container."), 16),
        },
    )


def listed(description: str, items: Schema, most: int, **more: Any) -> Schema:
    return {"type": "array", "description": description, "items": items, "maxItems": most, **more}


def thing(
    description: str,
    properties: Mapping[str, Schema],
    *,
    required: Sequence[str] = (),
    rules: Sequence[tuple[str, str]] = (),
    **more: Any,
) -> Schema:
    """An object; `rules` are CEL expressions with their error messages."""
    made: Schema = {"type": "object", "description": description, "properties": dict(properties), **more}
    if required:
        made["required"] = list(required)
    if rules:
        made["x-kubernetes-validations"] = [{"rule": rule, "message": message} for rule, message in rules]
    return made


def conditions() -> Schema:
    condition = thing(
        "One condition of the resource.",
        {
            "type": text("Type of the condition.", maxLength=316),
            "status": choice("Whether the condition holds.", ("True", "False", "Unknown")),
            "reason": text("Machine-readable reason, one word.", maxLength=1024, minLength=1),
            "message": text("Human-readable explanation.", maxLength=32768),
            "observedGeneration": long("Generation of the spec that the condition describes.", 0),
            "lastTransitionTime": text("When the status last changed.", format="date-time"),
        },
        required=("type", "status", "reason", "message", "lastTransitionTime"),
    )
    return listed(
        "Conditions of the resource.", condition, 16,
        **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )  # fmt: skip


def column(name: str, kind: str, path: str, *, wide: bool = False, description: str = "") -> Schema:
    made: Schema = {"name": name, "type": kind, "jsonPath": path}
    if description:
        made["description"] = description
    if wide:
        made["priority"] = 1
    return made


READY = column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status')
REASON = column("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', wide=True)
AGE = column("Age", "date", ".metadata.creationTimestamp")


def cluster_reference(*, elsewhere: bool = True) -> Schema:
    """`elsewhere`: the Cluster may be in another namespace."""
    fields = {"name": text("Name of the Cluster.", minLength=1, maxLength=40)}
    same = "self.name == oldSelf.name"
    if elsewhere:
        fields["namespace"] = text(
            "Its namespace, if it is another one: the Cluster's allowedNamespaces must have the resource's.",
            minLength=1,
            maxLength=63,
        )
        same += (
            " && has(self.__namespace__) == has(oldSelf.__namespace__)"
            " && (!has(self.__namespace__) || self.__namespace__ == oldSelf.__namespace__)"
        )
    return thing(
        "The Cluster." if elsewhere else "The Cluster, in the same namespace.",
        fields,
        required=("name",),
        rules=[(same, "a resource cannot move to another cluster")],
    )
