"""The operator as a process, with the rights of its manifests, against a real kube-apiserver and a real broker."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from operator_.api_server import ADMIN, LIMITED, OPERATOR, ApiError, ApiServer, find_program, path_of
from operator_.bodies import ROOT, cluster, group, sample, topic
from ottla_cli.free_ports import free_ports
from ottla_cli.local_cluster import LocalCluster
from ottla_client import TopicPartition
from ottla_client.sync import Admin, Consumer, Producer
from ottla_core.errors import RequestError
from ottla_operator.brokers import Brokers

PROGRAM = find_program()
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(PROGRAM is None, reason="no kube-apiserver on this machine; `make e2e` builds one"),
]
NAMESPACE = "shop"
NUMBERS = itertools.count()
SCALE = {"targetRef": {"name": "worker"}, "max": 3, "lagPerReplica": 100}
PIN = {"topic": "orders", "partition": 0, "instanceId": "worker-a"}
HELM = Path(sys.executable).parent / "helm"


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalCluster]:
    with LocalCluster() as made:
        yield made


class Operator:
    """The process; `kill` and `start` again at will."""

    def __init__(
        self, api: ApiServer, bootstrap: str, folder: Path, token: str = OPERATOR, namespaces: str = ""
    ) -> None:
        metrics, health = free_ports(2)
        self.metrics_url = f"http://127.0.0.1:{metrics}/metrics"
        self.health_url = f"http://127.0.0.1:{health}/healthz"
        self.log = folder / "operator.log"
        self._environ = {
            **os.environ,
            "KUBECONFIG": str(api.kubeconfig(token)),
            "OTTLA_OPERATOR_BOOTSTRAP": bootstrap,
            "OTTLA_OPERATOR_NAMESPACES": namespaces,
            "OTTLA_OPERATOR_METRICS_PORT": str(metrics),
            "OTTLA_OPERATOR_HEALTH_PORT": str(health),
            "OTTLA_OPERATOR_RESYNC_S": "2",
            "OTTLA_OPERATOR_GROUP_RESYNC_S": "1",
            "PYTHONWARNINGS": "default",
        }
        self.start()

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ottla_operator"], env=self._environ, stdout=log, stderr=log
            )

    def end(self, number: int = signal.SIGTERM) -> int:
        self._process.send_signal(number)
        return self._process.wait(20)


@pytest.fixture(scope="module")
def operator(
    api: ApiServer, broker: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    made = Operator(api, broker.grpc_bootstrap, tmp_path_factory.mktemp("operator"))
    apply(api, cluster(brokers=1))
    yield made
    made.end()
    text = made.log.read_text()
    assert "Traceback" not in text, text[-5000:]
    assert "is forbidden: user" not in text.lower(), f"a right is missing: {text[-5000:]}"


def until(holds: Callable[[], Any], timeout_s: float = 30) -> Any:
    deadline = time.monotonic() + timeout_s
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def apply(
    api: ApiServer, body: dict[str, Any], namespace: str = NAMESPACE, *, dry_run: bool = False
) -> dict[str, Any]:
    """Only what a person would write."""
    meta = {"name": body["metadata"]["name"], "namespace": namespace}
    if "finalizers" in body["metadata"]:
        meta["finalizers"] = body["metadata"]["finalizers"]
    if "annotations" in body["metadata"]:
        meta["annotations"] = body["metadata"]["annotations"]
    return api.apply({**body, "metadata": meta}, dry_run=dry_run)


def read(api: ApiServer, kind: str, name: str) -> dict[str, Any] | None:
    body = {"apiVersion": "ottla.dev/v1alpha1", "kind": kind, "metadata": {"name": name}}
    try:
        found: dict[str, Any] = api.request("GET", path_of(body, NAMESPACE))
    except ApiError as failed:
        if failed.code == 404:
            return None
        raise
    return found


def part(api: ApiServer, kind: str, name: str) -> dict[str, Any]:
    """An object of Kubernetes' own kinds; empty if there is none."""
    body = {
        "apiVersion": "apps/v1" if kind == "StatefulSet" else "v1",
        "kind": kind,
        "metadata": {"name": name},
    }
    try:
        found: dict[str, Any] = api.request("GET", path_of(body, NAMESPACE))
    except ApiError as failed:
        if failed.code == 404:
            return {}
        raise
    return found


def condition(api: ApiServer, kind: str, name: str, type_: str = "Ready") -> tuple[str, str] | None:
    status = (read(api, kind, name) or {}).get("status") or {}
    for row in status.get("conditions") or ():
        if (
            row["type"] == type_
            and row["observedGeneration"] == read(api, kind, name)["metadata"]["generation"]
        ):  # type: ignore[index]
            return row["status"], row["reason"]
    return None


