"""Resources as the API server would hold them, for tests of the operator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from ottla_operator.specs import API_VERSION

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "manifests/samples"


def body(kind: str, name: str, spec: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": "shop",
            "uid": f"uid-{name}",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "resourceVersion": "1",
            **meta,
        },
        "spec": spec,
    }


def topic(name: str = "orders", /, **spec: Any) -> dict[str, Any]:
    return body("Topic", name, {"cluster": {"name": "main"}, **spec})


def group(name: str = "billing", /, **spec: Any) -> dict[str, Any]:
    return body("ConsumerGroup", name, {"cluster": {"name": "main"}, **spec})


def rebalance(name: str = "even", /, **spec: Any) -> dict[str, Any]:
    return body("Rebalance", name, {"cluster": {"name": "main"}, **spec})


def cluster(name: str = "main", /, **spec: Any) -> dict[str, Any]:
    return body("Cluster", name, spec)


def sample(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((SAMPLES / f"{name}.yaml").read_text())
    return found


def pretty(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
