"""Requests to the API server: paths, JSON, errors, counting. [A]

Used by `observe.py`, which only reads, and `apply.py`, the only module that writes. It uses the asyncio client of
the `kubernetes` package for credentials and transport, with plain dicts: the typed models of that package
would cost a class per object and do not include Ottla's kinds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.dynamic.client import DynamicClient
from kubernetes.aio.dynamic.exceptions import DynamicApiError

from ottla_operator.metrics import KUBE_REQUESTS
from ottla_operator.specs import API_VERSION

#: (apiVersion, kind) -> plural, for every kind that the operator uses.
PLURALS = {
    ("v1", "ConfigMap"): "configmaps",
    ("v1", "Event"): "events",
    ("v1", "Node"): "nodes",
    ("v1", "PersistentVolumeClaim"): "persistentvolumeclaims",
    ("v1", "Pod"): "pods",
    ("v1", "Secret"): "secrets",
    ("v1", "Service"): "services",
    ("networking.k8s.io/v1", "NetworkPolicy"): "networkpolicies",
    ("apps/v1", "Deployment"): "deployments",
    ("apps/v1", "StatefulSet"): "statefulsets",
    ("autoscaling/v2", "HorizontalPodAutoscaler"): "horizontalpodautoscalers",
    ("policy/v1", "PodDisruptionBudget"): "poddisruptionbudgets",
    (API_VERSION, "Cluster"): "clusters",
    (API_VERSION, "Topic"): "topics",
    (API_VERSION, "ConsumerGroup"): "consumergroups",
    (API_VERSION, "Rebalance"): "rebalances",
    (API_VERSION, "User"): "users",
}
_TIMEOUT_S = 15.0
_PAGE = 250
#: A node has tens of kilobytes of status.
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class KubeError(Exception):
    """The API server refused or did not answer; `code` is 0 without an answer."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def path_of(api_version: str, kind: str, namespace: str, name: str = "", subresource: str = "") -> str:
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    parts = [root + scope, PLURALS[api_version, kind], name, subresource]
    return "/".join(part for part in parts if part)


class Kube:
    """One session with the API server."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self._raw = DynamicClient(api)

    @classmethod
    async def connect(cls) -> Kube:
        """Use the pod's service account, or the current kubectl context."""
        settings = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=settings)
        except config.ConfigException:
            await config.load_kube_config(client_configuration=settings)
        return cls(client.ApiClient(configuration=settings))

    async def close(self) -> None:
        await self._api.close()

    async def get(self, path: str) -> dict[str, Any] | None:
        try:
            return await self.request("get", path)
        except KubeError as failed:
            if failed.code == 404:
                return None
            raise

    async def list(
        self, path: str, *, label_selector: str | None = None, metadata_only: bool = False
    ) -> list[dict[str, Any]]:
        """All objects, read page by page."""
        accept = _METADATA_ONLY if metadata_only else None
        found: list[dict[str, Any]] = []
        more: str | None = None
        while True:
            page = await self.request(
                "get", path, accept=accept, limit=_PAGE, _continue=more, label_selector=label_selector
            )
            found += page.get("items") or []
            more = (page.get("metadata") or {}).get("continue")
            if not more:
                return found

    async def request(
        self,
        verb: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        accept: str | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        plural = _plural_in(path)
        headers = {"Accept": accept} if accept else {}
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                answer = await self._raw.request(
                    verb, path, body=None if body is None else dict(body), serialize=False,
                    query_params=[], header_params=headers, _request_timeout=_TIMEOUT_S, **options,
                )  # fmt: skip
                content = await answer.read()
        except (ApiException, DynamicApiError) as failed:
            code = int(failed.status or 0)
            KUBE_REQUESTS.labels(verb, plural, str(code)).inc()
            raise KubeError(code, _message_in(failed)) from None
        except (TimeoutError, aiohttp.ClientError, OSError) as failed:
            KUBE_REQUESTS.labels(verb, plural, "none").inc()
            raise KubeError(0, f"The API server does not answer: {failed or 'request timed out'}.") from None
        KUBE_REQUESTS.labels(verb, plural, str(answer.status)).inc()
        found: dict[str, Any] = json.loads(content)
        return found


def _plural_in(path: str) -> str:
    known = set(PLURALS.values())
    return next((part for part in reversed(path.split("/")) if part in known), "other")


def _message_in(failed: Any) -> str:
    """The API server's error message."""
    try:
        message = json.loads(failed.body)["message"]
    except (TypeError, ValueError, KeyError):
        message = failed.reason
    return str(message)