def delete(api: ApiServer, kind: str, name: str) -> None:
    body = {"apiVersion": "ottla.dev/v1alpha1", "kind": kind, "metadata": {"name": name}}
    api.request("DELETE", path_of(body, NAMESPACE))


def events(api: ApiServer, name: str) -> list[str]:
    return [reason for _, reason in events_of(api, name)]


def events_of(api: ApiServer, name: str) -> list[tuple[str, str]]:
    found = api.request("GET", f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    return [(each["type"], each["reason"]) for each in found if each["involvedObject"]["name"] == name]


def message(api: ApiServer, kind: str, name: str, type_: str = "Ready") -> str:
    rows = read(api, kind, name)["status"]["conditions"]  # type: ignore[index]
    return str(next(row["message"] for row in rows if row["type"] == type_))


# ------------------------------------------------------------------ what the API server refuses by itself


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (cluster("bad", brokers=0), "should be greater than or equal to 1"),
        (cluster("bad", config={"log.dirs": "/x"}), "the operator sets these itself"),
        (cluster("bad", resources={"requests": {"memory": "lots"}}), "memory: Invalid value"),
        (
            cluster("bad", etcd={"managed": {"resources": {"limits": {"cpu": "1 core"}}}}),
            "cpu: Invalid value",
        ),
        (cluster("bad", etcd={"managed": {"replicas": 2}}), "Unsupported value"),
        (cluster("bad", etcd={"managed": {}, "endpoints": ["a:1"]}), "managed or endpoints"),
        (cluster("x" * 41), "at most 40 characters"),
        (cluster("shop.main"), "begins with a letter and has only"),
        (cluster("9lives"), "begins with a letter and has only"),
        (topic("bad", topicName="a b"), "should match"),
        (topic("bad", partitions=0), "greater than or equal to 1"),
        (topic("bad", typo=1), "field not declared in schema"),
        (group("bad", offsetReset={"id": "a", "to": "time"}), "time and to: time must be used together"),
        (group("bad", assignor="random"), "Unsupported value"),
        (group("bad", assignor="range", customAssignor="ours"), "cannot be used together"),
        (group("bad", assignorParameters={"tolerance": 2}), "less than or equal to 1"),
        (group("bad", assignorParameters={"tolerance": 0.5}), "needs assignor: sticky"),
        (group("bad", assignorParameters={"tolerence": 0.5}), "field not declared in schema"),
        (group("bad", pins=[PIN, PIN]), "duplicate"),
        (group("bad", pins=[{**PIN, "instanceId": "a=b"}]), "should match"),
        (group("bad", pins=[{"topic": "orders", "partition": 0}]), "instanceId: Required value"),
        (group("bad", scale={**SCALE, "min": 9}), "min cannot be greater than max"),
        (group("bad", scale={**SCALE, "lagPerReplica": 0}), "greater than or equal to 1"),
        (
            group("bad", scale={"targetRef": {"name": "x"}, "max": 3}),
            "lagPerReplica or lagSeconds is required",
        ),
        (group("bad", scale={**SCALE, "targetRef": {"kind": "Job", "name": "x"}}), "Unsupported value"),
        (group("bad", scale={**SCALE, "targetRef": {"kind": "Deployment"}}), "name: Required value"),
        (group("bad", scale={**SCALE, "lagPerReplicas": 5}), "field not declared in schema"),
        (group("bad", assignor="broadcast", scale=SCALE), "scale cannot be used with the assignor broadcast"),
        (group("bad", assignor="broadcast", pins=[PIN]), "pins cannot be used with the assignors"),
    ],
    ids=str,
)
def test_refused_at_once(api: ApiServer, body: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError, match=message):
        apply(api, body)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (cluster("fixed"), cluster("fixed", storage={"volumes": [{"size": "9999Mi"}]}), "not shrink"),
        (
            cluster("fixed"),
            cluster("fixed", storage={"volumes": [{"size": "10Gi"}, {"size": "10Gi"}]}),
            "number and kind of volumes",
        ),
        (
            cluster("fixed", storage={"volumes": [{"size": "1Gi"}, {"size": "1Gi"}]}),
            cluster(
                "fixed", storage={"volumes": [{"size": "1Gi"}, {"size": "1Gi", "storageClassName": "x"}]}
            ),
            "storage class of a volume",
        ),
        (
            cluster("fixed", storage={"volumes": [{"size": "1Gi"}, {"size": "1.5Gi"}]}),
            cluster("fixed", storage={"volumes": [{"size": "2Gi"}, {"size": "1Gi"}]}),
            "not shrink",
        ),
        (cluster("fixed"), cluster("fixed", etcd={"endpoints": ["a:1"]}), "cannot move between"),
        (cluster("fixed"), cluster("fixed", etcd={"managed": {"replicas": 3}}), "number of etcd members"),
        (cluster("fixed", etcd={"managed": {"replicas": 3}}), cluster("fixed"), "number of etcd members"),
        (
            cluster("fixed"),
            cluster("fixed", etcd={"managed": {"storage": {"volumes": [{"size": "4Gi"}]}}}),
            "volumes of the managed etcd",
        ),
        (
            cluster("fixed", etcd={"managed": {"storage": {"volumes": [{"storageClassName": "fast"}]}}}),
            cluster("fixed", etcd={"managed": {}}),
            "volumes of the managed etcd",
        ),
        (
            cluster("fixed"),
            cluster("fixed", etcd={"managed": {"storage": {"ephemeral": True}}}),
            "volumes of the managed etcd",
        ),
        (topic("fixed"), topic("fixed", topicName="other"), "cannot be renamed"),
        (topic("fixed"), topic("fixed", cluster={"name": "other"}), "another cluster"),
        (group("fixed"), group("fixed", groupId="other"), "cannot be renamed"),
    ],
    ids=str,
)
def test_what_cannot_be_changed(
    api: ApiServer, before: dict[str, Any], after: dict[str, Any], message: str
) -> None:
    # A name of its own: nobody collects here what the operator has made for the one before.
    name = f"fixed-{next(NUMBERS)}"
    for body in (before, after):
        body["metadata"]["name"] = name
    apply(api, before)
    try:
        with pytest.raises(ApiError, match=message):
            apply(api, after)
    finally:
        delete(api, before["kind"], name)


