"""A step of the scenario: a broker loses its volume, returns empty, and is refilled. [A]"""

from __future__ import annotations

import time

from ottla_e2e.kube import Kube, ready
from ottla_e2e.objects import CLUSTER
from ottla_e2e.say import say

_KIND = "clusters.ottla.dev"


def lose(kube: Kube, broker: int) -> None:
    """Delete claim and pod; returns when the broker runs on a new volume and the operator has said so."""
    began = time.monotonic()
    pod = f"{CLUSTER}-broker-{broker}"
    claim = f"data-0-{pod}"
    before = kube.get("persistentvolumeclaim", claim)["metadata"]["uid"]
    stopped = kube.get("pod", pod)["metadata"]["uid"]
    # The claim goes when no pod uses it any more.
    kube.run("delete", f"persistentvolumeclaim/{claim}", "--wait=false")
    kube.run("delete", f"pod/{pod}", "--force", "--grace-period=0")

    def replaced() -> bool | None:
        return True if kube.get("persistentvolumeclaim", claim)["metadata"]["uid"] != before else None

    def started() -> bool | None:
        found = kube.get("pod", pod)
        rows = found["status"].get("conditions") or ()
        is_ready = any(row["type"] == "Ready" and row["status"] == "True" for row in rows)
        return True if found["metadata"]["uid"] != stopped and is_ready else None

    kube.until(f"{claim} is a new claim", replaced, timeout_s=120)
    # The Cluster's status may still be the one from before.
    kube.until(f"{pod} is a new pod, and ready", started, timeout_s=120)
    kube.until(f"{CLUSTER} is ready with it", lambda: ready(kube.get(_KIND, CLUSTER)), timeout_s=120)

    def warned() -> str | None:
        events = kube.list("events", "--field-selector", "reason=VolumeReplaced")
        return next(
            (each["message"] for each in events if each["message"].startswith(f"Broker {broker} ")), None
        )

    message = kube.until("the event VolumeReplaced", warned, timeout_s=60)
    say(f"    {pod} ready on a new volume after {time.monotonic() - began:.1f} s: {message}")
