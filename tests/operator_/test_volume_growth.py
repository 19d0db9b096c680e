"""Volumes that grow: quantities, which claims to change, what is reported."""

from __future__ import annotations

from typing import Any

import pytest

from operator_.bodies import cluster
from operator_.twins import World
from ottla_operator.cluster_spec import Storage, Volume
from ottla_operator.clusters import ClusterLook
from ottla_operator.kube import KubeError, path_of
from ottla_operator.pod_parts import Images
from ottla_operator.volume_growth import Growth, condition_of, growths, parsed, with_old_templates

STORAGE = Storage((Volume("20Gi"), Volume("5Gi")))


def claim(name: str, size: str, capacity: str | None = None, **status: Any) -> dict[str, Any]:
    held = {"capacity": {"storage": capacity or size}, "phase": "Bound", **status}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": "shop",
            "labels": {
                "app.kubernetes.io/name": "ottla",
                "ottla.dev/cluster": "main",
                "app.kubernetes.io/component": "broker",
            },
        },
        "spec": {"resources": {"requests": {"storage": size}}},
        "status": held,
    }


@pytest.mark.parametrize(
    ("less", "more"),
    [("1Gi", "1.5Gi"), ("1G", "1Gi"), ("999M", "1G"), ("1024Mi", "1025Mi"), ("1", "1k"), ("1500m", "2")],
)
def test_quantities_are_compared_by_their_bytes(less: str, more: str) -> None:
    assert parsed(less) < parsed(more)


def test_equal_quantities() -> None:
    assert parsed("1024Mi") == parsed("1Gi") == 1 << 30
    assert parsed("1000m") == 1


def test_each_claim_grows_to_the_size_of_its_volume() -> None:
    claims = [
        claim("data-0-main-broker-0", "10Gi"),
        claim("data-1-main-broker-0", "5Gi"),
        claim("data-0-main-broker-1", "30Gi"),
        claim("data-1-main-broker-1", "4096Mi"),
        claim("data-0-main-broker-2", "10Gi", phase="Pending"),
    ]
    assert growths(STORAGE, claims) == [
        Growth("data-0-main-broker-0", "20Gi"),
        Growth("data-1-main-broker-1", "5Gi"),
    ]


def test_a_volume_has_grown_when_its_capacity_says_so() -> None:
    growing = [claim("data-0-main-broker-0", "20Gi", "10Gi"), claim("data-1-main-broker-0", "5Gi")]
    found = condition_of(STORAGE, growing, {})
    assert (found.holds, found.reason) == (False, "Resizing")
    assert "1 of 2 claims" in found.message and "has 10Gi of 20Gi" in found.message
    assert "pod starts again" not in found.message
    waits = {"conditions": [{"type": "FileSystemResizePending", "status": "True"}]}
    offline = claim("data-0-main-broker-0", "20Gi", "10Gi", **waits)
    assert "grows when its pod starts again" in condition_of(STORAGE, [offline], {}).message
    assert condition_of(STORAGE, [claim("data-0-main-broker-0", "20Gi")], {}).holds
    assert condition_of(STORAGE, [], {}).holds


def test_templates_keep_their_first_size() -> None:
    def stateful_set(size: str) -> dict[str, Any]:
        template = {
            "metadata": {"name": "data-0"},
            "spec": {"resources": {"requests": {"storage": size}}, "storageClassName": "fast"},
        }
        return {"kind": "StatefulSet", "spec": {"replicas": 3, "volumeClaimTemplates": [template]}}

    wanted, there = stateful_set("20Gi"), stateful_set("10Gi")
    assert with_old_templates(wanted, there) == there
    assert with_old_templates(wanted, None) == wanted
    assert with_old_templates({"kind": "Service", "spec": {}}, {}) == {"kind": "Service", "spec": {}}


async def grown(world: World, size: str, generation: int) -> None:
    body = cluster(storage={"volumes": [{"size": size}]})
    body["metadata"]["generation"] = generation
    body["status"] = world.kube.find("Cluster", "main").get("status", {}) if generation > 1 else {}
    world.put(body)


