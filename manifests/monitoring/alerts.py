"""The alert rules, for Prometheus as they are and for the chart's PrometheusRule. [P]

Clusters are told apart by `cluster_id`, which `ottla_broker_info` brings to any metric, so that the rules also hold for
several clusters that the scrape configuration does not label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_ID = "* on (job, instance) group_left (cluster_id) ottla_broker_info"
_BY = "by (cluster, namespace, cluster_id)"
_WHERE = "{{ with $labels.cluster }}Cluster {{ . }}{{ else }}The cluster{{ end }}"
_BROKER = "{{ with $labels.pod }}{{ . }}{{ else }}{{ $labels.instance }}{{ end }}"


@dataclass(frozen=True)
class Alert:
    name: str
    expr: str
    for_s: int
    severity: str
    summary: str
    #: What it means and what to do.
    description: str

    def rule(self, pace: float) -> dict[str, Any]:
        """`pace` shortens the waiting, for tests."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": duration(self.for_s * pace),
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.description},
        }


def duration(seconds: float) -> str:
    if seconds >= 60 and seconds % 60 == 0:
        return f"{seconds / 60:g}m"
    return f"{round(seconds * 1000)}ms" if 0 < seconds < 1 else f"{round(seconds)}s"


def alerts(
    *, window: str = "5m", lag_s: float = 300, trend: str = "6h", settled: str = "1h"
) -> tuple[Alert, ...]:
    """`window` is that of rates, `lag_s` the lag that is too much. Disks are judged by their `trend`, once a broker has
    been there for the time `settled`."""
    return (
        Alert(
            "OttlaNoController",
            f"sum {_BY} (ottla_controller {_ID}) < 1",
            60,
            "critical",
            f"{_WHERE} has no controller.",
            "Nobody elects leaders or creates topics. Check etcd, and the brokers' logs for `etcd`.",
        ),
        Alert(
            "OttlaEtcdUnreachable",
            "ottla_lease_confirmed == 0",
            60,
            "critical",
            f"Broker {_BROKER} does not reach etcd.",
            "Its lease has expired: the other brokers take over its leaderships. If all brokers say so, etcd is down.",
        ),
        Alert(
            "OttlaBrokerDown",
            f"max {_BY} (ottla_cluster_members {_ID}) - max {_BY} (ottla_cluster_brokers {_ID}) > 0",
            120,
            "critical",
            f"{_WHERE} lacks {{{{ $value }}}} of its brokers.",
            "`ottla cluster` lists brokers. Start it again, or, if it is gone for good, `ottla cluster drain` and `unregister` it.",
        ),
        Alert(
            "OttlaBrokerNotScraped",
            "up == 0 and on (job, instance) last_over_time(ottla_broker_info[6h])",
            120,
            "warning",
            f"Prometheus cannot scrape broker {_BROKER}.",
            "The broker is down, or its event loop is blocked, or the network is broken between it and Prometheus.",
        ),
        Alert(
            "OttlaPartitionsOffline",
            f"sum {_BY} (kafka_controller_kafkacontroller_offlinepartitionscount {_ID}) > 0",
            30,
            "critical",
            f"{_WHERE} has {{{{ $value }}}} partitions without a leader.",
            "They can be neither read nor written. `ottla cluster status` names them and the brokers that they wait for.",
        ),
        Alert(
            "OttlaPartitionsUnderMinIsr",
            f"sum {_BY} (kafka_server_replicamanager_underminisrpartitioncount {_ID}) > 0",
            60,
            "critical",
            f"{_WHERE} has {{{{ $value }}}} partitions under min.insync.replicas.",
            "Writes with acks=all to them fail. Bring back the brokers that `ottla cluster status` misses.",
        ),
        Alert(
            "OttlaPartitionsUnderReplicated",
            f"sum {_BY} (kafka_server_replicamanager_underreplicatedpartitions {_ID}) > 0",
            300,
            "warning",
            f"{_WHERE} has {{{{ $value }}}} under-replicated partitions.",
            "A broker is down, or a follower cannot keep up: see Follower lag on the cluster dashboard.",
        ),
        Alert(
            "OttlaUncleanElection",
            f"sum {_BY} (increase(kafka_controller_controllerstats_uncleanleaderelections_total[{window}]) {_ID}) > 0",
            0,
            "critical",
            f"{_WHERE} elected a leader from outside of the in-sync replicas.",
            "Acknowledged records may be lost. The controller's log names the partitions.",
        ),
        Alert(
            "OttlaConsumerLag",
            f"max by (cluster, namespace, cluster_id, consumergroup, topic) (ottla_consumergroup_lag_seconds {_ID})"
            f" > {lag_s:g}",
            300,
            "warning",
            "Group {{ $labels.consumergroup }} is {{ $value | humanizeDuration }} behind on {{ $labels.topic }}.",
            "`ottla groups describe` shows the lag of each partition, and which member reads it.",
        ),
        Alert(
            "OttlaDiskFullSoon",
            # A trend of minutes says nothing about a day.
            f"predict_linear(ottla_log_dir_free_bytes[{trend}], 24 * 3600) < 0"
            f" and ottla_log_dir_free_bytes offset {settled} >= 0"
            " and ottla_log_dir_free_bytes < 0.5 * ottla_log_dir_total_bytes",
            900,
            "warning",
            f"The disk of {_BROKER} is full within 24 hours.",
            "Shorten the retention (`ottla topics list --size` shows the largest topics), add brokers, or enlarge the volume of {{ $labels.dir }}.",
        ),
        Alert(
            "OttlaDiskAlmostFull",
            "ottla_log_dir_free_bytes / ottla_log_dir_total_bytes < 0.05",
            60,
            "critical",
            f"The disk of {_BROKER} has {{{{ $value | humanizePercentage }}}} left.",
            "When it is full, the broker takes {{ $labels.dir }} offline. Shorten the retention, or enlarge the volume.",
        ),
        Alert(
            "OttlaLogDirOffline",
            "kafka_log_logmanager_offlinelogdirectorycount > 0",
            0,
            "critical",
            f"Broker {_BROKER} took a log directory offline.",
            "Its disk reported an error; the broker's log has it. Replace the disk, then restart the broker.",
        ),
        Alert(
            "OttlaCorruption",
            f"increase(ottla_log_corruptions_total[{window}]) > 0",
            0,
            "critical",
            f"Broker {_BROKER} found damage in its logs.",
            "Replicas are repaired from their leaders. Check the disk and the memory of the machine.",
        ),
        Alert(
            "OttlaHangingTransactions",
            "ottla_log_hanging_transactions > 0",
            120,
            "warning",
            f"Broker {_BROKER} leads partitions with {{{{ $value }}}} transactions that nothing ends.",
            "Readers with read_committed wait behind them. `ottla transactions find-hanging` names them, `ottla transactions abort` ends one.",
        ),
        Alert(
            "OttlaEventLoopBlocked",
            f"histogram_quantile(0.99, rate(ottla_event_loop_lag_seconds_bucket[{window}])) > 0.25",
            120,
            "warning",
            f"The event loop of broker {_BROKER} is {{{{ $value | humanizeDuration }}}} late.",
            "All its clients wait. It lacks CPU, or one request is too large: see Requests on the broker dashboard.",
        ),
        Alert(
            "OttlaCertificateExpiry",
            "ottla_certificate_expiry_timestamp_seconds - time() < 14 * 86400",
            300,
            "warning",
            f"A certificate of broker {_BROKER} expires in {{{{ $value | humanizeDuration }}}}.",
            "Replace {{ $labels.file }}; brokers load the new one without a restart.",
        ),
        Alert(
            "OttlaResourcesNotReady",
            'sum by (namespace, kind) (ottla_operator_resources{ready="false"}) > 0',
            900,
            "warning",
            "{{ $value }} resources of kind {{ $labels.kind }} are not ready.",
            "`kubectl describe` shows their conditions; the operator's log has the errors.",
        ),
    )


def rules(pace: float = 1, **options: Any) -> dict[str, Any]:
    """A rule file of Prometheus; its groups are also the spec of a PrometheusRule."""
    return {"groups": [{"name": "ottla", "rules": [each.rule(pace) for each in alerts(**options)]}]}
