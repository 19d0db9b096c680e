from __future__ import annotations

import copy
from typing import Any

from operator_.bodies import cluster, topic
from operator_.twins import HandClock, MemoryKube
from ottla_operator.cast import CLUSTER, TOPIC
from ottla_operator.control import Control
from ottla_operator.kube import path_of
from ottla_operator.settings import Settings


async def test_what_went_while_no_watch_looked_is_let_go() -> None:
    """A watch that begins anew lists what there is; what was deleted in between it never mentions."""
    kube: Any = MemoryKube()
    control = Control(Settings.of({"OTTLA_OPERATOR_NAMESPACES": "shop"}), kube, HandClock())
    cast = control._cast
    for kind, body in (
        (CLUSTER, cluster()),
        (TOPIC, topic("stays")),
        (TOPIC, topic("went")),
        (TOPIC, topic("anew")),
    ):
        kube.put(body)
        control.seen(kind, copy.deepcopy(body))
    path = path_of("ottla.dev/v1alpha1", "Topic", "shop", "")
    del kube.objects[f"{path}/went"]
    kube.objects[f"{path}/anew"]["metadata"]["uid"] = "another"
    control.seen(TOPIC, copy.deepcopy(kube.objects[f"{path}/anew"]))
    await control.sweep()
    assert [name for _, name in cast.bodies[TOPIC]] == ["stays", "anew"]
    assert list(cast.bodies[CLUSTER]) == [("shop", "main")]


async def test_who_cannot_go_says_what_it_waits_for() -> None:
    kube: Any = MemoryKube()
    control = Control(Settings.of({}), kube, HandClock())
    body = topic()
    body["status"] = {"topicId": "kept", "conditions": []}
    kube.put(body)
    await control.cannot_go(body, "The brokers of main do not answer.")
    status = kube.find("Topic", "orders")["status"]
    (ready,) = status["conditions"]
    assert (ready["reason"], status["topicId"]) == ("CannotGo", "kept")
    assert (
        ready["message"].startswith("The brokers of main do not answer. ")
        and "ottla.dev/paused" in ready["message"]
    )
    assert [reason for reason, _ in kube.events] == ["CannotGo"]
