"""A step of the scenario: the rack of each broker is the zone of its node, as `ottla cluster` shows it. [A]"""

from __future__ import annotations

from ottla_e2e import command_line
from ottla_e2e.kube import Kube
from ottla_e2e.objects import CLUSTER
from ottla_e2e.say import Fault, say

_ZONE = "topology.kubernetes.io/zone"


def run(kube: Kube) -> None:
    zones = {each["metadata"]["name"]: each["metadata"]["labels"].get(_ZONE) for each in kube.list("nodes")}
    pods = kube.list("pods", "-l", f"ottla.dev/cluster={CLUSTER},app.kubernetes.io/component=broker")
    expected = {
        int(pod["metadata"]["name"].rpartition("-")[2]): zones[pod["spec"]["nodeName"]] for pod in pods
    }
    racks = {number: each["rack"] for number, each in command_line.brokers(kube).items()}
    if racks != expected or len(racks) != 3:
        raise Fault(f"expected: the zones of the nodes {expected} as racks, not {racks}")
    say(f"    racks {racks}, from the zones {zones}")
