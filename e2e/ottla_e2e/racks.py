"""A step of the scenario: the rack of each broker is the zone of its node, as `ottla cluster` shows it. [A]"""

from __future__ import annotations

import json

from ottla_e2e.kube import Kube
from ottla_e2e.objects import CLUSTER, GRPC
from ottla_e2e.say import Fault, say

_ZONE = "topology.kubernetes.io/zone"
_COMMAND = ("python3", "-m", "ottla_cli", "cluster", "--bootstrap", GRPC, "--json")


def run(kube: Kube) -> None:
    zones = {each["metadata"]["name"]: each["metadata"]["labels"].get(_ZONE) for each in kube.list("nodes")}
    pods = kube.list("pods", "-l", f"ottla.dev/cluster={CLUSTER},app.kubernetes.io/component=broker")
    expected = {
        int(pod["metadata"]["name"].rpartition("-")[2]): zones[pod["spec"]["nodeName"]] for pod in pods
    }
    shown = json.loads(kube.run("exec", f"{CLUSTER}-broker-0", "--", *_COMMAND))
    racks = {each["id"]: each["rack"] for each in shown["brokers"]}
    if racks != expected or len(racks) != 3:
        raise Fault(f"expected: the zones of the nodes {expected} as racks, not {racks}")
    say(f"    racks {racks}, from the zones {zones}")
