"""The files of dashboards and alerts: they use metrics that exist, and every alert fires for its reason (promtool)."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from observe.monitoring_files import RULES, boards, queries
from ottla_broker.metrics import Metrics
from ottla_broker.service.metrics_pages import process_families
from ottla_operator import metrics as operator_metrics

_OURS = re.compile(r"\b((?:ottla|process)_[a-z0-9_]+)")
BOARDS = boards()


def known_series() -> set[str]:
    """Of the probes and of the operator; sources that are added later (`observe`) are asked from real brokers only."""
    names = set()
    for family in (*Metrics().families(), *process_families()):
        ends = ("_bucket", "_sum", "_count") if family.type == "histogram" else ("",)
        names |= {f"{family.name}{end}" for end in ends}
    for each in vars(operator_metrics).values():
        if isinstance(each, MetricWrapperBase):
            for described in each.describe():
                ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(
                    described.type, ("",)
                )
                names |= {f"{described.name}{end}" for end in ends}
    return names


#: Made by sources of `observe` and by the TLS files.
_SOURCES = re.compile(
    r"ottla_(consumergroup_lag_seconds|log_dir_\w+|topic_log_bytes|replication_follower_lag_\w+|moves_\w+|"
    r"certificate_\w+)"
)


@pytest.mark.parametrize("name", BOARDS)
def test_queries_ask_for_metrics_that_exist(name: str) -> None:
    board = BOARDS[name]
    asked = {metric for _, query in queries(board) for metric in _OURS.findall(query)}
    asked |= {
        metric
        for variable in board["templating"]["list"]
        for metric in _OURS.findall(variable.get("definition", ""))
    }
    unknown = {each for each in asked - known_series() if not _SOURCES.fullmatch(each)}
    assert not unknown


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_is_whole(name: str) -> None:
    """What Grafana does not check: descriptions, units, ids, places, and variables that are declared."""
    board = BOARDS[name]
    assert board["uid"] == name and board["description"]
    declared = {each["name"] for each in board["templating"]["list"]} | {"__rate_interval", "1"}
    for text in (json.dumps(panel.get("targets", ())) for panel in board["panels"]):
        assert set(re.findall(r"\$(\w+)", text)) <= declared
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert len(panel["description"]) > 8 and panel["fieldConfig"]["defaults"]["unit"]
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert x < 24
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]


def test_alert_rules_have_what_a_person_needs() -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 10
    for rule in rules:
        assert rule["alert"].startswith("Ottla")
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


#: Alerts by series that make them fire; `promtool` writes `0+1x5` for 0 1 2 3 4 5, one value per minute.
_INFO = ("ottla_broker_info", "1x1000")
FIRING: dict[str, list[tuple[str, str]]] = {
    "OttlaNoController": [_INFO, ("ottla_controller", "0x1000")],
    "OttlaEtcdUnreachable": [("ottla_lease_confirmed", "0x1000")],
    "OttlaBrokerDown": [
        _INFO,
        ("ottla_cluster_members", "3x1000"),
        ("ottla_cluster_brokers", "2x1000"),
    ],
    "OttlaBrokerNotScraped": [("ottla_broker_info", "1x10 _x900"), ("up", "1x10 0x900")],
    "OttlaPartitionsOffline": [_INFO, ("kafka_controller_kafkacontroller_offlinepartitionscount", "2x1000")],
    "OttlaPartitionsUnderMinIsr": [
        _INFO,
        ("kafka_server_replicamanager_underminisrpartitioncount", "2x1000"),
    ],
    "OttlaPartitionsUnderReplicated": [
        _INFO,
        ("kafka_server_replicamanager_underreplicatedpartitions", "2x1000"),
    ],
    "OttlaUncleanElection": [
        _INFO,
        ("kafka_controller_controllerstats_uncleanleaderelections_total", "0x88 1x600"),
    ],
    "OttlaConsumerLag": [
        _INFO,
        ('ottla_consumergroup_lag_seconds{consumergroup="billing",topic="orders"}', "400x1000"),
    ],
    "OttlaDiskFullSoon": [
        ('ottla_log_dir_free_bytes{dir="/data"}', "1000-1x1000"),
        ('ottla_log_dir_total_bytes{dir="/data"}', "2000x1000"),
    ],
    "OttlaDiskAlmostFull": [
        ('ottla_log_dir_free_bytes{dir="/data"}', "40x1000"),
        ('ottla_log_dir_total_bytes{dir="/data"}', "1000x1000"),
    ],
    "OttlaLogDirOffline": [("kafka_log_logmanager_offlinelogdirectorycount", "1x1000")],
    "OttlaCorruption": [("ottla_log_corruptions_total", "0x88 1x600")],
    "OttlaHangingTransactions": [("ottla_log_hanging_transactions", "2x1000")],
    "OttlaEventLoopBlocked": [
        ('ottla_event_loop_lag_seconds_bucket{le="0.25"}', "0+10x1000"),
        ('ottla_event_loop_lag_seconds_bucket{le="1.0"}', "0+20x1000"),
        ('ottla_event_loop_lag_seconds_bucket{le="+Inf"}', "0+20x1000"),
    ],
    "OttlaCertificateExpiry": [
        # Ten days after the end of the test's clock, which starts at 1970.
        ('ottla_certificate_expiry_timestamp_seconds{file="/tls/tls.crt"}', f"{90 * 60 + 10 * 86400}x1000")
    ],
    "OttlaResourcesNotReady": [('ottla_operator_resources{kind="Topic",ready="false"}', "1x1000")],
}


def _series(name: str, values: str) -> dict[str, str]:
    labels = ',job="ottla-broker",instance="10.0.0.1:9292"'
    if name == "ottla_broker_info":
        labels += ',cluster_id="abc",broker="0"'
    text = f"{name[:-1]}{labels}}}" if name.endswith("}") else f"{name}{{{labels[1:]}}}"
    return {"series": text, "values": values}


def _run(tmp_path: Path, tests: list[dict[str, Any]]) -> str:
    file = tmp_path / "tests.json"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.integration
def test_each_alert_fires_for_its_reason_and_no_other_does(tmp_path: Path) -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    assert set(FIRING) == {rule["alert"] for rule in rules}
    # ALERTS is a series like any other: one sample for each alert that fires.
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [_series(*each) for each in series],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "90m",
                    "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}],
                }
            ],
        }
        for name, series in FIRING.items()
    ]
    printed = _run(tmp_path, tests)
    assert "SUCCESS" in printed and "FAILED" not in printed, printed


@pytest.mark.integration
def test_a_healthy_cluster_fires_nothing(tmp_path: Path) -> None:
    healthy = [
        _INFO, ("up", "1x1000"), ("ottla_controller", "1x1000"), ("ottla_cluster_members", "3x1000"),
        ("ottla_lease_confirmed", "1x1000"), ("ottla_cluster_brokers", "3x1000"),
        ("kafka_controller_kafkacontroller_offlinepartitionscount", "0x1000"),
        ("kafka_server_replicamanager_underminisrpartitioncount", "0x1000"),
        ("kafka_server_replicamanager_underreplicatedpartitions", "0x1000"),
        ("kafka_controller_controllerstats_uncleanleaderelections_total", "3x1000"),
        ('ottla_consumergroup_lag_seconds{consumergroup="billing",topic="orders"}', "10x1000"),
        # Half full, and it fills in five days.
        ('ottla_log_dir_free_bytes{dir="/data"}', "8000-1x1000"),
        ('ottla_log_dir_total_bytes{dir="/data"}', "16000x1000"),
        ("kafka_log_logmanager_offlinelogdirectorycount", "0x1000"), ("ottla_log_corruptions_total", "5x1000"),
        ('ottla_event_loop_lag_seconds_bucket{le="0.25"}', "0+20x1000"),
        ('ottla_event_loop_lag_seconds_bucket{le="+Inf"}', "0+20x1000"),
        ('ottla_certificate_expiry_timestamp_seconds{file="/tls/tls.crt"}', f"{90 * 86400}x1000"),
        ('ottla_operator_resources{kind="Topic",ready="false"}', "0x1000"),
    ]  # fmt: skip
    expected = [
        {
            "expr": "count(ALERTS) or vector(0)",
            "eval_time": "90m",
            "exp_samples": [{"labels": "{}", "value": 0}],
        }
    ]
    series = [_series(*each) for each in healthy]
    printed = _run(tmp_path, [{"interval": "1m", "input_series": series, "promql_expr_test": expected}])
    assert "SUCCESS" in printed and "FAILED" not in printed, printed


@pytest.mark.integration
def test_lag_of_two_clusters_without_labels_is_two_alerts(tmp_path: Path) -> None:
    """The same group in both: without the cluster id the alert of one would hide the other's."""
    lag = 'ottla_consumergroup_lag_seconds{{consumergroup="billing",topic="orders",job="j",instance="{}"}}'
    info = 'ottla_broker_info{{cluster_id="{}",job="j",instance="{}"}}'
    names = (lag.format("a"), lag.format("b"), info.format("first", "a"), info.format("second", "b"))
    firing = 'ALERTS{alertname="OttlaConsumerLag",alertstate="firing"}'
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": "400x30"} for name in names[:2]]
            + [{"series": name, "values": "1x30"} for name in names[2:]],
            "promql_expr_test": [
                {
                    "expr": f"count by (cluster_id) ({firing})",
                    "eval_time": "20m",
                    "exp_samples": [
                        {"labels": f'{{cluster_id="{each}"}}', "value": 1} for each in ("first", "second")
                    ],
                }
            ],
        }
    ]
    printed = _run(tmp_path, tests)
    assert "SUCCESS" in printed and "FAILED" not in printed, printed
