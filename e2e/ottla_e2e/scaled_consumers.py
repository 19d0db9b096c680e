"""A step of the scenario: consumers that start from zero when there is lag, keep pinned partitions, and stop. [A]"""

from __future__ import annotations

import time
from collections.abc import Callable

from ottla_e2e import objects
from ottla_e2e.kube import Kube, Object, condition
from ottla_e2e.objects import CLIENT, KAFKA
from ottla_e2e.say import Fault, say

_GROUP, _TOPIC = "invoicing", "invoices"
#: Three replicas, by 1,000 records each; a consumer of the sample reads 100 per second.
_RECORDS, _REPLICAS = 3000, 3
_STABILIZATION_S = 20


def run(kube: Kube) -> None:
    kube.apply(*objects.scaled_consumers(_STABILIZATION_S))
    _when(kube, "no lag, no replicas", lambda seen: _scaling(seen)[0] == "True" and _replicas(seen) == (0, 0))
    began = time.monotonic()
    kube.python(
        CLIENT, "write.py", "--bootstrap", KAFKA, "--topic", _TOPIC, "--log", f"/tmp/{_TOPIC}.acked",
        "--first", "0", "--count", str(_RECORDS),
    )  # fmt: skip
    _when(kube, f"{_REPLICAS} replicas run", lambda seen: _replicas(seen) == (_REPLICAS, _REPLICAS))
    say(f"    {_REPLICAS} replicas after {time.monotonic() - began:.1f} s; {_message(kube)}")
    seen = _when(
        kube,
        "the pins are honoured, by members on which all partitions are spread",
        lambda seen: (
            condition(seen, "PinsApplied").get("reason") == "Assigned"
            and seen["status"]["memberCount"] == _REPLICAS
            and all(member["partitionCount"] for member in seen["status"]["members"])
        ),
    )
    members = {each["instanceId"]: each["partitions"] for each in seen["status"]["members"]}
    for number in (0, 1):
        if f"{_TOPIC}-{number}" not in members[f"{_GROUP}-{number}"]:
            raise Fault(f"expected: partition {number} with its member, not {members}")
    say(f"    after {time.monotonic() - began:.1f} s: {members}, lag {seen['status'].get('lagSeconds')} s")
    for line in kube.run("get", "consumergroup", _GROUP, "-o", "wide").splitlines():
        say(f"    {line}")
    _when(kube, "everything is read", lambda seen: seen["status"]["totalLag"] == 0)
    say(f"    read after {time.monotonic() - began:.1f} s")
    _when(
        kube,
        "no replicas, no members",
        lambda seen: _replicas(seen) == (0, 0) and not seen["status"]["memberCount"],
    )
    say(f"    no replicas after {time.monotonic() - began:.1f} s")
    events = kube.list(
        "events", "--field-selector", f"involvedObject.name={_GROUP},involvedObject.kind=ConsumerGroup"
    )
    for each in sorted(events, key=lambda event: str(event["firstTimestamp"])):
        if each["reason"].startswith("Scaled"):
            say(f"    {each['reason']}: {each['message']}")
    reasons = {each["reason"] for each in events}
    if not {"ScaledUp", "ScaledDown"} <= reasons:
        raise Fault(f"expected: an event for each change, not {reasons}")
    kube.run("delete", f"statefulset/{_GROUP}", f"consumergroup/{_GROUP}", f"topic/{_TOPIC}", "--timeout=60s")


def _when(kube: Kube, what: str, right: Callable[[Object], bool]) -> Object:
    def look() -> Object | None:
        seen = kube.get("consumergroup", _GROUP)
        return seen if right(seen) else None

    return kube.until(f"consumergroup {_GROUP}: {what}", look, timeout_s=120)


def _replicas(seen: Object) -> tuple[int, int]:
    scale = seen["status"]["scale"]
    return scale["replicas"], scale["desired"]


def _scaling(seen: Object) -> tuple[str, str]:
    found = condition(seen, "ScalingActive")
    return found.get("status", ""), found.get("reason", "")


def _message(kube: Kube) -> str:
    return str(condition(kube.get("consumergroup", _GROUP), "ScalingActive").get("message"))
