"""kopf's handlers. [A] Three lines each: they pass watch events to `control.py`.

Only `on.event`: other handlers would put a finalizer on the resources, and a finalizer outlives the operator.
"""

from __future__ import annotations

from typing import Any

import kopf

from ottla_operator.cast import CLUSTER, GROUP, REBALANCE, TOPIC, USER
from ottla_operator.control import Control
from ottla_operator.pod_parts import MANAGED_BY, MANAGER
from ottla_operator.specs import GROUP as API_GROUP
from ottla_operator.specs import VERSION


def configure(settings: kopf.OperatorSettings) -> None:
    """Replace kopf's defaults that use kopf's names or wait without a bound."""
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=API_GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(
        prefix=API_GROUP, key="last-handled-configuration"
    )
    settings.posting.enabled = False  # apply.py writes the events
    settings.posting.reporting_component = MANAGER
    settings.peering.standalone = True
    # If kopf does not scan for new CRDs and namespaces, it needs no permissions for them.
    settings.scanning.disabled = True
    # Bounds on a watch whose connection is dead.
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.watching.chunk_size = 250
    # Watch only the operator's StatefulSets; a cluster may have thousands of others.
    ours = ",".join(f"{name}={value}" for name, value in MANAGED_BY.items())
    settings.watching.label_selectors["apps", "v1", "statefulsets"] = ours
    settings.execution.default_backoff = 10


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: Any, **_: Any) -> None:
    configure(settings)
    await memo.control.start()


@kopf.on.cleanup()
async def stop(memo: Any, **_: Any) -> None:
    await memo.control.stop()


@kopf.on.event(API_GROUP, VERSION, "clusters")
async def cluster_seen(body: kopf.Body, type: str | None, memo: Any, **_: Any) -> None:
    control: Control = memo.control
    control.seen(CLUSTER, dict(body), gone=type == "DELETED")


@kopf.on.event(API_GROUP, VERSION, "topics")
async def topic_seen(body: kopf.Body, type: str | None, memo: Any, **_: Any) -> None:
    control: Control = memo.control
    control.seen(TOPIC, dict(body), gone=type == "DELETED")


@kopf.on.event(API_GROUP, VERSION, "consumergroups")
async def group_seen(body: kopf.Body, type: str | None, memo: Any, **_: Any) -> None:
    control: Control = memo.control
    control.seen(GROUP, dict(body), gone=type == "DELETED")


@kopf.on.event(API_GROUP, VERSION, "rebalances")
async def rebalance_seen(body: kopf.Body, type: str | None, memo: Any, **_: Any) -> None:
    control: Control = memo.control
    control.seen(REBALANCE, dict(body), gone=type == "DELETED")


@kopf.on.event(API_GROUP, VERSION, "users")
async def user_seen(body: kopf.Body, type: str | None, memo: Any, **_: Any) -> None:
    control: Control = memo.control
    control.seen(USER, dict(body), gone=type == "DELETED")


@kopf.on.event("apps", "v1", "statefulsets", labels=dict(MANAGED_BY))
async def part_seen(body: kopf.Body, memo: Any, **_: Any) -> None:
    control: Control = memo.control
    control.part_seen(dict(body))
