"""The objects of a Cluster. Goldens are rewritten with OTTLA_REWRITE=1; read the diff before committing it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from operator_.bodies import cluster, pretty, sample
from operator_.kube_models import judge
from ottla_broker.config import resolve, resolve_store
from ottla_broker.listeners import listeners_of
from ottla_operator.cluster_spec import RESERVED_SETTINGS, ClusterSpec
from ottla_operator.internal_tls import ON
from ottla_operator.pod_parts import Images
from ottla_operator.resources import CONFIG_HASH, broker_settings, config_map, objects_of
from ottla_operator.specs import Meta

GOLDEN = Path(__file__).parent / "golden"
IMAGES = Images("ottla-broker:1", "etcd:1")

CASES: dict[str, dict[str, Any]] = {
    "smallest": {"brokers": 1, "storage": {"ephemeral": True, "volumes": [{"size": "1Gi"}]}},
    "sample": sample("cluster")["spec"],
    "everything": {
        "brokers": 5,
        "image": "mine:2",
        "imagePullPolicy": "Never",
        "storage": {
            "volumes": [{"size": "1Gi", "storageClassName": "fast"}, {"size": "2Gi"}],
            "deleteClaims": True,
        },
        "resources": {"limits": {"memory": "1Gi"}},
        "config": {"num.partitions": 6},
        "etcd": {"endpoints": ["etcd-0.etcd:2379", "etcd-1.etcd:2379"]},
        "pod": {
            "labels": {"team": "shop"},
            "annotations": {"note": "x"},
            "nodeSelector": {"disk": "nvme"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "high",
        },
        "podDisruptionBudget": {"maxUnavailable": 2},
        "metrics": {"annotations": False},
    },
    "listeners": {
        "listeners": {
            "plaintext": {"enabled": False},
            "internal": {"tls": True},
            "tls": {"authentication": "tls"},
            "external": {
                "type": "NodePort",
                "authentication": "scram",
                "advertisedHost": "broker-{id}.example.com",
                "nodePort": 31090,
                "annotations": {"external-dns.alpha.kubernetes.io/hostname": "broker-{id}.example.com"},
            },
            "certificate": {"secretName": "public-tls"},
        },
        "authorization": {"superUsers": ["alice"]},
        "networkPolicy": {"enabled": True},
        "config": {"super.users": "User:bob"},
    },
    "racks": {"brokers": 1, "rack": {"topologyKey": "example.com/room"}},
    "secured": {
        "etcd": {
            "endpoints": ["etcd.example:2379"],
            "tls": {
                "ca": {"secretName": "roots", "key": "etcd.pem"},
                "certificate": {"secretName": "etcd-client"},
            },
            "login": {"secretName": "etcd-login"},
        },
    },
}


def made(spec: dict[str, Any]) -> list[dict[str, Any]]:
    body = cluster(**spec)
    return objects_of(Meta.of(body), ClusterSpec.of(body), IMAGES)


def one(spec: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    return next(each for each in made(spec) if (each["kind"], each["metadata"]["name"]) == (kind, name))


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    path = GOLDEN / f"cluster-{case}.json"
    text = pretty(made(CASES[case]))
    if os.environ.get("OTTLA_REWRITE"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("case", CASES)
def test_kubernetes_would_take_them(case: str) -> None:
    for each in made(CASES[case]):
        judge(each)
        assert each["metadata"]["ownerReferences"][0]["uid"] == "uid-main"


@pytest.mark.parametrize("case", CASES)
def test_a_broker_would_take_its_settings(case: str) -> None:
    """The file, with the variables that the pod adds, makes a whole configuration."""
    data = one(CASES[case], "ConfigMap", "main-config")["data"]
    container = one(CASES[case], "StatefulSet", "main-broker")["spec"]["template"]["spec"]["containers"][0]
    pod = {"POD_NAME": "main-broker-2", "POD_NAMESPACE": "shop", "POD_IP": "10.0.0.7", "OTTLA_BROKER_ID": "2"}
    environ = dict(pod)
    for each in container["env"]:
        if "value" in each:
            value = each["value"]
            for name, known in pod.items():
                value = value.replace(f"$({name})", known)
            environ[each["name"]] = value
        elif "secretKeyRef" in each["valueFrom"]:
            environ[each["name"]] = "somebody"
    name = environ["OTTLA_CONFIG"].removeprefix("/etc/ottla/")
    found = resolve({}, environ, data[name], file_name=name)
    assert found.warnings == ()
    config = found.config
    assert config.process.broker_id == 2
    listeners = {each.name: (each.security, str(each.advertised)) for each in listeners_of(config)}
    if case == "listeners":
        inside = "main-broker-2.shop.svc"
        assert listeners == {
            "kafkatls": ("SSL", f"{inside}:9093"),
            "kafkaext": ("SASL_SSL", "broker-2.example.com:31092"),
            "grpctls": ("SSL", f"{inside}:9193"),
            "operator": ("SASL_SSL", f"{inside}:9195"),
            "internal": ("SSL", "10.0.0.7:9392"),
        }
        assert config.authorizer.super_users == {"User:ottla-operator", "User:alice", "User:bob"}
    else:
        assert listeners["grpc"] == ("PLAINTEXT", "main-broker-2.shop.svc:9192")
        assert listeners["kafka"] == ("PLAINTEXT", "main-broker-2.shop.svc:9092")
    assert str(config.internal.advertised) == "10.0.0.7:9392"
    mounts = [each["mountPath"] for each in container["volumeMounts"]]
    assert os.path.dirname(config.internal.secret_file or "") in mounts
    assert all(os.path.dirname(path) in mounts for path in config.log_dirs.dirs), (
        "subfolders of their volumes"
    )
    # The broker must give up before Kubernetes kills it.
    grace_s = one(CASES[case], "StatefulSet", "main-broker")["spec"]["template"]["spec"][
        "terminationGracePeriodSeconds"
    ]
    assert config.process.stop_timeout_ms < grace_s * 1000
    # And say that it waits for etcd in vain, before the startup probe ends it.
    probe = container["startupProbe"]
    assert (
        config.etcd.connect_timeout_ms + 30_000 <= probe["failureThreshold"] * probe["periodSeconds"] * 1000
    )


def test_every_broker_and_etcd_member_has_an_address_that_outlives_its_pod() -> None:
    spec = {"brokers": 3, "etcd": {"managed": {"replicas": 3}}}
    pods = [f"main-{part}-{n}" for part in ("broker", "etcd") for n in range(3)]
    for pod in pods:
        service = one(spec, "Service", pod)["spec"]
        assert service["type"] == "ClusterIP"
        assert service["selector"]["statefulset.kubernetes.io/pod-name"] == pod
        assert service["publishNotReadyAddresses"], "a broker serves before a probe has seen it"
    body = cluster(**spec)
    endpoints = broker_settings(Meta.of(body), ClusterSpec.of(body))["etcd.endpoints"]
    assert endpoints == ",".join(f"main-etcd-{n}.shop.svc:2379" for n in range(3))


def test_what_the_operator_sets_cannot_be_overridden() -> None:
    body = cluster(**CASES["secured"])
    settings = broker_settings(Meta.of(body), ClusterSpec.of(body))
    of_the_pod = {
        "broker.id",
        "rack.file",
        "kafka.advertised",
        "grpc.advertised",
        "internal.advertised",
        "etcd.user",
    }
    body = cluster(**CASES["listeners"])
    settings |= broker_settings(Meta.of(body), ClusterSpec.of(body), ON)
    advertised = {"advertised.listeners", "advertised.grpc.listeners"}
    plaintext = {"http.security.protocol"}  # for the kubelet
    assert set(RESERVED_SETTINGS) - of_the_pod - advertised - plaintext <= set(settings)


@pytest.mark.parametrize(
    ("brokers", "replicas", "min_isr"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (9, "3", "2")]
)
def test_replicas_follow_the_brokers(brokers: int, replicas: str, min_isr: str) -> None:
    body = cluster(brokers=brokers)
    settings = broker_settings(Meta.of(body), ClusterSpec.of(body))
    assert (settings["default.replication.factor"], settings["min.insync.replicas"]) == (replicas, min_isr)


def test_pods_have_no_rights_to_spare() -> None:
    for case in CASES.values():
        for each in made(case):
            if each["kind"] != "StatefulSet":
                continue
            pod = each["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
            assert pod["automountServiceAccountToken"] is False
            for container in pod["containers"]:
                held = container["securityContext"]
                assert held["readOnlyRootFilesystem"] and not held["allowPrivilegeEscalation"]
                assert held["capabilities"] == {"drop": ["ALL"]}


def pods(spec: dict[str, Any], images: Images = IMAGES) -> dict[str, dict[str, Any]]:
    """The pods of brokers and etcd, by the name of their StatefulSet."""
    body = cluster(**spec)
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in objects_of(Meta.of(body), ClusterSpec.of(body), images)
        if each["kind"] == "StatefulSet"
    }


def test_pods_of_a_kind_avoid_each_other() -> None:
    for name, pod in pods({"etcd": {"managed": {"replicas": 3}}}).items():
        own = {"app.kubernetes.io/component": name.removeprefix("main-")}
        (apart,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        (zones,) = pod["topologySpreadConstraints"]
        for rule in (apart["podAffinityTerm"], zones):
            assert own.items() <= rule["labelSelector"]["matchLabels"].items()
        assert zones["whenUnsatisfiable"] == "ScheduleAnyway", "a cluster without zones is one too"


def test_another_label_of_racks_restarts_brokers() -> None:
    """Also those whose own spread constraints stay as they are."""

    def template(**rack: str) -> Any:
        own = {"topologySpreadConstraints": [{"maxSkew": 2}]}
        return one({"rack": rack, "pod": own}, "StatefulSet", "main-broker")["spec"]["template"]

    assert template() == template(topologyKey="topology.kubernetes.io/zone")
    assert template() != template(topologyKey="example.com/room")


def test_people_place_brokers_and_etcd_apart() -> None:
    made = pods(
        {
            "pod": {"topologySpreadConstraints": [{"maxSkew": 2}]},
            "etcd": {"managed": {"pod": {"nodeSelector": {"disk": "ssd"}, "priorityClassName": "high"}}},
        }
    )
    assert made["main-broker"]["topologySpreadConstraints"] == [{"maxSkew": 2}]
    assert "nodeSelector" not in made["main-broker"]
    assert (made["main-etcd"]["nodeSelector"], made["main-etcd"]["priorityClassName"]) == (
        {"disk": "ssd"},
        "high",
    )


def test_images_of_a_private_registry() -> None:
    for pod in pods({}, Images("b:1", "e:1", ("login", "other"))).values():
        assert pod["imagePullSecrets"] == [{"name": "login"}, {"name": "other"}]


def test_tls_alone_needs_no_secret() -> None:
    """An etcd whose certificate every client trusts."""
    spec = {"etcd": {"endpoints": ["etcd.example:2379"], "tls": {}}}
    pod = one(spec, "StatefulSet", "main-broker")["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["volumes"]] == ["config", "tmp", "cluster-secret"]
    settings = one(spec, "ConfigMap", "main-config")["data"]["ottla.properties"]
    assert "etcd.tls.enable=true" in settings and "etcd.tls.ca.file" not in settings


def test_a_changed_setting_changes_the_pods() -> None:
    def digest(**config: int) -> str:
        found = one({"config": config}, "StatefulSet", "main-broker")
        return str(found["spec"]["template"]["metadata"]["annotations"][CONFIG_HASH])

    assert digest() == digest() != digest(**{"num.partitions": 7})


def test_selectors_find_exactly_their_own_pods() -> None:
    objects = made(CASES["sample"])
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in objects
        if each["kind"] == "StatefulSet"
    }
    for service, owner in (
        ("main-brokers", "main-broker"),
        ("main-bootstrap", "main-broker"),
        ("main-etcd", "main-etcd"),
    ):
        selector = next(
            each["spec"]["selector"]
            for each in objects
            if each["metadata"]["name"] == service and each["kind"] == "Service"
        )
        assert [name for name, labels in pods.items() if selector.items() <= labels.items()] == [owner]


@pytest.mark.parametrize("case", CASES)
def test_a_tool_beside_the_brokers_reads_their_etcd_settings(case: str) -> None:
    """The settings lack what only pods have, such as advertised addresses, so a broker elsewhere refuses them."""
    body = cluster(**CASES[case])
    spec = ClusterSpec.of(body)
    text = config_map(Meta.of(body), spec, ON)["data"]["ottla.properties"]
    environ = {"OTTLA_ETCD_USER": "ottla"} if spec.external_etcd and spec.external_etcd.login else {}
    etcd, name = resolve_store({}, environ, text, file_name="ottla.properties")
    expected = broker_settings(Meta.of(body), spec, ON)
    assert ",".join(map(str, etcd.endpoints)) == expected["etcd.endpoints"] and name == "shop.main"
    assert (etcd.user is not None) == bool(environ) and etcd.tls == ("etcd.tls.enable" in expected)
