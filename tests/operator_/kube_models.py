"""Kubernetes' own types as a judge: unknown fields and wrong types are errors."""

from __future__ import annotations

from typing import Any

from kubernetes import client

MODELS = {
    ("v1", "ConfigMap"): client.V1ConfigMap,
    ("v1", "Namespace"): client.V1Namespace,
    ("v1", "Service"): client.V1Service,
    ("v1", "ServiceAccount"): client.V1ServiceAccount,
    ("apps/v1", "Deployment"): client.V1Deployment,
    ("apps/v1", "StatefulSet"): client.V1StatefulSet,
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): client.V1CustomResourceDefinition,
    ("batch/v1", "Job"): client.V1Job,
    ("policy/v1", "PodDisruptionBudget"): client.V1PodDisruptionBudget,
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): client.V1ClusterRole,
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): client.V1ClusterRoleBinding,
    ("rbac.authorization.k8s.io/v1", "Role"): client.V1Role,
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): client.V1RoleBinding,
}


def judge(document: dict[str, Any]) -> None:
    MODELS[document["apiVersion"], document["kind"]].model_validate(document)
