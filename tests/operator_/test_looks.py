"""One look at a resource, against an API server and brokers in memory."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from operator_.bodies import cluster, group, topic
from operator_.twins import World
from ottla_operator.brokers import BrokersAway
from ottla_operator.clusters import ClusterLook
from ottla_operator.group_plan import SeenGroup, SeenMember
from ottla_operator.groups import GroupLook
from ottla_operator.kube import KubeError, path_of
from ottla_operator.plan import AlterTopic, CreateTopic, GrowTopic
from ottla_operator.pod_parts import Images
from ottla_operator.times import rfc3339
from ottla_operator.topics import SOON_S, TopicLook


@pytest.fixture
def world() -> World:
    made = World()
    made.put(cluster())
    return made


# ------------------------------------------------------------------ topics


async def test_a_topic_is_created_and_shown(world: World) -> None:
    key = world.put(topic(partitions=3, replicas=3, config={"retention.ms": 5}))
    delay_s = await TopicLook(world.tools, settled_s=30).look(key)
    assert delay_s == 30
    status = world.status("Topic", "orders")
    assert world.condition("Topic", "orders") == ("True", "Reconciled")
    assert (status["partitionCount"], status["inSync"], status["observedGeneration"]) == (3, "3/3", 1)
    assert world.kube.events == [("Applied", "Creating topic orders with 3 partitions.")]


async def test_a_second_look_writes_nothing(world: World) -> None:
    key = world.put(topic())
    look = TopicLook(world.tools)
    await look.look(key)
    before = world.sync("Topic", "orders")["metadata"]["resourceVersion"]
    world.clock.now += 60
    await look.look(key)
    assert world.sync("Topic", "orders")["metadata"]["resourceVersion"] == before


async def test_drift_is_undone_and_reported(world: World) -> None:
    key = world.put(topic(config={"retention.ms": 5}))
    look = TopicLook(world.tools)
    await look.look(key)
    world.sync("Topic", "orders")
    await world.brokers.do(AlterTopic("orders", {"retention.ms": "9", "segment.bytes": "1"}))
    await look.look(key)
    assert world.brokers.topics["orders"].overrides == {"retention.ms": "5"}
    assert world.kube.events[-1][0] == "DriftRepaired"


async def test_a_decrease_changes_nothing_and_says_why(world: World) -> None:
    await world.brokers.do(CreateTopic("orders", 4, 3, {}))
    world.brokers.done.clear()
    key = world.put(topic(partitions=2, config={"retention.ms": 5}))
    await TopicLook(world.tools).look(key)
    assert world.brokers.done == []
    assert world.condition("Topic", "orders") == ("False", "PartitionDecrease")
    assert world.kube.events[-1][0] == "PartitionDecrease"
    assert world.status("Topic", "orders")["partitionCount"] == 4, "what is there is still shown"


async def test_what_a_broker_refuses_becomes_a_condition(world: World) -> None:
    key = world.put(topic(replicas=5))
    await TopicLook(world.tools).look(key)
    assert world.condition("Topic", "orders") == ("False", "InvalidReplicationFactor")


async def test_the_older_resource_wins(world: World) -> None:
    old = world.put(topic("first", topicName="orders", partitions=2))
    young = topic("second", topicName="orders", partitions=9)
    young["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    key = world.put(young)
    look = TopicLook(world.tools)
    await look.look(key)
    await look.look(old)
    assert world.condition("Topic", "second") == ("False", "Conflict")
    assert len(world.brokers.topics["orders"].partitions) == 2
    world.cast.remove("Topic", key)
    await look.remove(young)
    assert "orders" in world.brokers.topics, "the topic is not this resource's"
    world.put(young)
    first = world.sync("Topic", "first")
    world.cast.remove("Topic", old)
    await look.remove(first)
    assert "orders" in world.brokers.topics, "another resource claims it: no record is lost"
    await look.look(key)
    assert len(world.brokers.topics["orders"].partitions) == 9, "the next in line takes over"
    world.cast.remove("Topic", key)
    await look.remove(world.kube.find("Topic", "second"))
    assert "orders" not in world.brokers.topics


async def test_paused_means_hands_off(world: World) -> None:
    body = topic()
    body["metadata"]["annotations"] = {"ottla.dev/paused": "true"}
    key = world.put(body)
    look = TopicLook(world.tools)
    await look.look(key)
    assert world.brokers.done == []
    assert world.condition("Topic", "orders") == ("False", "Paused")


async def test_silent_brokers_keep_what_was_known(world: World) -> None:
    key = world.put(topic())
    look = TopicLook(world.tools)
    await look.look(key)
    world.sync("Topic", "orders")
    world.links.brokers = None
    assert await look.look(key) == SOON_S
    assert world.condition("Topic", "orders") == ("False", "BrokersAway")
    assert world.status("Topic", "orders")["topicId"] == "id-1"


async def test_without_its_cluster_a_topic_waits_and_can_go() -> None:
    world = World()
    key = world.put(topic())
    look = TopicLook(world.tools)
    world.links.brokers = None
    await look.look(key)
    assert world.condition("Topic", "orders") == ("False", "NoCluster")
    await look.remove(world.sync("Topic", "orders"))  # returns: nothing to wait for


async def test_a_cluster_under_deletion_delays_no_other_resource(world: World) -> None:
    world.links.brokers = None
    key_body = topic() | {"status": {"topicId": "id-1"}}
    with pytest.raises(BrokersAway):
        await TopicLook(world.tools).remove(key_body)
    going = cluster()
    going["metadata"]["deletionTimestamp"] = "2026-03-01T00:00:00Z"
    world.put(going)
    await TopicLook(world.tools).remove(key_body)


async def test_retained_topics_stay(world: World) -> None:
    key = world.put(topic(deletionPolicy="Retain"))
    look = TopicLook(world.tools)
    await look.look(key)
    await look.remove(world.sync("Topic", "orders"))
    assert "orders" in world.brokers.topics


async def test_a_topic_deleted_behind_the_operator_is_a_warning(world: World) -> None:
    """It comes back without its records: that is not a repair."""
    key = world.put(topic())
    look = TopicLook(world.tools)
    await look.look(key)
    world.sync("Topic", "orders")
    del world.brokers.topics["orders"]
    await look.look(key)
    await look.look(key)  # without world.sync: the cache still shows the old id
    assert world.kube.warnings == ["RecordsLost"]
    assert "DriftRepaired" not in [reason for reason, _ in world.kube.events]
    message = next(message for reason, message in world.kube.events if reason == "RecordsLost")
    assert "records are lost" in message and "empty" in message


async def test_growing(world: World) -> None:
    await world.brokers.do(CreateTopic("orders", 2, 3, {}))
    key = world.put(topic(partitions=6))
    await TopicLook(world.tools).look(key)
    assert world.brokers.done[-1] == GrowTopic("orders", 6)
    assert world.status("Topic", "orders")["partitionCount"] == 6


# ------------------------------------------------------------------ groups

MEMBER = SeenMember("m-1", "", "app", "10.0.0.1", 10_000, 60_000, (("orders", 0),))


def read_by(world: World, *members: SeenMember) -> None:
    world.brokers.seen_group = SeenGroup(
        "billing",
        "Stable" if members else "Empty",
        "range" if members else "",
        2,
        1,
        members,
        {("orders", 0): 4},
        ends={("orders", 0): 9},
        starts={("orders", 0): 1},
    )


def earliest(**more: Any) -> dict[str, Any]:
    return {"id": "one", "to": "earliest", **more}


async def test_a_group_shows_members_and_lag(world: World) -> None:
    read_by(world, MEMBER)
    key = world.put(group(assignor="roundrobin"))
    await GroupLook(world.tools).look(key)
    status = world.status("ConsumerGroup", "billing")
    assert (status["state"], status["totalLag"], status["memberCount"]) == ("Stable", 5, 1)
    assert status["members"][0]["partitions"] == ["orders-0"]
    assert world.condition("ConsumerGroup", "billing", "SettingsApplied") == ("Unknown", "Pending")


async def test_lag_is_counted_while_it_is_known(world: World) -> None:
    def counted() -> list[float | None]:
        labels = {"consumergroup_namespace": "shop", "consumergroup": "billing"}
        names = ("ottla_operator_group_lag", "ottla_operator_group_members")
        return [REGISTRY.get_sample_value(name, labels) for name in names]

    read_by(world, MEMBER)
    key = world.put(group())
    await GroupLook(world.tools).look(key)
    assert counted() == [5, 1]
    world.links.brokers = None
    await GroupLook(world.tools).look(key)
    assert counted() == [None, None]


async def test_a_reset_is_done_once(world: World) -> None:
    read_by(world)
    key = world.put(group(offsetReset=earliest()))
    look = GroupLook(world.tools)
    await look.look(key)
    row = world.status("ConsumerGroup", "billing")["offsetReset"]
    assert (row["state"], row["moved"][0]["from"], row["moved"][0]["to"]) == ("Done", 4, 1)
    assert world.condition("ConsumerGroup", "billing", "OffsetsReset") == ("True", "Done")
    await look.look(key)
    assert world.brokers.commits == [{("orders", 0): 1}]


async def test_a_reset_is_done_once_even_if_the_watch_lags(world: World) -> None:
    read_by(world)
    key = world.put(group(offsetReset=earliest()))
    look = GroupLook(world.tools)
    await look.look(key)
    world.brokers.seen_group = replace(world.brokers.seen_group, committed={("orders", 0): 8})
    await look.look(key)  # without world.sync: the cache still shows no reset at all
    assert world.brokers.commits == [{("orders", 0): 1}]


async def test_a_reset_is_refused_or_waits_while_members_are_active(world: World) -> None:
    read_by(world, MEMBER)
    look = GroupLook(world.tools)
    await look.look(world.put(group(offsetReset=earliest())))
    assert world.condition("ConsumerGroup", "billing", "OffsetsReset") == ("False", "Refused")
    key = world.put(group(offsetReset=earliest(id="two", whenActive="Wait")))
    await look.look(key)
    assert world.condition("ConsumerGroup", "billing", "OffsetsReset") == ("Unknown", "Waiting")
    assert world.brokers.commits == []
    read_by(world)
    await look.look(key)
    assert world.brokers.commits == [{("orders", 0): 1}]
    assert world.condition("ConsumerGroup", "billing", "OffsetsReset") == ("True", "Done")


async def test_a_reset_to_a_time(world: World) -> None:
    read_by(world)
    key = world.put(group(offsetReset=earliest(to="time", time="2026-01-01T00:00:00Z")))
    await GroupLook(world.tools).look(key)
    assert world.brokers.commits == [{("orders", 0): 2}]


@pytest.mark.parametrize(
    ("members", "reset", "reason"),
    [
        ((MEMBER,), {}, "OffsetsResetRefused"),
        ((), {"topics": ["nowhere"]}, "OffsetsResetFailed"),
    ],
)
async def test_a_failed_reset_is_not_ready(
    world: World, members: tuple[SeenMember, ...], reset: dict[str, Any], reason: str
) -> None:
    read_by(world, *members)
    key = world.put(group(offsetReset=earliest(**reset)))
    await GroupLook(world.tools).look(key)
    assert world.condition("ConsumerGroup", "billing") == ("False", reason)
    world.put(group(offsetReset=None))
    await GroupLook(world.tools).look(key)
    assert world.condition("ConsumerGroup", "billing")[0] == "True", "withdrawn"


async def test_a_group_that_was_never_used(world: World) -> None:
    world.brokers.seen_group = SeenGroup("billing", "Dead")
    await GroupLook(world.tools).look(world.put(group()))
    assert world.status("ConsumerGroup", "billing")["state"] == "NotUsed"
    assert world.condition("ConsumerGroup", "billing") == ("False", "NotUsed")


async def test_an_impossible_reset_is_reported(world: World) -> None:
    key = world.put(group(offsetReset=earliest(to="time", time="soon")))
    await GroupLook(world.tools).look(key)
    assert world.condition("ConsumerGroup", "billing") == ("False", "InvalidSpec")


# ------------------------------------------------------------------ clusters


def pod(world: World, number: int, *, revision: str = "r1", ready: bool = True) -> None:
    labels = {
        "app.kubernetes.io/name": "ottla",
        "app.kubernetes.io/component": "broker",
        "ottla.dev/cluster": "main",
        "controller-revision-hash": revision,
    }
    name = f"main-broker-{number}"
    world.kube.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "shop", "uid": f"uid-{name}", "labels": labels},
            "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
        }
    )


def settle(world: World, revision: str = "r1") -> None:
    found = world.kube.find("StatefulSet", "main-broker")
    found["metadata"]["generation"] = 1
    found["status"] = {"observedGeneration": 1, "updateRevision": revision}


@pytest.fixture
async def running(world: World) -> World:
    await ClusterLook(world.tools, Images("b:1", "e:1")).look(("shop", "main"))
    settle(world)
    for number in range(3):
        pod(world, number)
    return world


async def test_a_new_cluster_gets_its_objects(world: World) -> None:
    await ClusterLook(world.tools, Images("b:1", "e:1")).look(("shop", "main"))
    kinds = sorted(each["kind"] for each in world.kube.objects.values())
    services = ["bootstrap", "brokers", "broker-0", "broker-1", "broker-2", "etcd", "etcd-0"]
    assert all(world.kube.find("Service", f"main-{name}") for name in services)
    assert kinds == [
        "Cluster", "ConfigMap", "PodDisruptionBudget", "Secret", *["Service"] * len(services), "StatefulSet",
        "StatefulSet",
    ]  # fmt: skip
    assert world.condition("Cluster", "main") == ("False", "Starting")


async def test_a_cluster_becomes_ready(running: World) -> None:
    await ClusterLook(running.tools, Images("b:1", "e:1")).look(("shop", "main"))
    status = running.status("Cluster", "main")
    assert running.condition("Cluster", "main") == ("True", "Reconciled")
    assert (status["readyBrokers"], status["clusterId"], status["controller"]) == (3, "cluster-id", 0)
    assert status["bootstrap"]["kafka"] == "main-bootstrap.shop.svc:9092"


async def test_what_keeps_pods_is_said_in_the_condition(running: World) -> None:
    """The etcd's first: brokers that wait for it are no news."""
    for component, reason in (("etcd", "ImagePullBackOff"), ("broker", "CrashLoopBackOff")):
        found = running.kube.find("StatefulSet", f"main-{component}")["spec"]["template"]["metadata"][
            "labels"
        ]
        name = f"main-{component}-0"
        running.kube.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "shop", "uid": f"uid-{name}", "labels": found},
                "status": {"containerStatuses": [{"state": {"waiting": {"reason": reason}}}]},
            }
        )
    await ClusterLook(running.tools, Images("b:1", "e:1")).look(("shop", "main"))
    row, *_ = running.status("Cluster", "main")["conditions"]
    assert row["message"] == "2 of 3 brokers are ready. main-etcd-0: ImagePullBackOff."


