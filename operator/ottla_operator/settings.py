"""What the operator is told by its environment. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla_operator.pod_parts import Images


@dataclass(frozen=True, slots=True)
class Settings:
    images: Images
    #: Empty: all namespaces.
    namespaces: tuple[str, ...] = field(default=())
    #: Drift of topics and clusters is found at the latest after this.
    resync_s: float = 30.0
    #: Lag of groups is at most this old.
    group_resync_s: float = 10.0
    metrics_port: int = 8080
    health_port: int = 8081
    log_json: bool = True
    #: Outside of Kubernetes, where names of Services mean nothing: one address for the brokers of every Cluster.
    bootstrap: str | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Settings:
        return cls(
            Images(
                environ.get("OTTLA_OPERATOR_BROKER_IMAGE", "ottla-broker:latest"),
                environ.get("OTTLA_OPERATOR_ETCD_IMAGE", "quay.io/coreos/etcd:v3.5.21"),
                _names(environ.get("OTTLA_OPERATOR_IMAGE_PULL_SECRETS", "")),
            ),
            _names(environ.get("OTTLA_OPERATOR_NAMESPACES", "")),
            float(environ.get("OTTLA_OPERATOR_RESYNC_S", "30")),
            float(environ.get("OTTLA_OPERATOR_GROUP_RESYNC_S", "10")),
            int(environ.get("OTTLA_OPERATOR_METRICS_PORT", "8080")),
            int(environ.get("OTTLA_OPERATOR_HEALTH_PORT", "8081")),
            environ.get("OTTLA_OPERATOR_LOG_FORMAT", "json") == "json",
            environ.get("OTTLA_OPERATOR_BOOTSTRAP") or None,
        )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
