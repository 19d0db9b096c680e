from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from operator_.bodies import cluster, topic
from operator_.twins import HandClock, MemoryBrokers, MemoryKube, MemoryLinks
from ottla_operator.cast import CLUSTER, TOPIC
from ottla_operator.control import Control
from ottla_operator.kube import path_of
from ottla_operator.plan import CreateTopic
from ottla_operator.schedule import Key
from ottla_operator.settings import Settings


async def test_what_went_while_no_watch_looked_is_let_go() -> None:
    """A watch that starts again lists what there is; what was deleted in between it never mentions."""
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


class Controlled:
    """A Control whose schedule is not run: what is due is looked at by hand."""

    def __init__(self) -> None:
        self.kube: Any = MemoryKube()
        self.clock = HandClock()
        self.control = Control(Settings.of({"OTTLA_OPERATOR_NAMESPACES": "shop"}), self.kube, self.clock)
        self.brokers = MemoryBrokers()
        self.links = MemoryLinks(self.brokers)
        object.__setattr__(self.control._tools, "links", self.links)

    def put(self, body: dict[str, Any]) -> dict[str, Any]:
        self.kube.put(body)
        self.control.seen(body["kind"], copy.deepcopy(body))
        return body

    async def look(self) -> list[Key]:
        """At everything that is due now; what that was."""
        schedule = self.control._schedule
        now = self.clock.monotonic()
        due = sorted(key for key, at in schedule._due.items() if at <= now)
        for key in due:
            del schedule._due[key]
            delay_s = await self.control._look(key)
            if delay_s is not None:
                schedule._set(key, now + delay_s)
        return due

    def delete(self, kind: str, name: str) -> None:
        body = self.kube.find(kind, name)
        meta = body["metadata"]
        del self.kube.objects[path_of(body["apiVersion"], kind, meta["namespace"], name)]
        self.control.seen(kind, copy.deepcopy(body), gone=True)

    async def run_for(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            await self.look()
            self.clock.now += 0.5


async def test_a_deleted_topic_is_deleted_on_the_brokers_without_a_finalizer() -> None:
    world = Controlled()
    world.put(cluster())
    world.put(topic())
    await world.look()
    assert "orders" in world.brokers.topics
    assert "finalizers" not in world.kube.find("Topic", "orders")["metadata"]
    world.delete("Topic", "orders")
    await world.look()
    assert "orders" not in world.brokers.topics


async def test_a_removal_is_tried_again_until_the_brokers_answer() -> None:
    world = Controlled()
    world.put(cluster())
    world.put(topic())
    await world.look()
    brokers, world.links.brokers = world.links.brokers, None
    world.delete("Topic", "orders")
    await world.run_for(20)
    assert world.kube.warnings.count("RemovalFailed") == 1, "one event, not one for each attempt"
    world.links.brokers = brokers
    await world.run_for(40)
    assert "orders" not in world.brokers.topics


async def test_a_topic_that_was_created_again_is_not_deleted_by_an_old_removal() -> None:
    world = Controlled()
    world.put(cluster())
    world.put(topic())
    await world.look()
    brokers, world.links.brokers = world.links.brokers, None
    world.delete("Topic", "orders")
    await world.run_for(5)
    world.links.brokers = brokers
    del world.brokers.topics["orders"]
    await world.brokers.do(CreateTopic("orders", 2, 3, {}))
    await world.run_for(40)
    assert len(world.brokers.topics["orders"].partitions) == 2


async def test_with_its_cluster_gone_there_is_nothing_left_to_remove() -> None:
    world = Controlled()
    world.put(cluster())
    world.put(topic())
    await world.look()
    world.links.brokers = None
    world.delete("Cluster", "main")
    world.delete("Topic", "orders")
    await world.run_for(2)
    assert "RemovalFailed" not in world.kube.warnings
    assert not [key for key in world.control._schedule._due if key[0] == "Removal"]


async def test_finalizers_of_earlier_versions_are_taken_off() -> None:
    """Whoever deletes a namespace with the operator in it has nobody to take them off later."""
    world = Controlled()
    old = topic()
    old["metadata"]["finalizers"] = ["ottla.dev/brokers", "somebody.else/own"]
    world.kube.put(old)
    await world.control.start()
    await world.control.stop()
    assert world.kube.find("Topic", "orders")["metadata"]["finalizers"] == ["somebody.else/own"]


async def test_topics_show_at_once_that_their_cluster_was_deleted() -> None:
    world = Controlled()
    world.put(cluster())
    world.put(topic())
    await world.look()
    world.control.seen("Topic", copy.deepcopy(world.kube.find("Topic", "orders")))
    world.delete("Cluster", "main")
    await world.look()
    status = world.kube.find("Topic", "orders")["status"]
    (ready,) = status["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "NoCluster")
    assert "inSync" not in status, "nobody knows"


async def test_in_sync_follows_within_seconds() -> None:
    world = Controlled()
    world.put(cluster())
    world.put(topic(partitions=2))
    await world.run_for(4)
    assert world.kube.find("Topic", "orders")["status"]["inSync"] == "2/2"
    there = world.brokers.topics["orders"]
    lost = tuple(replace(each, isr=(0, 1)) for each in there.partitions)
    world.brokers.topics["orders"] = replace(there, partitions=lost)
    await world.run_for(4)
    assert world.kube.find("Topic", "orders")["status"]["inSync"] == "0/2"
    world.links.brokers = None
    await world.run_for(4)
    (ready,) = world.kube.find("Topic", "orders")["status"]["conditions"]
    assert ready["reason"] == "BrokersAway"