async def test_brokers_are_replaced_one_by_one_and_the_controller_last(running: World) -> None:
    settle(running, "r2")
    await running.brokers.do(CreateTopic("orders", 3, 3, {}))
    look = ClusterLook(running.tools, Images("b:1", "e:1"))
    for expected in (1, 2, 0):
        await look.look(("shop", "main"))
        await look.look(("shop", "main"))  # while it is away, nothing else happens
        assert running.kube.deleted[-1] == f"main-broker-{expected}"
        pod(running, expected, revision="r2")
    await look.look(("shop", "main"))
    assert len(running.kube.deleted) == 3
    running.sync("Cluster", "main")
    assert running.condition("Cluster", "main") == ("True", "Reconciled")


async def test_pods_that_never_came_up_are_replaced_without_a_flood_of_events(running: World) -> None:
    """As after a Secret that was misspelled: the reason does not change with every look."""
    settle(running, "r2")
    for number in range(3):
        pod(running, number, ready=False)
    look = ClusterLook(running.tools, Images("b:1", "e:1"))
    running.kube.events.clear()
    for number in range(3):
        await look.look(("shop", "main"))
        running.sync("Cluster", "main")
        pod(running, number, ready=False)  # it takes its time to go
        running.kube.find("Pod", f"main-broker-{number}")["metadata"]["deletionTimestamp"] = "now"
        await look.look(("shop", "main"))
        running.sync("Cluster", "main")
        pod(running, number, revision="r2", ready=False)
    await look.look(("shop", "main"))
    reasons = [reason for reason, _ in running.kube.events]
    assert [each for each in reasons if each != "Restarting"] == ["Rolling", "Starting"]


