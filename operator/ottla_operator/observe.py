"""Reads from the API server into values of the pure modules. [A] It changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ottla_operator.kube import Kube, path_of
from ottla_operator.pod_parts import COMPONENT_LABEL, labels_of, labels_of_all
from ottla_operator.resources import Object, names_of
from ottla_operator.rolling import Pod
from ottla_operator.specs import API_VERSION, Meta
from ottla_operator.trouble import first_trouble

_REVISION = "controller-revision-hash"


@dataclass(frozen=True, slots=True)
class SeenBrokers:
    """The pods of a Cluster's brokers."""

    pods: tuple[Pod, ...] = ()
    #: Why one of the Cluster's pods, broker or etcd, does not run.
    trouble: str = ""
    #: The StatefulSet controller has observed the last change; before that, `current` is meaningless.
    settled: bool = False


@dataclass(frozen=True, slots=True)
class SeenScale:
    """The scale subresource of a Deployment or StatefulSet."""

    #: Replicas that it is told to run, and that run.
    wanted: int
    running: int
    #: Selector of its pods.
    selector: str
    version: str


class Observer:
    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def resources(self, kind: str, namespaces: Sequence[str]) -> list[dict[str, Any]]:
        """All resources of one of the operator's kinds, in these namespaces; in all if none are named."""
        found: list[dict[str, Any]] = []
        for namespace in namespaces or [""]:
            found += await self._kube.list(path_of(API_VERSION, kind, namespace))
        return [{"apiVersion": API_VERSION, "kind": kind, **each} for each in found]

    async def resource(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return await self._kube.get(path_of(API_VERSION, kind, namespace, name))

    async def current(self, wanted: Object) -> dict[str, Any] | None:
        """The object as it is now."""
        meta = wanted["metadata"]
        path = path_of(wanted["apiVersion"], wanted["kind"], meta["namespace"], meta["name"])
        return await self._kube.get(path)

    async def ingress(self, namespace: str, service: str) -> str | None:
        """The address of a Service's load balancer, if it has one yet."""
        found = await self._kube.get(path_of("v1", "Service", namespace, service))
        status = (found or {}).get("status") or {}
        rows = (status.get("loadBalancer") or {}).get("ingress") or [{}]
        address: str | None = rows[0].get("hostname") or rows[0].get("ip")
        return address

    async def secret(self, namespace: str, name: str) -> dict[str, str] | None:
        """Its data, as base64."""
        found = await self.secret_object(namespace, name)
        return None if found is None else dict(found.get("data") or {})

    async def secret_object(self, namespace: str, name: str) -> dict[str, Any] | None:
        return await self._kube.get(path_of("v1", "Secret", namespace, name))

    async def annotation(self, meta: Meta, name: str) -> str | None:
        """Of the StatefulSet of the brokers; None if there is no StatefulSet."""
        path = path_of("apps/v1", "StatefulSet", meta.namespace, names_of(meta).brokers)
        found = await self._kube.get(path)
        return None if found is None else str((found["metadata"].get("annotations") or {}).get(name, ""))

    async def brokers(self, meta: Meta) -> SeenBrokers:
        name = names_of(meta).brokers
        stateful_set = await self._kube.get(path_of("apps/v1", "StatefulSet", meta.namespace, name))
        if stateful_set is None:
            return SeenBrokers()
        pods = await self._pods(meta.namespace, labels_of_all(meta))
        # Without etcd no broker starts, so problems of etcd pods come first.
        pods.sort(key=lambda pod: (_is_broker(pod), pod["metadata"]["name"]))
        brokers = [pod for pod in pods if _is_broker(pod)]
        return replace(seen_brokers(stateful_set, brokers), trouble=first_trouble(pods))

    async def pods_wanted(self, meta: Meta) -> int | None:
        """The number of brokers that the StatefulSet runs; None if there is no StatefulSet."""
        path = path_of("apps/v1", "StatefulSet", meta.namespace, names_of(meta).brokers)
        found = await self._kube.get(path)
        return None if found is None else int((found.get("spec") or {}).get("replicas", 1))

    async def scale(self, namespace: str, kind: str, name: str) -> SeenScale | None:
        """None: there is no such object."""
        found = await self._kube.get(path_of("apps/v1", kind, namespace, name, "scale"))
        if found is None:
            return None
        spec, status = found.get("spec") or {}, found.get("status") or {}
        return SeenScale(
            int(spec.get("replicas", 0)),
            int(status.get("replicas", 0)),
            str(status.get("selector", "")),
            str(found["metadata"].get("resourceVersion", "")),
        )

    async def autoscaler_of(self, namespace: str, kind: str, name: str) -> str | None:
        """Name of a HorizontalPodAutoscaler that scales this object."""
        for each in await self._kube.list(path_of("autoscaling/v2", "HorizontalPodAutoscaler", namespace)):
            target = (each.get("spec") or {}).get("scaleTargetRef") or {}
            if (target.get("kind"), target.get("name")) == (kind, name):
                return str(each["metadata"]["name"])
        return None

    async def claims(self, meta: Meta) -> list[dict[str, Any]]:
        """The volume claims of a Cluster's brokers, also of brokers that were removed."""
        selector = _selector(labels_of(meta, "broker"))
        path = path_of("v1", "PersistentVolumeClaim", meta.namespace)
        return await self._kube.list(path, label_selector=selector)

    async def nodes(self) -> list[dict[str, Any]]:
        """The metadata of all nodes."""
        return await self._kube.list(path_of("v1", "Node", ""), metadata_only=True)

    async def _pods(self, namespace: str, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        return await self._kube.list(path_of("v1", "Pod", namespace), label_selector=_selector(labels))

    async def served(self) -> bool:
        """Whether the API server serves the operator's kinds yet."""
        found = await self._kube.get(f"/apis/{API_VERSION}")
        names = {each["name"] for each in (found or {}).get("resources") or ()}
        return {"clusters", "topics", "consumergroups", "rebalances", "users"} <= names


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _is_broker(pod: Mapping[str, Any]) -> bool:
    return bool(pod["metadata"]["labels"].get(COMPONENT_LABEL) == "broker")


def seen_brokers(stateful_set: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> SeenBrokers:
    status = stateful_set.get("status") or {}
    settled = status.get("observedGeneration", 0) >= stateful_set["metadata"].get("generation", 0)
    made = []
    for pod in pods:
        meta = pod["metadata"]
        _, _, ordinal = meta["name"].rpartition("-")
        if not ordinal.isdigit():
            continue
        conditions = (pod.get("status") or {}).get("conditions") or ()
        made.append(
            Pod(
                int(ordinal),
                meta["name"],
                meta["uid"],
                any(row["type"] == "Ready" and row["status"] == "True" for row in conditions),
                (meta.get("labels") or {}).get(_REVISION) == status.get("updateRevision"),
                bool(meta.get("deletionTimestamp")),
            )
        )
    made.sort(key=lambda pod: pod.broker)
    return SeenBrokers(tuple(made), settled=settled)