def test_an_etcd_may_be_described_later(api: ApiServer) -> None:
    described = {
        "managed": {"replicas": 1, "storage": {"volumes": [{"size": "2Gi"}]}, "resources": {"limits": {}}}
    }
    apply(api, cluster("described"))
    apply(api, cluster("described", etcd=described))
    apply(api, cluster("described"))
    delete(api, "Cluster", "described")


def test_samples_and_defaults(api: ApiServer) -> None:
    for name in ("cluster", "cluster-secured", "topic", "consumergroup", "rebalance", "user"):
        body = sample(name)
        body["metadata"]["name"] = "sample"
        apply(api, body, dry_run=True)
    made = apply(api, cluster("defaults"), dry_run=True)
    assert made["spec"]["brokers"] == 3
    assert made["spec"]["storage"]["volumes"] == [{"size": "10Gi"}]


# ------------------------------------------------------------------ the operator


def test_a_cluster_gets_its_objects(api: ApiServer, operator: Operator) -> None:
    until(lambda: condition(api, "Cluster", "main") == ("False", "Starting"))
    found = api.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/main-broker")
    uid = read(api, "Cluster", "main")["metadata"]["uid"]  # type: ignore[index]
    assert found["metadata"]["ownerReferences"][0]["uid"] == uid
    assert read(api, "Cluster", "main")["metadata"].get("finalizers") is None, "it can always be deleted"  # type: ignore[index]
    secret = api.request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/main-cluster-secret")
    assert secret["metadata"]["ownerReferences"][0]["uid"] == uid
    assert len(b64decode(secret["data"]["secret"])) == 64
    # Somebody else's hand is noticed and undone. An operator that has just been started (by another test) puts
    # everything right without knowing who was wrong, so it is tried until there is one to notice.
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/main-config"

    def is_noticed() -> bool:
        api.request("PATCH", path, {"data": {"ottla.properties": "x=y"}}, kind="merge-patch+json")
        until(lambda: "x=y" not in api.request("GET", path)["data"]["ottla.properties"])
        return "DriftRepaired" in events(api, "main")

    until(is_noticed)


