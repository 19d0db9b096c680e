"""What the operator counts about itself, for Prometheus. [A]

`prometheus_client` here, unlike in the broker: nothing of this is on a hot path, and memory is counted for free.
"""

from __future__ import annotations

from contextlib import suppress

from prometheus_client import Counter, Gauge, Histogram

RECONCILES = Counter(
    "ottla_operator_reconciles", "Looks at one resource, by what came of them.", ["kind", "result"]
)
RECONCILE_SECONDS = Histogram(
    "ottla_operator_reconcile_seconds",
    "Time of one look.",
    ["kind"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
RESOURCES = Gauge("ottla_operator_resources", "Resources, by whether they are ready.", ["kind", "ready"])
ACTIONS = Counter("ottla_operator_actions", "Changes made on brokers or on Kubernetes.", ["kind", "action"])
DRIFT = Counter("ottla_operator_drift", "Changes by others that were undone.", ["kind"])
KUBE_REQUESTS = Counter(
    "ottla_operator_kube_requests", "Requests to the API server.", ["verb", "resource", "code"]
)

#: Not `namespace`: that label is the operator's own, from whoever scrapes it.
_GROUP = ("consumergroup_namespace", "consumergroup")
GROUP_LAG = Gauge("ottla_operator_group_lag", "Records that a ConsumerGroup has still to read.", _GROUP)
GROUP_MEMBERS = Gauge("ottla_operator_group_members", "Members of a ConsumerGroup.", _GROUP)


def forget_group(key: tuple[str, str]) -> None:
    """It is gone, or nobody knows how it is: no figure is better than an old one."""
    for gauge in (GROUP_LAG, GROUP_MEMBERS):
        with suppress(KeyError):
            gauge.remove(*key)
