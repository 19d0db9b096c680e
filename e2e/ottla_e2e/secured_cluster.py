"""A step of the scenario: a Cluster with logins and ACLs, a User, and TLS between running brokers. [A]"""

from __future__ import annotations

import json
import time

from ottla_e2e import objects
from ottla_e2e.kube import Kube, Object, ready
from ottla_e2e.say import Fault, say

_CLUSTER, _TOPIC, _USER = "vault", "ledger", "clerk"
_KIND = "clusters.ottla.dev"
_POD = "secured-client"
#: Of broker 0; broker 1 has the next one.
_NODE_PORT = 31795
_PHASE = "ottla.dev/internal-tls"


def run(kube: Kube) -> None:
    began = time.monotonic()
    node = _node_address(kube)
    kube.apply(_cluster(node), *_resources())
    for kind, name in ((_KIND, _CLUSTER), ("topic", _TOPIC), ("users.ottla.dev", _USER)):
        _until_ready(kube, kind, name)
    say(f"    Cluster, Topic and User Ready after {time.monotonic() - began:.1f} s")
    kube.apply(objects.secured_client(_POD, f"{_USER}-credentials"))
    kube.run("wait", "--for=condition=Ready", f"pod/{_POD}", "--timeout=60s")
    _use(kube, f"{_CLUSTER}-bootstrap.{kube.namespace}.svc:9093")
    # The second broker's port: its metadata leads to the first one's.
    _use(kube, f"{node}:{_NODE_PORT + 1}")

    began = time.monotonic()
    kube.apply(_cluster(node, internal_tls=True))
    kube.until("the brokers use TLS with each other", lambda: _has_tls(kube), timeout_s=240)
    say(f"    TLS between the brokers after {time.monotonic() - began:.1f} s, in two rolling restarts")
    _use(kube, f"{node}:{_NODE_PORT}")
    kube.run("delete", f"pod/{_POD}", f"users.ottla.dev/{_USER}", f"topic/{_TOPIC}", "--timeout=60s")
    kube.run("delete", f"{_KIND}/{_CLUSTER}", "--timeout=60s")
    # The next step lists the pods that run.
    kube.until("its Secrets and pods are gone", lambda: None if _left(kube) else True, timeout_s=90)


def _until_ready(kube: Kube, kind: str, name: str) -> None:
    kube.until(f"{kind} {name} is Ready", lambda: ready(kube.get(kind, name)), timeout_s=180)


def _node_address(kube: Kube) -> str:
    addresses = kube.list("nodes")[0]["status"]["addresses"]
    return str(next(each["address"] for each in addresses if each["type"] == "InternalIP"))


def _use(kube: Kube, bootstrap: str) -> None:
    seen = kube.python(_POD, "secured.py", bootstrap, _TOPIC, "forbidden")
    if seen["left"] or seen["read"] < 100 or seen["refused"] != "TOPIC_AUTHORIZATION_FAILED":
        raise Fault(
            f"expected: 100 records written and read over TLS, another topic refused, not {json.dumps(seen)}"
        )
    say(f"    {seen['read']} records written and read at {bootstrap}")


def _has_tls(kube: Kube) -> Object | None:
    stateful_set = kube.get("statefulset", f"{_CLUSTER}-broker")
    cluster = ready(kube.get(_KIND, _CLUSTER))
    if stateful_set["metadata"].get("annotations", {}).get(_PHASE) != "on" or cluster is None:
        return None
    brokers = cluster["status"]["brokers"]
    topic = ready(kube.get("topic", _TOPIC))
    whole = topic is not None and topic["status"]["inSync"] == "4/4"
    return cluster if whole and len(brokers) == 2 and all(each.get("current") for each in brokers) else None


def _left(kube: Kube) -> list[str]:
    names = (each["metadata"]["name"] for kind in ("secrets", "pods") for each in kube.list(kind))
    return [name for name in names if name.startswith((f"{_CLUSTER}-", f"{_USER}-"))]


def _cluster(node: str, *, internal_tls: bool = False) -> Object:
    external = {"type": "NodePort", "advertisedHost": node, "nodePort": _NODE_PORT}
    spec = {
        "brokers": 2,
        "storage": {"ephemeral": True, "volumes": [{"size": "1Gi"}]},
        "etcd": {"managed": {"replicas": 1, "storage": {"ephemeral": True, "volumes": [{"size": "1Gi"}]}}},
        "listeners": {
            "tls": {"authentication": "scram"},
            "external": external,
            "internal": {"tls": internal_tls},
        },
        "authorization": {"superUsers": ["admin"]},
        "networkPolicy": {"enabled": True},
    }
    return objects.resource("Cluster", _CLUSTER, spec)


def _resources() -> list[Object]:
    reference = {"cluster": {"name": _CLUSTER}}
    acls = [
        {"resourceType": "TOPIC", "name": _TOPIC, "operations": ["READ", "WRITE"]},
        {"resourceType": "GROUP", "name": "clerks", "operations": ["READ"]},
    ]
    return [
        objects.resource("Topic", _TOPIC, {**reference, "partitions": 4, "replicas": 2}),
        objects.resource("User", _USER, {**reference, "acls": acls}),
    ]
