"""The schema of a Cluster: brokers, volumes, etcd. [P]"""

from __future__ import annotations

from ottla_operator.access_schema import access_fields
from ottla_operator.cluster_spec import RESERVED_SETTINGS, TOPOLOGY_KEY
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
#: An optional DNS name, and a name of up to 63 characters.
_LABEL = r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"
_ADDRESS = r"^[^\s:/]+:[0-9]{1,5}$"
_VOLUMES_MAX = 16
_ETCD_SIZE = "2Gi"


def _storage(description: str, size: str, volumes_most: int) -> Schema:
    volume = thing(
        "One claim per pod.",
        {
            "size": text("Size of the volume.", pattern=_QUANTITY, default=size, maxLength=32),
            "storageClassName": text("Empty: the default storage class of Kubernetes.", maxLength=253),
        },
    )
    return thing(
        description,
        {
            "volumes": listed(
                "One per disk; each holds one log directory.",
                volume,
                volumes_most,
                minItems=1,
                default=[{"size": size}],
            ),
            "ephemeral": flag("Use no claims: data is lost with its pod. For tests.", default=False),
            "deleteClaims": flag("Delete the claims when the Cluster is deleted.", default=False),
        },
        default={},
    )


_SAME_CLASS = (
    "(has(now.storageClassName) ? now.storageClassName : '') == "
    "(has(before.storageClassName) ? before.storageClassName : '')"
)
_NOT_SMALLER = "quantity(now.size).compareTo(quantity(before.size)) >= 0"


def _of_each_volume(rule: str) -> str:
    """CEL: the rule for each volume `now` and what it was `before`. The rule about their number reports the rest."""
    new, old = "self.storage.volumes", "oldSelf.storage.volumes"
    numbers = ", ".join(str(each) for each in range(_VOLUMES_MAX))
    named = rule.replace("now.", f"{new}[i].").replace("before.", f"{old}[i].")
    return f"[{numbers}].all(i, i >= {new}.size() || i >= {old}.size() || ({named}))"


def cluster_spec() -> Schema:
    reserved = " && ".join(f"!('{name}' in self)" for name in RESERVED_SETTINGS)
    return thing(
        "Brokers that form one Ottla cluster.",
        {
            "brokers": whole(
                "Number of brokers. Brokers that are removed are drained first.", 1, 99, default=3
            ),
            "rebalance": choice(
                "Whether new brokers get their share of the replicas.", ("Spread", "None"), default="Spread"
            ),
            "image": text("Image of the brokers, instead of the operator's default.", maxLength=512),
            "imagePullPolicy": choice(
                "As in a pod.", ("Always", "IfNotPresent", "Never"), default="IfNotPresent"
            ),
            "storage": _storage("The volumes of each broker. Their size can grow.", "10Gi", _VOLUMES_MAX),
            "resources": resources("Requests and limits of each broker."),
            "config": settings(
                "Broker settings, with Kafka's names. A change restarts the brokers one by one.",
                **{
                    "x-kubernetes-validations": [
                        {
                            "rule": reserved,
                            "message": f"the operator sets these itself: {', '.join(RESERVED_SETTINGS)}",
                        }
                    ]
                },
            ),
            "etcd": _etcd(),
            "rack": thing(
                "broker.rack is a label of each broker's node. Needs operator.nodes=true in the chart.",
                {
                    "topologyKey": text(
                        "Label of the nodes.", default=TOPOLOGY_KEY, pattern=_LABEL, minLength=1, maxLength=317
                    )
                },
            ),
            **access_fields(),
            "pod": _pod("Added to the pods of the brokers."),
            "podDisruptionBudget": thing(
                "Limits node drains.",
                {"maxUnavailable": whole("Brokers that a drain may evict at once.", 0, 99, default=1)},
                default={},
            ),
            "metrics": thing(
                "How Prometheus finds the brokers.",
                {"annotations": flag("prometheus.io/… annotations on the pods.", default=True)},
                default={},
            ),
        },
        rules=[
            (
                "self.storage.volumes.size() == oldSelf.storage.volumes.size() && "
                "self.storage.ephemeral == oldSelf.storage.ephemeral",
                "the number and kind of volumes cannot be changed",
            ),
            (_of_each_volume(_SAME_CLASS), "the storage class of a volume cannot be changed"),
            (_of_each_volume(_NOT_SMALLER), "a volume can grow but not shrink"),
        ],
    )  # fmt: skip


