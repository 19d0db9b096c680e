"""The life of a namespace that holds the operator and its Cluster: deleted, and installed again elsewhere. [A]

Deleting the namespace ends operator, brokers and resources in any order, so nothing in it may wait for the operator.
"""

from __future__ import annotations

import json
import tempfile
import time

from ottla_e2e import objects
from ottla_e2e.images import ROOT
from ottla_e2e.kube import NAMESPACE, OTHER_NAMESPACE, Kube, ready
from ottla_e2e.objects import CLUSTER
from ottla_e2e.say import Fault, say

_RELEASE = "ottla"
#: Brokers that stop while etcd is stopping too wait for it for half a minute.
_DELETION_S = 100


def install(kube: Kube) -> float:
    """`helm install` and a Ready Cluster; returns the seconds it took."""
    began = time.monotonic()
    kube.apply(objects.namespace(kube.namespace))
    _helm_install(kube)
    kube.until("the Cluster is Ready", lambda: ready(kube.get("clusters.ottla.dev", CLUSTER)), timeout_s=300)
    return time.monotonic() - began


def delete_and_install_elsewhere(kube: Kube) -> None:
    """A second install is refused while the first runs; without its namespace, the same release name is free."""
    other = kube.within(OTHER_NAMESPACE)
    say(f"    Cluster Ready {install(kube):.1f} s after helm install")
    kube.apply(objects.topic("orders", 6), objects.group("billing", "orders"))
    kube.until("the Topic is Ready", lambda: ready(kube.get("topic", "orders")), timeout_s=60)
    other.apply(objects.namespace(OTHER_NAMESPACE))
    say(f"    a second install: {_refusal(other)}")

    began = time.monotonic()
    kube.run("delete", "namespace", NAMESPACE, f"--timeout={_DELETION_S}s", timeout_s=_DELETION_S + 20)
    say(f"    the namespace was deleted in {time.monotonic() - began:.1f} s")
    until_no_volumes(kube)

    say(f"    Cluster Ready {install(other):.1f} s after helm install in another namespace")
    other.helm("uninstall", _RELEASE, "--wait", "--timeout", "3m")
    other.run("delete", "namespace", OTHER_NAMESPACE, f"--timeout={_DELETION_S}s", timeout_s=_DELETION_S + 20)
    until_no_volumes(other)


def until_no_volumes(kube: Kube) -> None:
    """Wait until the volumes of the namespace's claims are gone."""

    def gone() -> bool | None:
        claims = [each["spec"].get("claimRef", {}) for each in kube.list("persistentvolumes")]
        return None if any(claim.get("namespace") == kube.namespace for claim in claims) else True

    kube.until(f"the volumes of {kube.namespace} are gone", gone, timeout_s=90)


def _helm_install(kube: Kube) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as values:
        json.dump(objects.chart_values(), values)
        values.flush()
        kube.helm("install", _RELEASE, str(ROOT / "charts/ottla"), "--values", values.name)


def _refusal(kube: Kube) -> str:
    """The sentence with which `helm install` refuses a second operator for all namespaces."""
    try:
        _helm_install(kube)
    except Fault as refused:
        _, found, sentence = str(refused).partition("The operator ")
        if found:
            return found + sentence
        raise
    raise Fault("expected: a second operator for all namespaces is refused")