def test_the_life_of_a_topic(api: ApiServer, operator: Operator, broker: LocalCluster) -> None:
    apply(api, topic("life", partitions=2, config={"retention.ms": 60000}))
    until(lambda: condition(api, "Topic", "life") == ("True", "Reconciled"))
    status = read(api, "Topic", "life")["status"]  # type: ignore[index]
    assert (status["partitionCount"], status["inSync"]) == (2, "2/2")
    assert status["partitions"][0]["leader"] == 0
    apply(api, topic("life", partitions=4, config={"retention.ms": 60000}))
    until(lambda: read(api, "Topic", "life")["status"]["partitionCount"] == 4)  # type: ignore[index]
    apply(api, topic("life", partitions=3, config={"retention.ms": 70000}))
    until(lambda: condition(api, "Topic", "life") == ("False", "PartitionDecrease"))
    with Admin(broker.grpc_bootstrap) as admin:
        overrides = {
            each.name: each.value for each in admin.describe_configs(topic="life") if each.source == "topic"
        }
        assert overrides == {"retention.ms": "60000"}, "nothing was changed"
        apply(api, topic("life", partitions=4, config={"retention.ms": 70000}))
        until(lambda: condition(api, "Topic", "life") == ("True", "Reconciled"))
        admin.delete_topics(["life"])
        until(lambda: "life" in admin.list_topics())
        until(lambda: ("Warning", "RecordsLost") in events_of(api, "life"))
        delete(api, "Topic", "life")
        until(lambda: read(api, "Topic", "life") is None)
        until(lambda: "life" not in admin.list_topics())


def test_two_topics_of_one_name(api: ApiServer, operator: Operator, broker: LocalCluster) -> None:
    apply(api, topic("one", topicName="shared"))
    until(lambda: condition(api, "Topic", "one") == ("True", "Reconciled"))
    time.sleep(1.1)  # creation times have seconds
    apply(api, topic("two", topicName="shared", partitions=3))
    until(lambda: condition(api, "Topic", "two") == ("False", "Conflict"))
    delete(api, "Topic", "two")
    until(lambda: read(api, "Topic", "two") is None)
    with Admin(broker.grpc_bootstrap) as admin:
        assert "shared" in admin.list_topics()
    delete(api, "Topic", "one")
    until(lambda: read(api, "Topic", "one") is None)


def test_a_topic_of_no_cluster_can_go(api: ApiServer, operator: Operator) -> None:
    apply(api, topic("lost", cluster={"name": "nowhere"}))
    until(lambda: condition(api, "Topic", "lost") == ("False", "NoCluster"))
    assert finalizers(api, "lost") == []
    delete(api, "Topic", "lost")
    assert read(api, "Topic", "lost") is None, "at once"


def test_a_group_is_shown_and_reset_once(api: ApiServer, operator: Operator, broker: LocalCluster) -> None:
    apply(api, topic("read", partitions=1))
    until(lambda: condition(api, "Topic", "read") == ("True", "Reconciled"))
    with Producer(broker.grpc_bootstrap) as producer:
        for _ in range(7):
            producer.send("read", value=b"x").result(10)
    commit(broker.grpc_bootstrap, 5)
    apply(api, group("readers"))
    until(lambda: ((read(api, "ConsumerGroup", "readers") or {}).get("status") or {}).get("totalLag") == 2)
    until(lambda: read(api, "ConsumerGroup", "readers")["status"].get("lagSeconds", 0) >= 2)  # type: ignore[index]
    with Admin(broker.grpc_bootstrap) as admin:
        assert list(admin.group_lag_seconds("readers")) == [("read", 0)]
        assert admin.group_lag_seconds("unused", ["read"])[TopicPartition("read", 0)] > 1
        assert (admin.group_lag("readers")[TopicPartition("read", 0)].seconds or 0) > 1
    apply(api, group("readers", offsetReset={"id": "again", "to": "earliest"}))
    until(lambda: condition(api, "ConsumerGroup", "readers", "OffsetsReset") == ("True", "Done"))
    until(lambda: read(api, "ConsumerGroup", "readers")["status"]["totalLag"] == 7)  # type: ignore[index]
    commit(broker.grpc_bootstrap, 6)
    # A killed and restarted operator remembers by the status alone.
    assert operator.end(signal.SIGKILL) == -signal.SIGKILL
    operator.start()
    until(lambda: read(api, "ConsumerGroup", "readers")["status"]["totalLag"] == 1)  # type: ignore[index]
    delete(api, "ConsumerGroup", "readers")
    until(lambda: read(api, "ConsumerGroup", "readers") is None)
    delete(api, "Topic", "read")


def test_settings_of_a_group_are_applied_and_taken_along(
    api: ApiServer, operator: Operator, broker: LocalCluster
) -> None:
    def held() -> dict[str, str | None]:
        entries = admin.describe_configs(group="tuned")
        return {each.name: each.value for each in entries if each.source == "group"}

    with Admin(broker.grpc_bootstrap) as admin:
        apply(api, group("tuned", assignor="roundrobin", sessionTimeoutMs=20_000))
        until(lambda: condition(api, "ConsumerGroup", "tuned", "SettingsApplied") == ("True", "Set"))
        assert held() == {"consumer.assignor": "roundrobin", "consumer.session.timeout.ms": "20000"}
        admin.alter_configs({"consumer.assignor": "range"}, group="tuned")
        until(lambda: held()["consumer.assignor"] == "roundrobin")
        until(lambda: "DriftRepaired" in events(api, "tuned"))
        apply(api, group("tuned", assignor="roundrobin", sessionTimeoutMs=1))
        until(lambda: condition(api, "ConsumerGroup", "tuned", "SettingsApplied") == ("False", "Refused"))
        apply(api, group("tuned", assignor="roundrobin"))
        until(lambda: held() == {"consumer.assignor": "roundrobin"})
        until(lambda: condition(api, "ConsumerGroup", "tuned", "SettingsApplied") == ("True", "Set"))
        delete(api, "ConsumerGroup", "tuned")
        until(lambda: held() == {})


def test_pins_of_a_broker_side_group(api: ApiServer, operator: Operator, broker: LocalCluster) -> None:
    def pinned(reason: str) -> str:
        until(lambda: (condition(api, "ConsumerGroup", "pinned", "PinsApplied") or ("", ""))[1] == reason)
        return message(api, "ConsumerGroup", "pinned", "PinsApplied")

    @contextmanager
    def consumer(name: str) -> Iterator[Consumer]:
        with Consumer(
            broker.grpc_bootstrap, group_id="pinned", group_protocol="consumer", group_instance_id=name
        ) as made:
            made.subscribe(["pinned"])
            yield made

    pins = [{"topic": "pinned", "partition": n, "instanceId": "worker-a"} for n in (0, 2)]
    apply(api, topic("pinned", partitions=4))
    apply(api, group("pinned", assignor="sticky", assignorParameters={"tolerance": 0.5}, pins=pins))
    until(lambda: condition(api, "Topic", "pinned") == ("True", "Reconciled"))
    with Admin(broker.grpc_bootstrap) as admin:
        admin.alter_configs({"consumer.heartbeat.interval.ms": "100"}, group="pinned")
        pinned("NoMembers")
        with consumer("worker-b") as other:
            until(lambda: other.poll(100) is not None and len(other.assignment()) == 4)
            assert "worker-a" in pinned("MemberAbsent")
            with consumer("worker-a") as worker:

                def have() -> set[int]:
                    other.poll(50)
                    worker.poll(50)
                    return {tp.partition for tp in worker.assignment()}

                until(lambda: have() >= {0, 2})
                pinned("Assigned")
                until(
                    lambda: (
                        condition(api, "ConsumerGroup", "pinned", "SettingsApplied") == ("True", "InForce")
                    )
                )
                status = read(api, "ConsumerGroup", "pinned")["status"]  # type: ignore[index]
                assert status["assignor"] == "sticky"
                apply(api, group("pinned", assignor="sticky", pins=[{**pins[0], "partition": 4}]))
                assert "no partition 4" in pinned("NoSuchPartition")
        delete(api, "ConsumerGroup", "pinned")

        def left() -> set[str]:
            return {each.name for each in admin.describe_configs(group="pinned") if each.source == "group"}

        until(lambda: left() == {"consumer.heartbeat.interval.ms"})
    delete(api, "Topic", "pinned")


def deployment(name: str, replicas: int = 0) -> dict[str, Any]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def test_consumers_are_scaled_from_zero_and_back(
    api: ApiServer, operator: Operator, broker: LocalCluster
) -> None:
    """No controller runs here: what counts is what the Deployment is told."""

    def replicas() -> int:
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/worker"
        return int(api.request("GET", path)["spec"]["replicas"])

    def active(reason: str) -> None:
        until(lambda: (condition(api, "ConsumerGroup", "busy", "ScalingActive") or ("", ""))[1] == reason)

    scale = {
        "targetRef": {"name": "worker"},
        "min": 0,
        "max": 5,
        "lagPerReplica": 3,
        "stabilizationSeconds": 1,
    }
    apply(api, topic("busy", partitions=4))
    until(lambda: condition(api, "Topic", "busy") == ("True", "Reconciled"))
    apply(api, group("busy", topics=["busy"], scale=scale))
    active("TargetMissing")
    api.apply(deployment("worker"))
    active("AsRecommended")
    assert replicas() == 0
    with Producer(broker.grpc_bootstrap) as producer:
        for n in range(5):
            producer.send("busy", value=b"x", partition=n % 4).result(10)
    until(lambda: replicas() == 2)
    until(lambda: "ScaledUp" in events(api, "busy"))
    until(lambda: read(api, "ConsumerGroup", "busy")["status"]["lagSeconds"] >= 1)  # type: ignore[index]
    with urllib.request.urlopen(operator.metrics_url, timeout=5) as page:
        line = (
            'ottla_operator_group_replicas_desired{consumergroup="busy",consumergroup_namespace="shop"} 2.0'
        )
        assert line in page.read().decode()
    with Admin(broker.grpc_bootstrap) as admin:
        ends = {TopicPartition("busy", n): 2 if n == 0 else 1 for n in range(4)}
        admin.alter_group_offsets("busy", ends)
        until(lambda: replicas() == 0)
    until(lambda: "ScaledDown" in events(api, "busy"))
    other = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "worker"},
        "maxReplicas": 3,
    }
    meta = {"name": "other", "namespace": NAMESPACE}
    api.apply(
        {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": meta, "spec": other}
    )
    active("OtherAutoscaler")
    delete(api, "ConsumerGroup", "busy")
    delete(api, "Topic", "busy")


def commit(bootstrap: str, offset: int) -> None:
    async def work() -> bool:
        brokers = await Brokers.connect(bootstrap)
        try:
            await brokers.commit("readers", {("read", 0): offset})
        except RequestError as refused:
            assert refused.retriable
            return False  # the coordinator of a new cluster needs a moment
        finally:
            await brokers.close()
        return True

    until(lambda: asyncio.run(work()))


def finalizers(api: ApiServer, name: str) -> list[str]:
    return list((read(api, "Topic", name) or {})["metadata"].get("finalizers") or ())


def test_nothing_waits_for_an_operator_that_is_gone(
    api: ApiServer, operator: Operator, broker: LocalCluster
) -> None:
    """As in a namespace that is deleted with the operator in it: nobody is left to take a finalizer off."""
    apply(api, topic("left"))
    apply(api, group("left", assignor="range"))
    until(lambda: condition(api, "Topic", "left") == ("True", "Reconciled"))
    until(lambda: condition(api, "ConsumerGroup", "left", "SettingsApplied") == ("True", "Set"))
    assert operator.end(signal.SIGKILL) == -signal.SIGKILL
    try:
        for kind in ("Topic", "ConsumerGroup"):
            delete(api, kind, "left")
            assert read(api, kind, "left") is None
        held = topic("old")
        held["metadata"]["finalizers"] = ["ottla.dev/brokers"]  # of an earlier version
        apply(api, held)
        delete(api, "Topic", "old")
        assert read(api, "Topic", "old") is not None
    finally:
        operator.start()
    until(lambda: read(api, "Topic", "old") is None)
    with Admin(broker.grpc_bootstrap) as admin:
        assert "left" in admin.list_topics(), "a missing resource alone is no reason to delete records"
        admin.delete_topics(["left"])


def test_a_renumbered_port_is_put_back(api: ApiServer, operator: Operator) -> None:
    until(lambda: condition(api, "Cluster", "main") == ("False", "Starting"))
    path = f"/api/v1/namespaces/{NAMESPACE}/services/main-bootstrap"

    def ports() -> list[tuple[str, int]]:
        return [(each["name"], each["port"]) for each in api.request("GET", path)["spec"]["ports"]]

    until(lambda: len(ports()) == 2)
    before = ports()
    changed = [{"name": "kafka", "port": 9099}, {"name": "grpc", "port": before[1][1]}]
    api.request("PATCH", path, {"spec": {"ports": changed}}, kind="merge-patch+json")
    assert ports() != before
    until(lambda: ports() == before)
    assert condition(api, "Cluster", "main") == ("False", "Starting")


def test_a_mistyped_setting_is_refused_before_anything_changes(api: ApiServer, operator: Operator) -> None:
    apply(api, cluster("typo", brokers=1))
    until(lambda: condition(api, "Cluster", "typo") == ("False", "Starting"))
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/typo-broker"
    before = api.request("GET", path)["metadata"]["generation"]
    apply(api, cluster("typo", brokers=1, config={"log.retention.hors": 1}))
    until(lambda: condition(api, "Cluster", "typo") == ("False", "InvalidSpec"))
    assert "log.retention.hors" in message(api, "Cluster", "typo")
    assert "Did you mean log.retention.hours?" in message(api, "Cluster", "typo")
    assert api.request("GET", path)["metadata"]["generation"] == before
    delete(api, "Cluster", "typo")


def test_topics_show_that_their_cluster_was_deleted(api: ApiServer, operator: Operator) -> None:
    apply(api, cluster("short", brokers=1))
    apply(api, topic("stray", cluster={"name": "short"}))
    until(lambda: condition(api, "Topic", "stray") == ("True", "Reconciled"))
    delete(api, "Cluster", "short")
    until(lambda: condition(api, "Topic", "stray") == ("False", "NoCluster"), 5)
    delete(api, "Topic", "stray")


def test_an_unused_group_says_so(api: ApiServer, operator: Operator) -> None:
    apply(api, group("nobody"))
    until(lambda: condition(api, "ConsumerGroup", "nobody") == ("False", "NotUsed"))
    assert read(api, "ConsumerGroup", "nobody")["status"]["state"] == "NotUsed"  # type: ignore[index]
    delete(api, "ConsumerGroup", "nobody")


def test_health_probes_are_not_logged(operator: Operator) -> None:
    def answers() -> bool:
        try:
            with urllib.request.urlopen(operator.health_url, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    until(answers)
    assert answers() and answers()
    time.sleep(0.5)  # a line would be written after the answer
    assert "healthz" not in operator.log.read_text()


def test_rights_in_the_watched_namespaces_are_enough(
    api: ApiServer, operator: Operator, broker: LocalCluster, tmp_path: Path
) -> None:
    """With operator.watchNamespaces there are Roles and no ClusterRole."""
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bank"}})
    command = [str(HELM), "template", "limited", str(ROOT / "charts/ottla"), "-n", "bank", "--set"]
    done = subprocess.run(
        [*command, "operator.watchNamespaces={bank}"], capture_output=True, text=True, check=True, timeout=60
    )
    for each in yaml.safe_load_all(done.stdout):
        if each and each["kind"] in ("Role", "RoleBinding"):
            api.apply(each)
    operator.end()
    limited = Operator(api, broker.grpc_bootstrap, tmp_path, LIMITED, "bank")
    try:
        apply(api, cluster("main", brokers=1), "bank")
        apply(api, topic("local", topicName="bank-local"), "bank")
        where = "/apis/ottla.dev/v1alpha1/namespaces/bank/topics/local"
        until(lambda: '"Reconciled"' in api.request("GET", where, text=True))
        api.request("DELETE", where)
        with Admin(broker.grpc_bootstrap) as admin:
            until(lambda: "bank-local" not in admin.list_topics())
        api.request("DELETE", "/apis/ottla.dev/v1alpha1/namespaces/bank/clusters/main")
    finally:
        limited.end()
        operator.start()
    text = limited.log.read_text()
    assert "forbidden" not in text.lower() and "Traceback" not in text, text[-3000:]


def test_racks_come_from_labels_of_nodes(api: ApiServer, operator: Operator) -> None:
    """With the rights that the chart gives for it. Kubernetes answers with the metadata of nodes only."""
    command = [str(HELM), "template", "ottla", str(ROOT / "charts/ottla"), "-n", "ottla"]
    done = subprocess.run(
        [*command, "--set=operator.nodes=true"], capture_output=True, text=True, check=True, timeout=60
    )
    for each in yaml.safe_load_all(done.stdout):
        if each and each["metadata"]["name"].endswith("-nodes"):
            api.apply(each)

    def node(name: str, zone: str) -> None:
        labels = {"topology.kubernetes.io/zone": zone}
        api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})

    def racks() -> dict[str, str]:
        found: dict[str, str] = part(api, "ConfigMap", "racked-racks").get("data", {})
        return found

    node("n-1", "zone-a")
    node("n-2", "zone-b")
    apply(api, cluster("racked", brokers=1, rack={}))
    until(lambda: racks() == {"n-1": "zone-a", "n-2": "zone-b"})
    node("n-2", "zone-c")
    until(lambda: racks() == {"n-1": "zone-a", "n-2": "zone-c"})
    pod = until(lambda: part(api, "StatefulSet", "racked-broker"))["spec"]["template"]["spec"]
    environ = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert environ["OTTLA_RACK_FILE"] == "/etc/ottla-racks/$(NODE_NAME)"
    with pytest.raises(ApiError, match="topologyKey"):
        apply(api, cluster("racked", brokers=1, rack={"topologyKey": "no label"}))
    delete(api, "Cluster", "racked")


