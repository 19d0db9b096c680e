"""`broker.rack` from a label of the node: a ConfigMap with the racks of all nodes, and pod parts. [P]

A pod does not know its node's labels, and its node is chosen after its objects are applied. So the ConfigMap has a key
per node. Every broker mounts it and reads the key of the node that it runs on (`rack.file`). The pod needs no
rights, and the rack is known before the pod is scheduled. A broker on a node that the ConfigMap does not list yet
exits; the kubelet refreshes the volume when it starts the container again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ottla_operator.cluster_spec import RackSpec
from ottla_operator.pod_parts import env_field, env_value, metadata
from ottla_operator.specs import Meta, milliseconds

_VOLUME = "racks"
_FOLDER = "/etc/ottla-racks"
_NAMES_SHOWN = 3
#: A node has the labels of its cloud by then.
_LABELLED_S = 120

Object = dict[str, Any]


def name_of(meta: Meta) -> str:
    return f"{meta.name}-racks"


def config_map(meta: Meta, racks: Mapping[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(meta, name_of(meta), "broker"),
        "data": dict(sorted(racks.items())),
    }


def racks_of(spec: RackSpec, nodes: Sequence[Mapping[str, Any]], now_ms: int) -> dict[str, str]:
    """Rack by node; empty for a node without the label, where a broker starts without a rack.

    A cloud sets labels a moment after a node joined. A node without it is left out that long: a broker waits there.
    """
    found = {}
    for each in nodes:
        rack = (each["metadata"].get("labels") or {}).get(spec.topology_key, "")
        if rack or not _is_young(each, now_ms):
            found[each["metadata"]["name"]] = rack
    return found


def _is_young(node: Mapping[str, Any], now_ms: int) -> bool:
    """Not below 0: with a clock that is behind, brokers would wait for longer."""
    created = node["metadata"].get("creationTimestamp")
    return created is not None and 0 <= now_ms - milliseconds(created) < _LABELLED_S * 1000


def warning(spec: RackSpec, racks: Mapping[str, str]) -> str | None:
    """A message about nodes without the label."""
    missing = sorted(node for node, rack in racks.items() if not rack)
    if not missing:
        return None
    shown = ", ".join(missing[:_NAMES_SHOWN]) + (", …" if len(missing) > _NAMES_SHOWN else "")
    return (
        f"{len(missing)} of {len(racks)} nodes have no label {spec.topology_key} ({shown}): "
        "brokers there have no rack."
    )


def restarting(spec: RackSpec | None) -> dict[str, str]:
    """A broker reads its rack at start. Spread constraints of the user's own do not name the label."""
    return {} if spec is None else {"rack": spec.topology_key}


def env() -> list[Object]:
    return [
        env_field("NODE_NAME", "spec.nodeName"),
        env_value("OTTLA_RACK_FILE", f"{_FOLDER}/$(NODE_NAME)"),
    ]


def volumes(meta: Meta) -> list[Object]:
    return [{"name": _VOLUME, "configMap": {"name": name_of(meta)}}]


def mounts() -> list[Object]:
    return [{"name": _VOLUME, "mountPath": _FOLDER, "readOnly": True}]
