"""An external etcd: its endpoints, and the brokers' credentials for it. [P]

Certificates and passwords stay in Secrets, which pods mount and the operator never reads. The key names are those of
cert-manager and of the types kubernetes.io/tls and kubernetes.io/basic-auth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Settings that follow from the spec; a user's value would contradict it.
SETTINGS = (
    "etcd.endpoints",
    "etcd.password.file",
    "etcd.tls.ca.file",
    "etcd.tls.certificate.file",
    "etcd.tls.enable",
    "etcd.tls.key.file",
    "etcd.user",
)
_FOLDER = "/etc/ottla-etcd"
_VOLUME = "etcd-access"
#: Readable by the pod's group only.
_MODE = 0o440


@dataclass(frozen=True, slots=True)
class ExternalEtcd:
    endpoints: tuple[str, ...]
    tls: bool = False
    #: Secret and key of the PEM roots; None: the public roots.
    ca: tuple[str, str] | None = None
    #: Secret with tls.crt and tls.key, for an etcd that requires client certificates.
    certificate: str | None = None
    #: Secret with username and password.
    login: str | None = None

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> ExternalEtcd | None:
        """From `spec.etcd`; None if the operator runs the etcd."""
        endpoints = tuple(spec.get("endpoints") or ())
        if not endpoints:
            return None
        tls = spec.get("tls")
        ca = (tls or {}).get("ca") or {}
        return cls(
            endpoints,
            tls is not None,
            (ca["secretName"], ca.get("key", "ca.crt")) if ca else None,
            ((tls or {}).get("certificate") or {}).get("secretName"),
            (spec.get("login") or {}).get("secretName"),
        )

    def settings(self) -> dict[str, str]:
        made = {"etcd.endpoints": ",".join(self.endpoints)}
        if self.tls:
            made["etcd.tls.enable"] = "true"
        if self.ca:
            made["etcd.tls.ca.file"] = f"{_FOLDER}/ca.crt"
        if self.certificate:
            made["etcd.tls.certificate.file"] = f"{_FOLDER}/tls.crt"
            made["etcd.tls.key.file"] = f"{_FOLDER}/tls.key"
        if self.login:
            made["etcd.password.file"] = f"{_FOLDER}/password"
        return made

    def env(self) -> list[dict[str, Any]]:
        """The user name is a setting, not a file, so it comes from an environment variable."""
        if not self.login:
            return []
        reference = {"name": self.login, "key": "username"}
        return [{"name": "OTTLA_ETCD_USER", "valueFrom": {"secretKeyRef": reference}}]

    def volumes(self) -> list[dict[str, Any]]:
        """One directory with a file for each credential."""
        files = [
            (self.ca[0] if self.ca else None, self.ca[1] if self.ca else "", "ca.crt"),
            (self.certificate, "tls.crt", "tls.crt"),
            (self.certificate, "tls.key", "tls.key"),
            (self.login, "password", "password"),
        ]
        sources = [
            {"secret": {"name": secret, "items": [{"key": key, "path": path}]}}
            for secret, key, path in files
            if secret
        ]
        if not sources:
            return []
        return [{"name": _VOLUME, "projected": {"defaultMode": _MODE, "sources": sources}}]

    def mounts(self) -> list[dict[str, Any]]:
        return [{"name": _VOLUME, "mountPath": _FOLDER, "readOnly": True}] if self.volumes() else []
