"""The operator's settings, from environment variables. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla_operator.pod_parts import Images


@dataclass(frozen=True, slots=True)
class Settings:
    images: Images
    #: Empty: all namespaces.
    namespaces: tuple[str, ...] = field(default=())
    #: Interval at which topics and clusters are checked for drift.
    resync_s: float = 30.0
    #: Interval at which the lag of groups is refreshed.
    group_resync_s: float = 10.0
    metrics_port: int = 8080
    health_port: int = 8081
    log_json: bool = True
    #: For an operator outside of Kubernetes, which cannot resolve Services: one broker address for every Cluster.
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
