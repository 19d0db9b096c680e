"""`ottla` in a broker's pod, as a person would use it. [A]"""

from __future__ import annotations

import json
from typing import Any

from ottla_e2e.kube import Kube, Object
from ottla_e2e.objects import CLUSTER, GRPC


def brokers(kube: Kube) -> dict[int, Object]:
    """By id, as `ottla cluster --json` shows them."""
    command = ("python3", "-m", "ottla_cli", "cluster", "--bootstrap", GRPC, "--json")
    shown: dict[str, Any] = json.loads(kube.run("exec", f"{CLUSTER}-broker-0", "--", *command))
    return {each["id"]: each for each in shown["brokers"]}
