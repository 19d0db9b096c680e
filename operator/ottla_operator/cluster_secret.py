"""The secret that the brokers of a Cluster share, and the port that it guards: a Secret, and the parts of pods. [P]

The Secret is made once and never overwritten: brokers that know different secrets do not replicate to each other. The
operator may create Secrets and cannot read any, so it does not know what is in there either.
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
#: For the group of the pod only, which is all that the broker has.
_MODE = 0o440
#: How often the Secret is looked after: somebody may have deleted it, and pods could not start then.
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
    """Brokers reach each other at the IP of the pod, which is registered again at each start: no DNS cache delays a
    follower, and a refused connection means that this very process does not listen. Brackets, because it may be IPv6.
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
    """Which Clusters to create the Secret for, now: at first sight, and again from time to time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._done_at: dict[str, float] = {}

    def is_due(self, meta: Meta) -> bool:
        return self._now() - self._done_at.get(meta.uid, float("-inf")) >= RENEW_S

    def done(self, meta: Meta) -> None:
        now = self._now()
        # Clusters that are gone are forgotten with the time.
        self._done_at = {uid: at for uid, at in self._done_at.items() if now - at < RENEW_S}
        self._done_at[meta.uid] = now
