"""The schema of a Cluster: brokers, volumes, etcd. [P]"""

from __future__ import annotations

from ottla_operator.cluster_spec import RESERVED_SETTINGS
from ottla_operator.schemas import (
    Schema,
    choice,
    conditions,
    flag,
    listed,
    long,
    passed_on,
    resources,
    settings,
    text,
    texts,
    thing,
    whole,
)

_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?$"
_ADDRESS = r"^[^\s:/]+:[0-9]{1,5}$"
_ETCD_SIZE = "2Gi"


def _storage(description: str, size: str, volumes_most: int) -> Schema:
    volume = thing(
        "One claim per pod.",
        {
            "size": text("Of the volume.", pattern=_QUANTITY, default=size, maxLength=32),
            "storageClassName": text("Empty: the default class of the Kubernetes cluster.", maxLength=253),
        },
    )
    return thing(
        description,
        {
            "volumes": listed(
                "One per disk; each holds one log folder.",
                volume,
                volumes_most,
                minItems=1,
                default=[{"size": size}],
            ),
            "ephemeral": flag("No claims: data is gone with its pod. For tests.", default=False),
            "deleteClaims": flag("Whether the claims go when the Cluster is deleted.", default=False),
        },
        default={},
    )


def cluster_spec() -> Schema:
    reserved = " && ".join(f"!('{name}' in self)" for name in RESERVED_SETTINGS)
    return thing(
        "Brokers that form one Ottla cluster.",
        {
            "brokers": whole("How many. They can become more, not fewer: that needs draining.", 1, 99, default=3),
            "image": text("Of the brokers, instead of the operator's default.", maxLength=512),
            "imagePullPolicy": choice(
                "As in a pod.", ("Always", "IfNotPresent", "Never"), default="IfNotPresent"
            ),
            "storage": _storage("The volumes of each broker.", "10Gi", 16),
            "resources": resources("Requests and limits of each broker."),
            "config": settings(
                "Settings of the brokers, by Kafka's names. A change restarts them one by one.",
                **{
                    "x-kubernetes-validations": [
                        {
                            "rule": reserved,
                            "message": f"these are set by the operator: {', '.join(RESERVED_SETTINGS)}",
                        }
                    ]
                },
            ),
            "etcd": _etcd(),
            "pod": _pod("Added to the pods of the brokers."),
            "podDisruptionBudget": thing(
                "For drains of nodes.",
                {"maxUnavailable": whole("Brokers that a drain may take at once.", 0, 99, default=1)},
                default={},
            ),
            "metrics": thing(
                "How Prometheus finds the brokers.",
                {"annotations": flag("prometheus.io/… annotations on the pods.", default=True)},
                default={},
            ),
        },
        rules=[
            ("self.brokers >= oldSelf.brokers", "brokers can only become more: fewer would need draining first"),
            (
                "self.storage.volumes == oldSelf.storage.volumes && "
                "self.storage.ephemeral == oldSelf.storage.ephemeral",
                "the volumes of a Cluster cannot be changed",
            ),
        ],
    )  # fmt: skip


def _etcd() -> Schema:
    managed = thing(
        "An etcd that the operator runs beside the brokers.",
        {
            "replicas": {"type": "integer", "enum": [1, 3], "default": 1, "description": "1 or 3 members."},
            "image": text("Instead of the operator's default.", maxLength=512),
            "storage": _storage("The volume of each member.", _ETCD_SIZE, 1),
            "resources": resources("Requests and limits of each member."),
            "pod": _pod("Added to the pods of the members."),
        },
    )
    return thing(
        "Where the metadata lives.",
        {
            "managed": managed,
            "endpoints": listed(
                "host:port of an etcd that somebody else runs.",
                text("host:port", pattern=_ADDRESS, maxLength=300),
                9,
                minItems=1,
            ),
            "tls": _etcd_tls(),
            "login": _secret(
                "For an etcd of yours that asks for a login: a Secret with username and password."
            ),
        },
        default={},
        rules=[
            ("!(has(self.managed) && has(self.endpoints))", "choose managed or endpoints, not both"),
            (
                "!has(self.tls) || has(self.endpoints)",
                "tls is for an etcd of yours: name its endpoints as well",
            ),
            (
                "!has(self.login) || has(self.endpoints)",
                "login is for an etcd of yours: name its endpoints as well",
            ),
            (
                "has(self.endpoints) == has(oldSelf.endpoints)",
                "the metadata cannot move between a managed and an external etcd",
            ),
            (_same_in_managed("replicas", "1"), "the number of etcd members cannot be changed"),
            (
                f"{_same_in_managed('storage.volumes[0].size', repr(_ETCD_SIZE))} && "
                f"{_same_in_managed('storage.volumes[0].storageClassName', repr(''))} && "
                f"{_same_in_managed('storage.ephemeral', 'false')}",
                "the volumes of the managed etcd cannot be changed",
            ),
        ],
    )


def _same_in_managed(path: str, default: str) -> str:
    """CEL: as it was. An etcd that nobody describes has the defaults, and to describe it later changes none of them."""

    def value(of: str) -> str:
        return f"(has({of}.managed) && has({of}.managed.{path}) ? {of}.managed.{path} : {default})"

    return f"{value('self')} == {value('oldSelf')}"


def _etcd_tls() -> Schema:
    key = text("Its key with the PEM roots.", default="ca.crt", minLength=1, maxLength=253)
    ca = _secret("A Secret with the roots to trust, instead of those that every client trusts.", key=key)
    certificate = _secret(
        "A Secret with tls.crt and tls.key, for an etcd that asks clients for a certificate."
    )
    return thing("Speak TLS to an etcd of yours; {} is enough.", {"ca": ca, "certificate": certificate})


def _secret(description: str, **more: Schema) -> Schema:
    name = text("Its name, in the namespace of the Cluster.", minLength=1, maxLength=253)
    return thing(description, {"secretName": name, **more}, required=("secretName",))


def _pod(description: str) -> Schema:
    return thing(
        description,
        {
            "labels": texts("More labels."),
            "annotations": texts("More annotations."),
            "nodeSelector": texts("As in a pod."),
            "tolerations": listed("As in a pod.", passed_on("As in a pod."), 32),
            "affinity": passed_on("As in a pod. By default they avoid each other's nodes."),
            "topologySpreadConstraints": listed(
                "As in a pod. By default they spread over zones.", passed_on("As in a pod."), 16
            ),
            "priorityClassName": text("As in a pod.", maxLength=253),
        },
    )


def cluster_status() -> Schema:
    return thing(
        "What the operator found.",
        {
            "observedGeneration": long("The generation of the spec that this is about.", 0),
            "conditions": conditions(),
            "clusterId": text("UUID of the cluster."),
            "controller": whole("Broker that is controller; -1 for none.", -1),
            "readyBrokers": whole("Brokers that are ready.", 0),
            "bootstrap": thing(
                "Where clients connect.",
                {"kafka": text("For Kafka clients."), "grpc": text("For Ottla clients.")},
            ),
            "brokers": listed(
                "Each broker.",
                thing(
                    "One broker.",
                    {
                        "id": whole("Its id, the ordinal of its pod.", 0),
                        "pod": text("Its pod."),
                        "ready": flag("Whether its pod is ready."),
                        "current": flag("Whether it runs what the spec asks for."),
                        "directories": listed(
                            "Ids of its log directories; other ids mean another volume.",
                            text("A UUID.", maxLength=64),
                            16,
                        ),
                    },
                    required=("id",),
                ),
                99,
                **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]},
            ),
        },
    )