async def test_no_broker_is_replaced_while_replicas_lag(running: World) -> None:
    settle(running, "r2")
    await running.brokers.do(CreateTopic("orders", 1, 3, {}))
    there = running.brokers.topics["orders"]
    lagging = (replace(there.partitions[0], isr=(1, 2)),)
    running.brokers.topics["orders"] = replace(there, partitions=lagging)
    pod(running, 0, revision="r2")
    await ClusterLook(running.tools, Images("b:1", "e:1")).look(("shop", "main"))
    assert running.kube.deleted == []
    assert running.condition("Cluster", "main") == ("True", "Rolling")


async def test_a_foreign_change_is_undone_and_reported(running: World) -> None:
    look = ClusterLook(running.tools, Images("b:1", "e:1"), settled_s=30)
    await look.look(("shop", "main"))
    running.sync("Cluster", "main")
    running.kube.find("ConfigMap", "main-config")["data"] = {"ottla.properties": "x=y"}
    running.clock.now += 60
    await look.look(("shop", "main"))
    assert "x=y" not in running.kube.find("ConfigMap", "main-config")["data"]["ottla.properties"]
    restored = "ConfigMap main-config was changed or deleted by another client; restored."
    assert running.kube.events[-1] == ("DriftRepaired", restored)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"resources": {"requests": {"memory": "lots"}}}, "resources.requests.memory is 'lots'"),
        ({"etcd": {"managed": {"resources": {"limits": {"cpu": "1 core"}}}}}, "etcd.managed.resources.limits.cpu"),
        ({"config": {"log.retention.hors": 1}}, "not a broker setting. Did you mean log.retention.hours?"),
        ({"config": {"num.partitions": "many"}}, "num.partitions to 'many': it must be a whole number from 1"),
        ({"config": {"min.insync.replicas": 4}}, "default.replication.factor (3) must be at least"),
    ],
    ids=str,
)  # fmt: skip
async def test_a_spec_that_brokers_could_not_start_with_changes_nothing(
    running: World, spec: dict[str, Any], message: str
) -> None:
    look = ClusterLook(running.tools, Images("b:1", "e:1"))
    before = copy.deepcopy(running.kube.find("StatefulSet", "main-broker"))
    running.put(cluster(**spec))
    await look.look(("shop", "main"))
    row, *_ = running.status("Cluster", "main")["conditions"]
    assert (row["status"], row["reason"]) == ("False", "InvalidSpec")
    assert message in row["message"]
    assert running.kube.find("StatefulSet", "main-broker") == before and running.kube.deleted == []