def _etcd() -> Schema:
    managed = thing(
        "An etcd that the operator runs beside the brokers.",
        {
            "replicas": {
                "type": "integer",
                "enum": [1, 3],
                "default": 1,
                "description": "Number of members, 1 or 3.",
            },
            "image": text("Image of etcd, instead of the operator's default.", maxLength=512),
            "storage": _storage("The volume of each member.", _ETCD_SIZE, 1),
            "resources": resources("Requests and limits of each member."),
            "pod": _pod("Added to the pods of the members."),
        },
    )
    return thing(
        "The etcd that stores the metadata.",
        {
            "managed": managed,
            "endpoints": listed(
                "host:port of the members of an external etcd.",
                text("host:port", pattern=_ADDRESS, maxLength=300),
                9,
                minItems=1,
            ),
            "tls": _etcd_tls(),
            "login": _secret(
                "For an external etcd that requires a login: a Secret with username and password."
            ),
        },
        default={},
        rules=[
            ("!(has(self.managed) && has(self.endpoints))", "choose managed or endpoints, not both"),
            (
                "!has(self.tls) || has(self.endpoints)",
                "tls is for an external etcd: set endpoints too",
            ),
            (
                "!has(self.login) || has(self.endpoints)",
                "login is for an external etcd: set endpoints too",
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
    """CEL: unchanged. A missing `managed` has the defaults, so writing the defaults out later is not a change."""

    def value(of: str) -> str:
        return f"(has({of}.managed) && has({of}.managed.{path}) ? {of}.managed.{path} : {default})"

    return f"{value('self')} == {value('oldSelf')}"


def _etcd_tls() -> Schema:
    key = text("Key in the Secret with the PEM roots.", default="ca.crt", minLength=1, maxLength=253)
    ca = _secret("A Secret with the trusted root certificates. Default: the public roots.", key=key)
    certificate = _secret("A Secret with tls.crt and tls.key, for an etcd that requires client certificates.")
    return thing("Use TLS to an external etcd; {} is enough.", {"ca": ca, "certificate": certificate})


def _secret(description: str, **more: Schema) -> Schema:
    name = text("Name of the Secret, in the Cluster's namespace.", minLength=1, maxLength=253)
    return thing(description, {"secretName": name, **more}, required=("secretName",))


def _pod(description: str) -> Schema:
    return thing(
        description,
        {
            "labels": texts("Additional labels."),
            "annotations": texts("Additional annotations."),
            "nodeSelector": texts("As in a pod."),
            "tolerations": listed("As in a pod.", passed_on("As in a pod."), 32),
            "affinity": passed_on("As in a pod. By default the pods avoid each other's nodes."),
            "topologySpreadConstraints": listed(
                "As in a pod. By default the pods spread over zones.", passed_on("As in a pod."), 16
            ),
            "priorityClassName": text("As in a pod.", maxLength=253),
        },
    )


def cluster_status() -> Schema:
    return thing(
        "The observed state.",
        {
            "observedGeneration": long("Generation of the spec that this status describes.", 0),
            "conditions": conditions(),
            "clusterId": text("UUID of the cluster."),
            "controller": whole("Id of the controller; -1 for none.", -1),
            "scaledTo": whole("Number of brokers that the replicas are laid out for.", 0),
            "readyBrokers": whole("Number of brokers that are ready.", 0),
            "bootstrap": thing(
                "Bootstrap addresses.",
                {
                    "kafka": text("For Kafka clients."),
                    "grpc": text("For Ottla clients."),
                    "kafkaTls": text("For Kafka clients, with TLS."),
                    "grpcTls": text("For Ottla clients, with TLS."),
                    "kafkaExternal": text("For Kafka clients outside of Kubernetes."),
                },
            ),
            "brokers": listed(
                "Each broker.",
                thing(
                    "One broker.",
                    {
                        "id": whole("Broker id, the ordinal of the pod.", 0),
                        "pod": text("Name of the pod."),
                        "ready": flag("Whether the pod is ready."),
                        "current": flag("Whether the pod has the current revision."),
                        "directories": listed(
                            "Ids of the log directories; a different id means a different volume.",
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
