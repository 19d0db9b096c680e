"""Settings of metrics and health: a part of `config.py`, which has the others. [P]"""

# ruff: noqa: RUF009  (`setting` makes a dataclass field; its defaults are immutable)
from __future__ import annotations

from dataclasses import dataclass

from ottla_broker.setting import Listener, choice, listener, setting, whole


@dataclass(frozen=True)
class HttpConfig:
    """Metrics and health."""

    listener: Listener = setting(
        "http.listener", "127.0.0.1:9292", listener("http"), "Listener for metrics and health."
    )
    security: str = setting(
        "http.security.protocol",
        "PLAINTEXT",
        choice("PLAINTEXT", "SSL"),
        "SSL: metrics and health over HTTPS only, with the certificate of ssl.keystore.location.",
    )
    # Prometheus and kubelet send a few hundred bytes.
    request_max_bytes: int = setting(
        "http.request.max.bytes",
        "8192",
        whole(256, 1 << 20),
        "Maximum request size; a longer request is refused.",
    )
    timeout_ms: int = setting(
        "http.timeout.ms", "5000", whole(10), "Time limit of a request and of its response."
    )
    connections_max: int = setting(
        "http.connections.max",
        "64",
        whole(1, 10_000),
        "Maximum number of connections; more are refused at once.",
    )
    # Each topic is a handful of time series; a tenant with random topic names must not fill Prometheus.
    topics_max: int = setting(
        "metrics.topics.max",
        "1000",
        whole(0, 100_000),
        "Maximum number of topics with metrics per topic; the rest are summed up.",
    )
    # A dozen series each. Partitions in trouble come first.
    partitions_max: int = setting(
        "metrics.partitions.max",
        "1000",
        whole(0, 100_000),
        "Maximum number of partitions per broker with metrics of their own; the rest are omitted.",
    )
    # Four series each, per edge. Client ids are chosen by clients.
    clients_max: int = setting(
        "metrics.clients.max",
        "100",
        whole(0, 10_000),
        "Maximum number of client ids with metrics of their own per protocol; the rest are summed up.",
    )
    # Three series each, per committed offset.
    lags_max: int = setting(
        "metrics.lags.max",
        "2000",
        whole(0, 100_000),
        "Maximum number of committed offsets per coordinator with lag metrics; the rest are omitted.",
    )
