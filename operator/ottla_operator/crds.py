"""The five CustomResourceDefinitions, and their only source. [P]

`make gen` writes them into charts/ottla/crds and manifests/; a test compares. The schemas refuse as much as they can
(types, bounds, CEL), because an error at `kubectl apply` is better than a condition later. Rules with `oldSelf`
protect fields that cannot change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ottla_operator.cluster_schema import cluster_spec, cluster_status
from ottla_operator.group_schema import group_spec, group_status
from ottla_operator.rebalance_schema import rebalance_spec, rebalance_status
from ottla_operator.schemas import (
    AGE,
    READY,
    REASON,
    Schema,
    column,
    thing,
)
from ottla_operator.specs import GROUP, VERSION
from ottla_operator.topic_schema import topic_spec, topic_status
from ottla_operator.user_schema import user_spec, user_status


def all_crds() -> list[dict[str, Any]]:
    return [cluster_crd(), topic_crd(), consumer_group_crd(), rebalance_crd(), user_crd()]


def cluster_crd() -> dict[str, Any]:
    """Brokers, their volumes and their etcd."""
    return _crd(
        "Cluster", "clusters", ("otc",), cluster_spec(), cluster_status(), [
            column("Brokers", "integer", ".spec.brokers"),
            column("Up", "integer", ".status.readyBrokers", description="Brokers that are ready."),
            READY,
            column("Bootstrap", "string", ".status.bootstrap.kafka"),
            column("gRPC", "string", ".status.bootstrap.grpc", wide=True),
            column("Controller", "integer", ".status.controller", wide=True),
            REASON,
            AGE,
        ],
        # Pods are named <cluster>-broker-<n>, and a label holds 63 characters; names of Services have no dots.
        rules=[
            ("self.metadata.name.size() <= 40", "the name of a Cluster has at most 40 characters"),
            (
                "self.metadata.name.matches('^[a-z][-a-z0-9]*$')",
                "the name of a Cluster begins with a letter and has only a-z, 0-9 and -",
            ),
        ],
    )  # fmt: skip


def topic_crd() -> dict[str, Any]:
    return _crd(
        "Topic", "topics", ("ott",), topic_spec(), topic_status(), [
            column("Cluster", "string", ".spec.cluster.name"),
            column("Topic", "string", ".status.topicName"),
            column("Partitions", "integer", ".status.partitionCount"),
            column("Replicas", "integer", ".status.replicas"),
            column("In sync", "string", ".status.inSync", description="Partitions with all replicas in sync."),
            READY,
            REASON,
            AGE,
        ],
    )  # fmt: skip


def consumer_group_crd() -> dict[str, Any]:
    return _crd(
        "ConsumerGroup", "consumergroups", ("otg",), group_spec(), group_status(), [
            column("State", "string", ".status.state"),
            column("Members", "integer", ".status.memberCount"),
            column("Lag", "integer", ".status.totalLag", description="Records."),
            column("Lag seconds", "integer", ".status.lagSeconds", description="Age of the oldest record to read."),
            READY,
            column("Cluster", "string", ".spec.cluster.name", wide=True),
            column("Group", "string", ".status.groupId", wide=True),
            column("Type", "string", ".status.type", wide=True),
            column("Assignor", "string", ".status.assignor", wide=True),
            column("Replicas", "integer", ".status.scale.replicas", wide=True),
            column("Desired", "integer", ".status.scale.desired", wide=True),
            column("Reset", "string", ".status.offsetReset.state", wide=True),
            REASON,
            AGE,
        ],
    )  # fmt: skip


def rebalance_crd() -> dict[str, Any]:
    return _crd(
        "Rebalance", "rebalances", ("otr",), rebalance_spec(), rebalance_status(), [
            column("Cluster", "string", ".spec.cluster.name"),
            column("State", "string", ".status.state"),
            column("Moves", "integer", ".status.moveCount"),
            column("Done", "integer", ".status.movesDone"),
            column("Bytes", "integer", ".status.bytesToCopy"),
            READY,
            REASON,
            AGE,
        ],
    )  # fmt: skip


def user_crd() -> dict[str, Any]:
    return _crd(
        "User", "users", ("otu",), user_spec(), user_status(), [
            column("Cluster", "string", ".spec.cluster.name"),
            column("User", "string", ".status.userName"),
            column("Authentication", "string", ".spec.authentication.type"),
            column("ACLs", "integer", ".status.aclCount"),
            column("Secret", "string", ".status.secretName"),
            READY,
            REASON,
            AGE,
        ],
    )  # fmt: skip


def _crd(
    kind: str,
    plural: str,
    short: Sequence[str],
    spec: Schema,
    status: Schema,
    columns: list[Schema],
    *,
    rules: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    schema = thing(
        spec["description"],
        {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        required=("spec",),
        rules=rules,
    )
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "ottla", "app.kubernetes.io/component": "operator"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": list(short),
                "categories": ["ottla"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }
