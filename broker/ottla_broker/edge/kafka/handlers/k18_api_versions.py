"""ApiVersions (18), versions 0-4: the supported APIs and versions. [S]

A client calls this first, with the newest version it knows. An unknown version is answered in version
0 with UNSUPPORTED_VERSION and the list, so that the client can try again: the one API with that duty
(KIP-511). The response header is never flexible, for the same reason.

Versions: 3 names the client's software and lists features; 4 only changes which features a broker may list.
Left out: the client's name is not validated, only kept for logs.
"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.edge.kafka.versions import APIS
from ottla_core.errors import UnsupportedVersion

_SOFTWARE_CHARS_MAX = 64

_API_KEYS: list[dict[str, Any]] = [
    {
        "api_key": api.key,
        "min_version": api.low if api.advertised_low is None else api.advertised_low,
        "max_version": api.high,
    }
    for api in APIS.values()
]


#: `transaction.version` 2 makes clients use transactions v2 (KIP-890).
_FEATURES = {"transaction.version": 2}
#: The least version is 0, but Java clients before 3.9 refuse a whole response that says so (KAFKA-17011).
_FEATURE_FIELDS: dict[str, Any] = {
    "supported_features": [
        {"name": name, "min_version": 1, "max_version": level} for name, level in _FEATURES.items()
    ],
    "finalized_features_epoch": 0,
    "finalized_features": [
        {"name": name, "max_version_level": level, "min_version_level": level}
        for name, level in _FEATURES.items()
    ],
}
_FEATURES_FROM = 3


def handle(context: Context, request: Request) -> Reply:
    if request.version > request.api.high:
        # The body has an unknown format; the connection sends this response in version 0.
        return {"error_code": UnsupportedVersion.code, "api_keys": _API_KEYS}
    fields = request.fields()
    name, version = fields.get("client_software_name", ""), fields.get("client_software_version", "")
    if name and not context.software:
        context.software = f"{name} {version}"[:_SOFTWARE_CHARS_MAX]
    features = _FEATURE_FIELDS if request.version >= _FEATURES_FROM else {}
    return {"error_code": 0, "api_keys": _API_KEYS} | features