async def test_a_cluster_with_larger_volumes() -> None:
    world = World()
    look = ClusterLook(world.tools, Images("b:1", "e:1"))
    await grown(world, "10Gi", 1)
    await look.look(("shop", "main"))
    assert world.condition("Cluster", "main", "VolumesResized") == ("True", "AsSpecified")
    for number in range(2):
        world.kube.put(claim(f"data-0-main-broker-{number}", "10Gi"))

    await grown(world, "20Gi", 2)
    assert await look.look(("shop", "main")) == 2.0
    assert world.condition("Cluster", "main", "VolumesResized") == ("False", "Resizing")
    there = world.kube.find("PersistentVolumeClaim", "data-0-main-broker-1")
    assert there["spec"]["resources"]["requests"]["storage"] == "20Gi"
    (template,) = world.kube.find("StatefulSet", "main-broker")["spec"]["volumeClaimTemplates"]
    assert template["spec"]["resources"]["requests"]["storage"] == "10Gi"

    for number in range(2):
        world.kube.put(claim(f"data-0-main-broker-{number}", "20Gi"))
    await look.look(("shop", "main"))
    assert world.condition("Cluster", "main", "VolumesResized") == ("True", "AsSpecified")
    reasons = [reason for reason, _ in world.kube.events if reason.startswith("Volumes")]
    assert reasons == ["VolumesResizing", "VolumesResized"]


async def test_a_claim_of_a_removed_broker_grows_and_does_not_count() -> None:
    world = World()
    look = ClusterLook(world.tools, Images("b:1", "e:1"))
    await grown(world, "10Gi", 1)
    await look.look(("shop", "main"))
    waits = {"conditions": [{"type": "FileSystemResizePending", "status": "True"}]}
    world.kube.put(claim("data-0-main-broker-2", "20Gi"))
    world.kube.put(claim("data-0-main-broker-3", "10Gi", **waits))
    await grown(world, "20Gi", 2)
    await look.look(("shop", "main"))
    removed = world.kube.find("PersistentVolumeClaim", "data-0-main-broker-3")
    assert removed["spec"]["resources"]["requests"]["storage"] == "20Gi"
    assert world.condition("Cluster", "main", "VolumesResized") == ("True", "AsSpecified")


async def test_a_copy_of_a_claim_is_left_alone() -> None:
    """It has the labels of the claim that it was made from, and any name."""
    world = World()
    look = ClusterLook(world.tools, Images("b:1", "e:1"))
    for name in ("data-0-main-broker-0-copy", "data", "copy-0-main-broker-0", "data-0-main-broker-0-7"):
        world.kube.put(claim(name, "5Gi"))
    world.kube.put(claim("data-0-main-broker-0", "5Gi"))
    await grown(world, "10Gi", 1)
    await look.look(("shop", "main"))
    sizes = {
        each["metadata"]["name"]: each["spec"]["resources"]["requests"]["storage"]
        for path, each in world.kube.objects.items()
        if "persistentvolumeclaims" in path
    }
    assert sizes.pop("data-0-main-broker-0") == "10Gi"
    assert set(sizes.values()) == {"5Gi"}


async def test_a_storage_class_that_cannot_grow_is_a_warning_and_no_failure() -> None:
    world = World()
    look = ClusterLook(world.tools, Images("b:1", "e:1"))
    await grown(world, "10Gi", 1)
    await look.look(("shop", "main"))
    world.sync("Cluster", "main")
    world.kube.put(claim("data-0-main-broker-0", "10Gi"))
    path = path_of("v1", "PersistentVolumeClaim", "shop", "data-0-main-broker-0")
    world.kube.refusals[path] = [KubeError(403, "the storageclass must support resize")]
    await grown(world, "20Gi", 2)
    await look.look(("shop", "main"))
    assert world.condition("Cluster", "main", "VolumesResized") == ("False", "Refused")
    assert "must support resize" in str(world.status("Cluster", "main")["conditions"])
    assert world.kube.warnings.count("VolumesRefused") == 1
    assert world.condition("Cluster", "main")[1] == "Starting", "brokers do not need it"


async def test_an_operator_with_older_rights_still_reconciles() -> None:
    world = World()
    world.kube.forbidden.add("persistentvolumeclaims")
    await grown(world, "10Gi", 1)
    await ClusterLook(world.tools, Images("b:1", "e:1")).look(("shop", "main"))
    assert world.condition("Cluster", "main", "VolumesResized") == ("Unknown", "Forbidden")
    assert world.condition("Cluster", "main") == ("False", "Starting")
