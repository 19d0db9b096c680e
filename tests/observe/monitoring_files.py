"""The dashboards and alert rules of the chart, as tests read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
CHART = ROOT / "charts/ottla"
RULES = CHART / "alerts/ottla.yaml"


def boards() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted((CHART / "dashboards").glob("*.json"))}


def queries(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Title of the panel, and query."""
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def substituted(query: str, variables: dict[str, str]) -> str:
    """As Grafana sends it. Four scrapes are the shortest interval of a rate that Grafana takes."""
    for name, value in {"__rate_interval": "4s", **variables}.items():
        query = query.replace(f"${name}", value)
    return query
