"""Throttling without any quota, for services that are fakes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from ottla_broker.metrics import QuotaProbe
from ottla_broker.service.throttling import Throttling


def unthrottled() -> Throttling:
    metadata = SimpleNamespace(image=SimpleNamespace(quotas={}), subscribe=lambda call: None)
    return Throttling(cast(Any, metadata), cast(Any, SimpleNamespace(monotonic=lambda: 0.0)), QuotaProbe())
