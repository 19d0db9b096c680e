from __future__ import annotations

from typing import Any

import pytest

from ottla_operator.trouble import first_trouble, trouble_of


def pod(name: str = "main-broker-0", **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": status}


def waiting(
    reason: str, message: str | None = None, ended: int | None = None, wrote: str | None = None
) -> dict[str, Any]:
    state: dict[str, Any] = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    last: dict[str, Any] = {} if ended is None else {"terminated": {"exitCode": ended}}
    if wrote is not None:
        last["terminated"]["message"] = wrote
    return {"containerStatuses": [{"state": state, "lastState": last}]}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({}, ""),
        ({"containerStatuses": [{"state": {"running": {}}}]}, ""),
        (waiting("ContainerCreating"), "ContainerCreating: see the pod's events for what it waits for."),
        (waiting("ErrImageNeverPull"), "ErrImageNeverPull."),
        (waiting("ImagePullBackOff", 'Back-off pulling image "x"'), 'ImagePullBackOff: Back-off pulling image "x".'),
        (
            waiting("CreateContainerConfigError", 'secret "etcd-login" not found'),
            'CreateContainerConfigError: secret "etcd-login" not found.',
        ),
        (
            waiting("CrashLoopBackOff", "back-off 40s restarting failed container", ended=4),
            "CrashLoopBackOff: the last container exited with code 4.",
        ),
        (
            waiting("CrashLoopBackOff", ended=2, wrote='{"event":"x"}\nottla-broker: num.partitions is no number.\n'),
            "CrashLoopBackOff: ottla-broker: num.partitions is no number.",
        ),
        (waiting("CrashLoopBackOff", ended=2, wrote="did you mean x?"), "CrashLoopBackOff: did you mean x?"),
        (waiting("CrashLoopBackOff", ended=1, wrote=" \n"), "CrashLoopBackOff: the last container exited with code 1."),
    ],
)  # fmt: skip
def test_what_keeps_a_container(status: dict[str, Any], said: str) -> None:
    assert trouble_of(pod(**status)) == said


def test_what_keeps_a_pod_from_a_node() -> None:
    row = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes: too full.",
    }
    assert trouble_of(pod(conditions=[row])) == "Unschedulable: 0/3 nodes: too full."


def test_the_first_that_has_any_is_named() -> None:
    well, ill = pod("a"), pod("b", **waiting("ErrImagePull"))
    assert first_trouble([well, ill, pod("c", **waiting("ErrImagePull"))]) == "b: ErrImagePull."
    assert first_trouble([well]) == ""
    assert first_trouble([pod("d", **waiting("ContainerCreating")), ill]) == "b: ErrImagePull."
