"""The cluster secret of a Cluster's brokers and the internal port that it protects: a Secret, and pod parts. [P]

The Secret is created once and never overwritten: brokers with different secrets do not replicate to each other. The
operator can create Secrets but cannot read them, so it does not know the content either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla_operator.pod_parts import env_field, env_value, metadata
from ottla_operator.specs import Meta

INTERNAL_PORT = 9392

_VOLUME = "cluster-secret"
_FOLDER = "/etc/ottla-cluster"
_KEY = "secret"
#: Readable by the pod's group, the only identity that the broker has.
_MODE = 0o440
#: How often the operator recreates a missing Secret: pods cannot start without it.
RENEW_S = 600.0

Object = dict[str, Any]


def name_of(meta: Meta) -> str:
    return f"{meta.name}-cluster-secret"


def secret(meta: Meta, made: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(meta, name_of(meta), "broker"),
        "type": "Opaque",
        "stringData": {_KEY: made},
    }


def settings() -> dict[str, str]:
    return {"cluster.secret.file": f"{_FOLDER}/{_KEY}", "internal.listener": f"0.0.0.0:{INTERNAL_PORT}"}


def env() -> list[Object]:
    """Brokers connect to each other's pod IP, which each start registers in etcd: no DNS cache delays a
    follower, and a refused connection means that this process does not listen. Brackets, because it may be IPv6.
    """
    address = f"[$(POD_IP)]:{INTERNAL_PORT}"
    return [env_field("POD_IP", "status.podIP"), env_value("OTTLA_INTERNAL_ADVERTISED", address)]


def container_ports() -> list[Object]:
    return [{"name": "internal", "containerPort": INTERNAL_PORT}]


def service_ports() -> list[Object]:
    return [{"name": "internal", "port": INTERNAL_PORT, "targetPort": "internal"}]


def volumes(meta: Meta) -> list[Object]:
    return [{"name": _VOLUME, "secret": {"secretName": name_of(meta), "defaultMode": _MODE}}]


def mounts() -> list[Object]:
    return [{"name": _VOLUME, "mountPath": _FOLDER, "readOnly": True}]


class Due:
    """Which Clusters need the Secret created now: new ones, and all of them every `RENEW_S`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._done_at: dict[str, float] = {}

    def is_due(self, meta: Meta) -> bool:
        return self._now() - self._done_at.get(meta.uid, float("-inf")) >= RENEW_S

    def done(self, meta: Meta) -> None:
        now = self._now()
        # Drop old entries, so that deleted Clusters do not accumulate.
        self._done_at = {uid: at for uid, at in self._done_at.items() if now - at < RENEW_S}
        self._done_at[meta.uid] = now