def bound_claim(api: ApiServer, cluster_name: str, storage_class: str) -> str:
    """As the StatefulSet controller and a storage driver make it; neither runs here."""
    name = f"data-0-{cluster_name}-broker-0"
    owner = part(api, "StatefulSet", f"{cluster_name}-broker")
    body = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": owner["spec"]["selector"]["matchLabels"],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    api.apply(body)
    has(api, name, "1Gi")
    return name


def has(api: ApiServer, claim: str, size: str) -> None:
    status = {"phase": "Bound", "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]}
    path = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/{claim}/status"
    api.request("PATCH", path, {"status": status}, kind="merge-patch+json")


@pytest.mark.parametrize("can_grow", [True, False])
def test_volumes_grow_if_their_class_allows_it(api: ApiServer, operator: Operator, can_grow: bool) -> None:
    name = "elastic" if can_grow else "rigid"
    api.apply(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": "example.com/none",
            "allowVolumeExpansion": can_grow,
        }
    )

    def of_size(size: str) -> dict[str, Any]:
        volume = {"size": size, "storageClassName": name}
        return cluster(name, brokers=1, storage={"volumes": [volume]})

    def resized() -> tuple[str, str] | None:
        return condition(api, "Cluster", name, "VolumesResized")

    apply(api, of_size("1Gi"))
    until(lambda: part(api, "StatefulSet", f"{name}-broker"))
    claim = bound_claim(api, name, name)
    until(lambda: resized() == ("True", "AsSpecified"))
    apply(api, of_size("2Gi"))
    if can_grow:
        until(lambda: resized() == ("False", "Resizing"))
        spec = part(api, "PersistentVolumeClaim", claim)["spec"]
        assert spec["resources"]["requests"]["storage"] == "2Gi"
        has(api, claim, "2Gi")
        until(lambda: resized() == ("True", "AsSpecified"))
    else:
        until(lambda: resized() == ("False", "Refused"))
        assert "storageclass" in message(api, "Cluster", name, "VolumesResized")
        until(lambda: "VolumesRefused" in events(api, name))
    assert (condition(api, "Cluster", name) or ("", ""))[1] == "Starting", "all objects are accepted"
    delete(api, "Cluster", name)