async def test_an_image_of_ones_own_may_know_more_settings(running: World) -> None:
    running.put(cluster(image="mine:2", config={"a.new.setting": 1}))
    await ClusterLook(running.tools, Images("b:1", "e:1")).look(("shop", "main"))
    assert "a.new.setting=1" in running.kube.find("ConfigMap", "main-config")["data"]["ottla.properties"]


async def test_a_renumbered_port_is_replaced(running: World) -> None:
    """Server-side apply would keep it beside ours, and two ports cannot have one name."""
    path = path_of("v1", "Service", "shop", "main-bootstrap")
    running.kube.refusals[path] = [KubeError(422, 'Duplicate value: "kafka"')]
    await ClusterLook(running.tools, Images("b:1", "e:1")).look(("shop", "main"))
    kinds = [kind for at, kind in running.kube.patches if at == path][-3:]
    assert kinds == [
        "application/apply-patch+yaml",
        "application/merge-patch+json",
        "application/apply-patch+yaml",
    ]
    assert running.condition("Cluster", "main") == ("True", "Reconciled")


async def test_what_is_refused_of_one_object_holds_up_no_other(running: World) -> None:
    path = path_of("v1", "Service", "shop", "main-brokers")
    refused = KubeError(422, "Service is invalid: no.")
    running.kube.refusals[path] = [refused, refused]
    running.kube.find("StatefulSet", "main-etcd")["spec"]["replicas"] = 9
    await ClusterLook(running.tools, Images("b:1", "e:1")).look(("shop", "main"))
    row, *_ = running.status("Cluster", "main")["conditions"]
    assert row["reason"] == "Refused" and "Service main-brokers: Service is invalid: no." in row["message"]
    assert running.status("Cluster", "main")["readyBrokers"] == 3
    assert running.kube.find("StatefulSet", "main-etcd")["spec"]["replicas"] == 1


