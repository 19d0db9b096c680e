"""Converts milliseconds to Kubernetes' time format. [P]"""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
