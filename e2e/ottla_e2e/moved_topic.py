"""A step of the scenario: a topic is placed, replicated, placed again and rebalanced, by its resources only. [A]"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from ottla_e2e import objects
from ottla_e2e.kube import Kube, Object, condition, ready
from ottla_e2e.objects import CLUSTER
from ottla_e2e.programs import Log
from ottla_e2e.say import Fault, say

_TOPIC, _REBALANCE = "moved", "even"
_PARTITIONS = 6
_RECORDS = 20_000


def run(kube: Kube) -> None:
    log = Log(kube, _TOPIC)
    kube.apply(_topic([[0]] * _PARTITIONS))
    _placed(kube, "created on broker 0", lambda rows: all(row["replicas"] == [0] for row in rows))
    moved = [each["message"] for each in _events(kube, _TOPIC) if each["message"].startswith("Moving")]
    if moved:
        raise Fault(f"expected: a topic that is created where its spec says, and no {moved}")
    log.write(_RECORDS)
    with log.writing(every_ms=10):
        kube.apply(_topic(replicas=3))
        _placed(kube, "three replicas", lambda rows: all(len(row["isr"]) == 3 for row in rows))
        kube.apply(_topic([[2, 1, 0]] * 2, replicas=3))
        _placed(
            kube,
            "two partitions as declared",
            lambda rows: [row["replicas"] for row in rows[:2]] == [[2, 1, 0]] * 2,
        )
        kube.apply(_topic([[0]] * _PARTITIONS))
        _placed(kube, "on broker 0 again", lambda rows: all(row["replicas"] == [0] for row in rows))
        kube.apply(_topic(replicas=1))
        _rebalance(kube)
    log.check()
    kube.run("delete", f"topic/{_TOPIC}", f"rebalances.ottla.dev/{_REBALANCE}", "--timeout=60s")


def _rebalance(kube: Kube) -> None:
    """Proposed, approved, done: the topic's partitions leave the one broker."""
    began = time.monotonic()
    kube.apply(_rebalance_of(approved=False))
    proposal = _state(kube, {"Proposed"})
    if condition(proposal, "Ready").get("reason") != "AwaitingApproval":
        raise Fault(f"expected: a proposal that waits, not {proposal['status']}")
    moves = proposal["status"]["moves"]
    say(
        f"    {len(moves)} moves proposed: {[(each['topic'], each['partition'], each['to']) for each in moves]}"
    )
    kube.apply(_rebalance_of(approved=True))
    status = _state(kube, {"Done"})["status"]
    if not moves or status["movesDone"] != len(moves):
        raise Fault(f"expected: all {len(moves)} moves done, not {status}")
    rows = _placed(kube, "in sync after the moves", lambda rows: all(len(row["isr"]) == 1 for row in rows))
    brokers = sorted({row["replicas"][0] for row in rows})
    if brokers != [0, 1, 2]:
        raise Fault(f"expected: partitions on all brokers, not {rows}")
    reasons = [each["reason"] for each in _events(kube, _REBALANCE)]
    say(f"    done {time.monotonic() - began:.1f} s after the proposal was asked for: {reasons}")


def _state(kube: Kube, states: Collection[str]) -> Object:
    def look() -> Object | None:
        found = kube.get("rebalances.ottla.dev", _REBALANCE)
        return found if (found.get("status") or {}).get("state") in states else None

    return kube.until(f"rebalance {_REBALANCE}: {', '.join(states)}", look, timeout_s=120)


def _placed(kube: Kube, what: str, right: Callable[[list[Object]], bool]) -> list[Object]:
    """The partitions of the topic, once it is Ready and they are `right`."""
    began = time.monotonic()

    def look() -> list[Object] | None:
        found = ready(kube.get("topic", _TOPIC))
        rows: list[Object] = found["status"]["partitions"] if found else []
        return rows if rows and right(rows) else None

    rows = kube.until(f"topic {_TOPIC}: {what}", look, timeout_s=120)
    say(f"    {what} after {time.monotonic() - began:.1f} s")
    return rows


def _events(kube: Kube, name: str) -> list[Object]:
    found = kube.list("events", "--field-selector", f"involvedObject.name={name}")
    return sorted(found, key=lambda event: str(event["firstTimestamp"]))


def _topic(assignment: list[list[int]] | None = None, *, replicas: int | None = None) -> Object:
    spec: Object = {"cluster": {"name": CLUSTER}, "partitions": _PARTITIONS}
    if replicas is not None:
        spec["replicas"] = replicas
    if assignment is not None:
        spec["assignment"] = [
            {"partition": number, "brokers": brokers} for number, brokers in enumerate(assignment)
        ]
    return objects.resource("Topic", _TOPIC, spec)


def _rebalance_of(*, approved: bool) -> Object:
    return objects.resource("Rebalance", _REBALANCE, {"cluster": {"name": CLUSTER}, "approved": approved})