# ------------------------------------------------------------------ more and fewer brokers


def scale(world: World, brokers: int) -> None:
    body = copy.deepcopy(world.sync("Cluster", "main"))
    body["spec"]["brokers"] = brokers
    body["metadata"]["generation"] += 1
    world.put(body)


async def look_until(world: World, look: ClusterLook, reason: str) -> None:
    for _ in range(20):
        await look.look(("shop", "main"))
        if world.condition("Cluster", "main", "Scaled")[1] == reason:
            return
    raise AssertionError(world.status("Cluster", "main"))


async def test_brokers_are_added_spread_drained_and_removed(running: World) -> None:
    look = ClusterLook(running.tools, Images("b:1", "e:1"))
    await running.brokers.do(CreateTopic("orders", 8, 3, {}))
    await look.look(("shop", "main"))
    assert running.condition("Cluster", "main", "Scaled") == ("True", "AsSpecified")

    scale(running, 4)
    await look_until(running, look, "Starting")
    assert running.kube.find("StatefulSet", "main-broker")["spec"]["replicas"] == 4
    settle(running)
    pod(running, 3)
    running.brokers.directories[3] = ("dir-3",)
    running.brokers.members.add(3)
    await look_until(running, look, "AsSpecified")
    assert (await running.brokers.layout()).held_by(3) == 6
    assert running.status("Cluster", "main")["scaledTo"] == 4

    scale(running, 3)
    await look_until(running, look, "Draining")
    assert running.brokers.cordoned == {3}
    assert running.kube.find("StatefulSet", "main-broker")["spec"]["replicas"] == 4
    await look_until(running, look, "Drained")
    assert (await running.brokers.layout()).held_by(3) == 0
    assert running.kube.find("StatefulSet", "main-broker")["spec"]["replicas"] == 4, "seen only once"
    await look.look(("shop", "main"))
    assert running.kube.find("StatefulSet", "main-broker")["spec"]["replicas"] == 3
    await look_until(running, look, "Removing")
    assert 3 in running.brokers.members, "it is still stopping"
    del running.brokers.directories[3]
    await look_until(running, look, "AsSpecified")
    assert running.brokers.members == {0, 1, 2}
    assert {"Spreading", "Draining", "BrokerRemoved"} <= {reason for reason, _ in running.kube.events}


