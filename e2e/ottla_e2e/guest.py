"""Runs in an existing cluster: change nothing that was there before, leave nothing behind. [A]

The run creates two namespaces, the chart's objects and the CRDs, and deletes all of them. So none of them may exist
when it begins: deleting the CRDs would delete every Cluster and Topic of other users.
"""

from __future__ import annotations

from ottla_e2e.images import ROOT
from ottla_e2e.kube import NAMESPACE, OTHER_NAMESPACE, Kube
from ottla_e2e.oci import architecture
from ottla_e2e.say import Fault, say

_CRDS = str(ROOT / "charts/ottla/crds")
_DEFAULT = "storageclass.kubernetes.io/is-default-class"


def check(kube: Kube) -> None:
    """Check that the run can use the cluster; a `Fault` says why not."""
    there = [*_crds(kube), *(f"namespace/{name}" for name in _namespaces(kube))]
    if there:
        raise Fault(
            f"this cluster has {', '.join(there)} already, and the run would delete them at the end. Use another "
            "cluster; or, if an earlier run left them: helm uninstall --namespace ottla-e2e ottla; kubectl delete "
            "topics,consumergroups,users.ottla.dev,clusters.ottla.dev --all --namespace ottla-e2e; "
            "kubectl delete namespace ottla-e2e; kubectl delete -f charts/ottla/crds"
        )
    made_for = {node["status"]["nodeInfo"]["architecture"] for node in kube.list("nodes")}
    if made_for != {architecture()}:
        found = ", ".join(sorted(made_for))
        raise Fault(f"images are built for this machine's {architecture()}, and the nodes are {found}")
    classes = kube.list("storageclasses")
    if not any((each["metadata"].get("annotations") or {}).get(_DEFAULT) == "true" for each in classes):
        raise Fault("this cluster has no default StorageClass, so the brokers would get no volumes")


def leave(kube: Kube) -> None:
    """Remove what the run created, also if it ended in the middle and no operator runs."""
    crds, namespaces = _crds(kube), _namespaces(kube)
    if crds or namespaces:
        say("removing what the run left behind")
    for namespace in namespaces:
        command = ["uninstall", "ottla", "--no-hooks", "--ignore-not-found", "--wait", "--timeout", "3m"]
        kube.within(namespace).helm(*command)
    if crds:
        for name in kube.run("get", "topics,consumergroups,users.ottla.dev", "-o", "name").split():
            patch = '{"metadata": {"finalizers": null}}'
            kube.run("patch", name, "--type", "merge", "--patch", patch)
        kube.run("delete", "-f", _CRDS, "--ignore-not-found", "--timeout=100s")
    for namespace in namespaces:
        kube.run("delete", "namespace", namespace, "--timeout=110s")


def _crds(kube: Kube) -> list[str]:
    names = kube.run("get", "customresourcedefinitions", "-o", "name").split()
    return [name.partition("/")[2] for name in names if name.endswith(".ottla.dev")]


def _namespaces(kube: Kube) -> list[str]:
    names = [NAMESPACE, OTHER_NAMESPACE]
    found = kube.run("get", "namespace", *names, "--ignore-not-found", "-o", "name").split()
    return [name.partition("/")[2] for name in found]
