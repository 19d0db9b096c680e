"""Writes to the API server: server-side apply of the operator's objects, pod deletions, events. [A]

The only module that writes there. Server-side apply sets the fields that the operator names and leaves all others
alone: fields of a sidecar injector or an autoscaler stay.
"""

from __future__ import annotations

from typing import Any

import structlog

from ottla_core.ports.clock import Clock
from ottla_operator.kube import Kube, KubeError, path_of
from ottla_operator.metrics import ACTIONS
from ottla_operator.pod_parts import MANAGER
from ottla_operator.resources import Object
from ottla_operator.rolling import Pod
from ottla_operator.specs import API_VERSION, Meta
from ottla_operator.times import rfc3339

_log = structlog.get_logger("ottla.apply")

_APPLY: dict[str, Any] = {
    "content_type": "application/apply-patch+yaml",
    "field_manager": MANAGER,
    "force_conflicts": True,
}


#: Kind with ports -> the spec field to replace.
_REPLACED = {"Service": "ports", "StatefulSet": "template"}


class Applier:
    def __init__(self, kube: Kube, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock

    async def apply(self, wanted: Object) -> dict[str, Any]:
        """Apply the object; returns its new state.

        Ports are merged by number. A port that another client renumbered stays beside the operator's and makes the
        object invalid (two ports with one name). Then the fields with such lists are replaced and the apply is retried.
        """
        meta = wanted["metadata"]
        path = path_of(wanted["apiVersion"], wanted["kind"], meta["namespace"], meta["name"])
        try:
            return await self._kube.request("patch", path, wanted, **_APPLY)
        except KubeError as refused:
            replaced = _REPLACED.get(wanted["kind"])
            if refused.code != 422 or replaced is None:
                raise
        spec = {replaced: wanted["spec"][replaced]}
        await self._kube.request(
            "patch", path, {"spec": spec}, content_type="application/merge-patch+json", field_manager=MANAGER
        )
        return await self._kube.request("patch", path, wanted, **_APPLY)

    async def create(self, wanted: Object) -> bool:
        """Create the object; False if it exists, which leaves it unchanged."""
        path = path_of(wanted["apiVersion"], wanted["kind"], wanted["metadata"]["namespace"])
        try:
            await self._kube.request("post", path, wanted)
        except KubeError as failed:
            if failed.code != 409:
                raise
            return False
        return True

    async def delete(self, there: dict[str, Any]) -> None:
        """Delete exactly this object (by uid); ignores one that is already deleted."""
        meta = there["metadata"]
        path = path_of(there["apiVersion"], there["kind"], meta["namespace"], meta["name"])
        try:
            await self._kube.request("delete", path, {"preconditions": {"uid": meta.get("uid")}})
        except KubeError as failed:
            if failed.code not in (404, 409):
                raise

    async def status(self, meta: Meta, status: dict[str, Any], *, version: str | None = None) -> bool:
        """Replace the whole status. False if the resource was deleted or recreated, or (with `version`) changed after
        that version was read."""
        known = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
        if version is not None:
            known["resourceVersion"] = version
        body = {"apiVersion": API_VERSION, "kind": meta.kind, "metadata": known, "status": status}
        path = path_of(API_VERSION, meta.kind, meta.namespace, meta.name, "status")
        try:
            await self._kube.request("patch", path, body, **_APPLY)
        except KubeError as failed:
            if failed.code not in (404, 409):
                raise
            return False
        return True

    async def scale(self, namespace: str, kind: str, name: str, replicas: int, version: str) -> bool:
        """Set the replicas of a Deployment or StatefulSet; False if it changed since that version was read."""
        path = path_of("apps/v1", kind, namespace, name, "scale")
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        try:
            await self._kube.request(
                "patch", path, body, content_type="application/merge-patch+json", field_manager=MANAGER
            )
        except KubeError as failed:
            if failed.code not in (404, 409):
                raise
            return False
        ACTIONS.labels("ConsumerGroup", "scale").inc()
        return True

    async def grow(self, namespace: str, claim: str, size: str) -> dict[str, Any]:
        """Request more storage; returns the claim. The API server refuses if its StorageClass cannot grow volumes."""
        ACTIONS.labels("Cluster", "grow").inc()
        path = path_of("v1", "PersistentVolumeClaim", namespace, claim)
        body = {"spec": {"resources": {"requests": {"storage": size}}}}
        return await self._kube.request(
            "patch", path, body, content_type="application/merge-patch+json", field_manager=MANAGER
        )

    async def restart(self, namespace: str, pod: Pod) -> None:
        """Delete exactly this pod (by uid); its StatefulSet recreates it. Ignores a pod that is already deleted."""
        ACTIONS.labels("Cluster", "restart").inc()
        path = path_of("v1", "Pod", namespace, pod.name)
        try:
            await self._kube.request("delete", path, {"preconditions": {"uid": pod.uid}})
        except KubeError as failed:
            if failed.code not in (404, 409):
                raise

    async def event(self, meta: Meta, reason: str, message: str, *, warning: bool = False) -> None:
        """Write an event, shown by `kubectl describe`, and log it. A failed write is counted and ignored."""
        log = _log.warning if warning else _log.info
        log("event written", kind=meta.kind, resource=meta.full_name, reason=reason, detail=message)
        now = rfc3339(self._clock.wall_ms())
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta.name}.", "namespace": meta.namespace},
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": message[:1000],
            "source": {"component": MANAGER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": meta.kind,
                "namespace": meta.namespace,
                "name": meta.name,
                "uid": meta.uid,
            },
        }
        try:
            await self._kube.request("post", path_of("v1", "Event", meta.namespace), body)
        except KubeError:
            # A namespace that is being deleted accepts no new objects; kube.py has counted the failure.
            return

    async def release(self, meta: Meta, finalizer: str, finalizers: list[str]) -> None:
        """Remove the finalizer of an earlier version."""
        path = path_of(API_VERSION, meta.kind, meta.namespace, meta.name)
        left = [each for each in finalizers if each != finalizer]
        patch = {"metadata": {"finalizers": left or None}}
        await self._kube.request("patch", path, patch, content_type="application/merge-patch+json")