def test_a_second_install_for_the_same_namespaces_is_refused(api: ApiServer) -> None:
    """By what the API server knows: `helm install` asks it, `helm template` alone does not."""

    def install(release: str, namespace: str, *values: str) -> subprocess.CompletedProcess[str]:
        command = [
            str(HELM),
            "template",
            release,
            str(ROOT / "charts/ottla"),
            "-n",
            namespace,
            "--dry-run=server",
        ]
        given = [f"--set={each}" for each in values]
        return subprocess.run(
            [*command, *given, "--kubeconfig", str(api.kubeconfig(ADMIN))],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    first = install("first", "ottla-one", "cluster.enabled=true")
    assert first.returncode == 0, first.stderr
    objects = [each for each in yaml.safe_load_all(first.stdout) if each]
    for name in ("ottla-one", "ottla-two"):
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for each in objects:
        if each["kind"] in ("ClusterRole", "ClusterRoleBinding", "Deployment"):
            api.apply(each)
    assert install("first", "ottla-one").returncode == 0, "an upgrade"
    second = install("second", "ottla-two")
    assert second.returncode != 0
    assert "first-ottla-operator in namespace ottla-one already watches" in second.stderr
    assert install("second", "ottla-two", "operator.watchNamespaces={ottla-two}").returncode == 0
    # Its namespace was deleted, and the cluster-wide objects are left: they keep nobody out.
    deployment = next(each for each in objects if each["kind"] == "Deployment")
    api.request("DELETE", path_of(deployment, "ottla-one"))
    again = install("first", "ottla-two")
    assert again.returncode == 0, again.stderr
    names = {each["metadata"]["name"] for each in objects if each["kind"].startswith("ClusterRole")}
    others = [
        each for each in yaml.safe_load_all(again.stdout) if each and each["kind"].startswith("ClusterRole")
    ]
    assert not names & {each["metadata"]["name"] for each in others}, (
        "helm would refuse to take over another's"
    )


def test_a_cluster_keeps_its_number_of_etcd_members(api: ApiServer) -> None:
    """The chart's default is three, and a Cluster that was made with one can never change it."""

    def members() -> int:
        command = [
            str(HELM),
            "template",
            "chart",
            str(ROOT / "charts/ottla"),
            "-n",
            NAMESPACE,
            "--dry-run=server",
        ]
        # `helm upgrade` asks the API server which kinds it serves; `helm template` has to be told.
        values = [
            "--api-versions=ottla.dev/v1alpha1/Cluster",
            "--set=cluster.enabled=true,cluster.name=kept,operator.watchNamespaces={shop}",
        ]
        done = subprocess.run(
            [*command, *values, "--kubeconfig", str(api.kubeconfig(ADMIN))],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        found = next(each for each in yaml.safe_load_all(done.stdout) if each and each["kind"] == "Cluster")
        return int(found["spec"]["etcd"]["managed"]["replicas"])

    assert members() == 3
    apply(api, cluster("kept"))
    assert members() == 1
    delete(api, "Cluster", "kept")
