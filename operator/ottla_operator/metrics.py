"""The operator's own metrics, for Prometheus. [A]

Unlike the broker, the operator uses `prometheus_client`: it has no hot path, and memory metrics are included.
"""

from __future__ import annotations

from contextlib import suppress

from prometheus_client import Counter, Gauge, Histogram

RECONCILES = Counter(
    "ottla_operator_reconciles", "Reconciliations of single resources, by result.", ["kind", "result"]
)
RECONCILE_SECONDS = Histogram(
    "ottla_operator_reconcile_seconds",
    "Duration of one reconciliation.",
    ["kind"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
RESOURCES = Gauge("ottla_operator_resources", "Resources, by whether they are ready.", ["kind", "ready"])
ACTIONS = Counter("ottla_operator_actions", "Changes made on brokers or on Kubernetes.", ["kind", "action"])
DRIFT = Counter("ottla_operator_drift", "Changes by other clients that the operator reverted.", ["kind"])
KUBE_REQUESTS = Counter(
    "ottla_operator_kube_requests", "Requests to the API server.", ["verb", "resource", "code"]
)

#: Not `namespace`: Prometheus sets that label to the operator's own namespace.
_GROUP = ("consumergroup_namespace", "consumergroup")
GROUP_LAG = Gauge("ottla_operator_group_lag", "Lag of a ConsumerGroup, in records.", _GROUP)
GROUP_LAG_SECONDS = Gauge(
    "ottla_operator_group_lag_seconds",
    "Lag of a ConsumerGroup in seconds, of the partition furthest behind.",
    _GROUP,
)
GROUP_MEMBERS = Gauge("ottla_operator_group_members", "Members of a ConsumerGroup.", _GROUP)

GROUP_REPLICAS = Gauge(
    "ottla_operator_group_replicas", "Replicas that run of what a ConsumerGroup scales.", _GROUP
)
GROUP_REPLICAS_DESIRED = Gauge(
    "ottla_operator_group_replicas_desired", "Replicas that a ConsumerGroup's lag asks for.", _GROUP
)


def forget_scale(key: tuple[str, str]) -> None:
    for gauge in (GROUP_REPLICAS, GROUP_REPLICAS_DESIRED):
        with suppress(KeyError):
            gauge.remove(*key)


def forget_group(key: tuple[str, str]) -> None:
    """The group was deleted or its state is unknown: no value is better than a stale one."""
    forget_scale(key)
    for gauge in (GROUP_LAG, GROUP_LAG_SECONDS, GROUP_MEMBERS):
        with suppress(KeyError):
            gauge.remove(*key)
