"""Grafana's JSON from short descriptions: panels, variables, dashboards. [P]

Every query selects with all variables of its dashboard. A variable whose label does not exist, such as `pod` outside of
Kubernetes, has only the choice All, which matches series without the label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_SOURCE = {"type": "prometheus", "uid": "$datasource"}
WIDTH = 24
TAG = "ottla"


@dataclass(frozen=True)
class Variable:
    name: str
    label: str
    #: Metric whose label values are the choices.
    of: str
    #: Selected by these variables, which come before it.
    within: tuple[str, ...] = ()
    key: str = ""

    def json(self) -> dict[str, Any]:
        key = self.key or self.name
        selector = ",".join(f'{each}=~"${each}"' for each in self.within)
        query = f"label_values({self.of}{{{selector}}}, {key})"
        return {
            "name": self.name, "label": self.label, "type": "query", "datasource": _SOURCE,
            "query": {"query": query, "refId": self.name}, "definition": query, "refresh": 2, "sort": 1,
            "includeAll": True, "multi": True, "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }  # fmt: skip


@dataclass(frozen=True)
class Line:
    query: str
    legend: str


@dataclass(frozen=True)
class Panel:
    title: str
    description: str
    lines: tuple[Line, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    #: Of a stat: the first value that is bad, or the first that is good.
    red_from: float | None = None
    red_below: float | None = None
    stacked: bool = False
    #: Title and address of the page to go to.
    links: tuple[tuple[str, str], ...] = ()

    def json(self, id_: int, x: int, y: int) -> dict[str, Any]:
        defaults: dict[str, Any] = {"unit": self.unit}
        options: dict[str, Any]
        if self.kind == "stat":
            steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
            if self.red_from is not None:
                steps.append({"color": "red", "value": self.red_from})
            if self.red_below is not None:
                steps = [{"color": "red", "value": None}, {"color": "green", "value": self.red_below}]
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
            options = {
                "reduceOptions": {"calcs": ["lastNotNull"]},
                "colorMode": "background",
                "graphMode": "none",
            }
        elif self.kind == "table":
            options = {"showHeader": True, "sortBy": [{"displayName": "Value", "desc": True}]}
        else:
            defaults |= {"min": 0, "custom": {"fillOpacity": 10, "showPoints": "never"}}
            if self.stacked:
                defaults["custom"]["stacking"] = {"mode": "normal"}
            options = {
                "legend": {"displayMode": "list", "placement": "bottom"},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        made: dict[str, Any] = {
            "id": id_, "title": self.title, "description": self.description, "type": self.kind, "datasource": _SOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + i), "datasource": _SOURCE, "expr": line.query, "legendFormat": line.legend}
                | ({"instant": True, "format": "table"} if self.kind == "table" else {})
                for i, line in enumerate(self.lines)
            ],
            "options": options,
        }  # fmt: skip
        if self.kind == "table":
            hidden = dict.fromkeys(
                ("Time", "__name__", "job", "instance", "endpoint", "service", "container"), True
            )
            made["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
        if self.links:
            made["links"] = [{"title": title, "url": url} for title, url in self.links]
        return made


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    name: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...] = field(default=())

    def json(self) -> dict[str, Any]:
        source = {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "current": {},
        }
        return {
            "title": self.title, "uid": self.name, "description": self.description, "tags": [TAG],
            "schemaVersion": 39, "version": 1, "editable": True, "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"}, "graphTooltip": 1,
            "links": [
                {"title": "Ottla", "type": "dashboards", "tags": [TAG], "asDropdown": False,
                 "includeVars": True, "keepTime": True}
            ],
            "templating": {"list": [source, *(each.json() for each in self.variables)]},
            "panels": _placed(self.rows),
        }  # fmt: skip


def _placed(rows: Sequence[Row]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        made.append(
            {
                "id": len(made) + 1,
                "title": row.title,
                "type": "row",
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
            }
        )
        y, x, tallest = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                y, x, tallest = y + tallest, 0, 0
            made.append(panel.json(len(made) + 1, x, y))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return made
