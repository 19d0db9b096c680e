"""NetworkPolicies of a Cluster: who may reach which port of its brokers and its etcd. [P]

The internal listener is for the brokers of the Cluster, the operator's listener for operators, etcd for the brokers and
the jobs that back it up.
Listeners for clients and the metrics stay open: other policies can restrict them, and policies only add up.
"""

from __future__ import annotations

from typing import Any

from ottla_operator import cluster_secret, secured
from ottla_operator.access_spec import Access
from ottla_operator.pod_parts import COMPONENT_LABEL, labels_of, metadata
from ottla_operator.specs import Meta

_HTTP_PORT = 9292
_ETCD_CLIENT_PORT, _ETCD_PEER_PORT = 2379, 2380
#: On the pods of the chart's CronJob. Not the label of a Cluster's pods: a failed backup is no trouble of its brokers.
_BACKUP_OF_LABEL = "ottla.dev/backup-of"
_OPERATORS = {"app.kubernetes.io/name": "ottla", COMPONENT_LABEL: "operator"}

Object = dict[str, Any]


def policies(meta: Meta, access: Access, *, etcd: bool) -> list[Object]:
    """`etcd`: whether the Cluster has an etcd of its own."""
    brokers = [{"podSelector": {"matchLabels": labels_of(meta, "broker")}}]
    members = [{"podSelector": {"matchLabels": labels_of(meta, "etcd")}}]
    backups = [{"podSelector": {"matchLabels": _backups(meta)}}]
    operators = [{"namespaceSelector": {}, "podSelector": {"matchLabels": _OPERATORS}}]
    clients = [port for _, port in secured.ports(access) if port != secured.OPERATOR_PORT]
    if access.plaintext:
        clients += [secured.KAFKA_PORT, secured.GRPC_PORT]
    rules = [
        {"from": brokers, "ports": _ports(cluster_secret.INTERNAL_PORT)},
        {"ports": _ports(*sorted(clients), _HTTP_PORT)},
    ]
    if access.needs_login:
        rules.append({"from": operators, "ports": _ports(secured.OPERATOR_PORT)})
    made = [_policy(meta, f"{meta.name}-broker", "broker", rules)]
    if etcd:
        rules = [
            {"from": [*brokers, *backups], "ports": _ports(_ETCD_CLIENT_PORT)},
            {"from": members, "ports": _ports(_ETCD_CLIENT_PORT, _ETCD_PEER_PORT)},
        ]
        made.append(_policy(meta, f"{meta.name}-etcd", "etcd", rules))
    return made


def _backups(meta: Meta) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "ottla",
        COMPONENT_LABEL: "etcd-backup",
        _BACKUP_OF_LABEL: meta.name,
    }


def _policy(meta: Meta, name: str, component: str, rules: list[Object]) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(meta, name, component),
        "spec": {
            "podSelector": {"matchLabels": labels_of(meta, component)},
            "policyTypes": ["Ingress"],
            "ingress": rules,
        },
    }


def _ports(*numbers: int) -> list[Object]:
    return [{"protocol": "TCP", "port": number} for number in numbers]