async def test_a_removal_that_the_rest_cannot_hold_is_refused(running: World) -> None:
    look = ClusterLook(running.tools, Images("b:1", "e:1"))
    await running.brokers.do(CreateTopic("orders", 1, 3, {}))
    await look.look(("shop", "main"))
    scale(running, 2)
    await look.look(("shop", "main"))
    assert running.condition("Cluster", "main") == ("False", "ScalingRefused")
    assert running.condition("Cluster", "main", "Scaled") == ("False", "Refused")
    assert running.kube.find("StatefulSet", "main-broker")["spec"]["replicas"] == 3
    assert running.brokers.cordoned == set()
    scale(running, 3)
    await look.look(("shop", "main"))
    assert running.condition("Cluster", "main") == ("True", "Reconciled")


async def test_a_drain_moves_partitions_that_their_topic_does_not_place(running: World) -> None:
    look = ClusterLook(running.tools, Images("b:1", "e:1"))
    await running.brokers.do(CreateTopic("orders", 3, 1, {}, {0: (0,), 1: (2,), 2: (1,)}))
    running.put(topic(partitions=3, assignment=[{"partition": 0, "brokers": [0]}]))
    await look.look(("shop", "main"))
    scale(running, 2)
    await look_until(running, look, "Drained")
    assert (await running.brokers.layout()).held_by(2) == 0
    assert running.brokers.topics["orders"].partitions[0].replicas == (0,)


async def test_a_broker_with_a_declared_partition_does_not_leave(running: World) -> None:
    look = ClusterLook(running.tools, Images("b:1", "e:1"))
    await running.brokers.do(CreateTopic("orders", 3, 1, {}, {0: (0,), 1: (2,), 2: (1,)}))
    running.put(topic(partitions=3, assignment=[{"partition": 1, "brokers": [2]}]))
    await look.look(("shop", "main"))
    scale(running, 2)
    await look_until(running, look, "Refused")
    message = condition_message(running)
    assert "orders-1 has a declared placement" in message and running.brokers.cordoned == set()


def condition_message(world: World) -> str:
    rows = world.status("Cluster", "main")["conditions"]
    return str(next(each["message"] for each in rows if each["type"] == "Scaled"))


async def test_no_pod_is_removed_while_no_broker_answers(running: World) -> None:
    look = ClusterLook(running.tools, Images("b:1", "e:1"))
    await look.look(("shop", "main"))
    running.links.brokers = None
    scale(running, 2)
    for _ in range(4):
        await look.look(("shop", "main"))
        running.sync("Cluster", "main")
    assert running.kube.find("StatefulSet", "main-broker")["spec"]["replicas"] == 3


async def test_a_broker_with_an_empty_volume_is_a_warning(running: World) -> None:
    look = ClusterLook(running.tools, Images("b:1", "e:1"))
    await look.look(("shop", "main"))
    assert running.status("Cluster", "main")["brokers"][1]["directories"] == ["dir-1"]
    del running.brokers.directories[1]  # while it is offline, nothing is known
    await look.look(("shop", "main"))
    assert running.status("Cluster", "main")["brokers"][1]["directories"] == ["dir-1"]
    running.brokers.directories[1] = ("dir-9",)
    await look.look(("shop", "main"))
    await look.look(("shop", "main"))  # without the watch: the status that it sees is old
    running.sync("Cluster", "main")
    await look.look(("shop", "main"))
    assert running.kube.warnings.count("VolumeReplaced") == 1
    message = next(message for reason, message in running.kube.events if reason == "VolumeReplaced")
    assert message.startswith("Broker 1 started without its log directory dir-1")
    assert running.status("Cluster", "main")["brokers"][1]["directories"] == ["dir-9"]


async def test_a_cluster_that_goes_is_let_go(world: World) -> None:
    world.cast.remove("Cluster", ("shop", "main"))
    assert await ClusterLook(world.tools, Images("b:1", "e:1")).look(("shop", "main")) is None
    assert world.links.forgotten == [("shop", "main")]


# ------------------------------------------------------------------ racks


