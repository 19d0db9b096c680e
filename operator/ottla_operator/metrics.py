"""What the operator counts about itself, for Prometheus. [A]

`prometheus_client` here, unlike in the broker: nothing of this is on a hot path, and memory is counted for free.
"""

from __future__ import annotations

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