def node(world: World, name: str, **labels: str) -> None:
    named = {key.replace("_", "/"): value for key, value in labels.items()}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "namespace": "", "labels": named}}
    world.kube.put(body)


async def test_racks_are_written_for_every_node() -> None:
    world = World()
    node(world, "a", room_1="x")
    node(world, "b")
    key = world.put(cluster(rack={"topologyKey": "room/1"}))
    look = ClusterLook(world.tools, Images("broker:1", "etcd:1"))
    await look.look(key)
    assert world.kube.find("ConfigMap", "main-racks")["data"] == {"a": "x", "b": ""}
    assert world.kube.warnings.count("RackUnknown") == 1
    message = next(message for reason, message in world.kube.events if reason == "RackUnknown")
    assert message.startswith("1 of 2 nodes have no label room/1 (b)")
    node(world, "b", room_1="y")
    world.clock.now += 16
    await look.look(key)
    assert world.kube.find("ConfigMap", "main-racks")["data"] == {"a": "x", "b": "y"}
    reasons = [reason for reason, _ in world.kube.events]
    assert reasons.count("RackUnknown") == 1 and "DriftRepaired" not in reasons


async def test_a_node_that_joined_just_now_may_still_get_its_label() -> None:
    """A broker that read an empty rack would keep it until its next start."""
    world = World()
    node(world, "a", room_1="x")
    node(world, "b")
    world.kube.find("Node", "b")["metadata"]["creationTimestamp"] = rfc3339(world.clock.wall_ms())
    key = world.put(cluster(rack={"topologyKey": "room/1"}))
    look = ClusterLook(world.tools, Images("broker:1", "etcd:1"))
    for after_s, expected in ((0, {"a": "x"}), (100, {"a": "x"}), (30, {"a": "x", "b": ""})):
        world.clock.now += after_s
        await look.look(key)
        assert world.kube.find("ConfigMap", "main-racks")["data"] == expected
    assert world.kube.warnings.count("RackUnknown") == 1


async def test_racks_need_the_right_to_list_nodes() -> None:
    """Without it nothing is applied: pods would wait for a ConfigMap that never comes."""
    world = World()
    world.kube.forbidden.add("nodes")
    key = world.put(cluster(rack={}))
    await ClusterLook(world.tools, Images("broker:1", "etcd:1")).look(key)
    assert world.condition("Cluster", "main") == ("False", "Forbidden")
    rows = world.status("Cluster", "main")["conditions"]
    assert "operator.nodes=true" in rows[0]["message"]
    assert not any("statefulsets" in path for path in world.kube.objects)


# ------------------------------------------------------------------ the secret of the brokers


def secret_of(world: World) -> str:
    made: str = world.kube.find("Secret", "main-cluster-secret")["stringData"]["secret"]
    return made


async def test_brokers_get_a_secret_once() -> None:
    world = World()
    key = world.put(cluster())
    look = ClusterLook(world.tools, Images("broker:1", "etcd:1"))
    await look.look(key)
    first = secret_of(world)
    assert len(first) == 64
    for _ in range(3):
        world.clock.now += 601
        await look.look(key)
    await ClusterLook(world.tools, Images("broker:1", "etcd:1")).look(key)  # The operator has started again.
    assert secret_of(world) == first


async def test_a_deleted_secret_is_made_again_so_that_pods_can_start() -> None:
    world = World()
    key = world.put(cluster())
    look = ClusterLook(world.tools, Images("broker:1", "etcd:1"))
    await look.look(key)
    path = next(at for at in world.kube.objects if at.endswith("/secrets/main-cluster-secret"))
    del world.kube.objects[path]
    world.clock.now += 601
    await look.look(key)
    assert len(secret_of(world)) == 64


async def test_each_cluster_has_its_own_secret() -> None:
    worlds = [World(), World()]
    for world in worlds:
        await ClusterLook(world.tools, Images("broker:1", "etcd:1")).look(world.put(cluster()))
    assert secret_of(worlds[0]) != secret_of(worlds[1])
