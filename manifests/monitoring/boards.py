"""The dashboards: cluster, broker, topic, consumer groups, operator, Spark. [P]"""

from __future__ import annotations

from monitoring.panels import Board, Line, Panel, Row, Variable

_BROKERS = "ottla_broker_info"
_CLUSTER = (
    Variable("cluster", "Cluster", _BROKERS),
    Variable("namespace", "Namespace", _BROKERS, ("cluster",)),
)
_IN_CLUSTER = ("cluster", "namespace")
_BROKER = (
    *_CLUSTER,
    Variable("pod", "Pod", _BROKERS, _IN_CLUSTER),
    Variable("instance", "Instance", _BROKERS, (*_IN_CLUSTER, "pod")),
)
_TOPIC = (*_CLUSTER, Variable("topic", "Topic", "kafka_topic_partitions", _IN_CLUSTER))
_GROUP = (
    *_CLUSTER,
    Variable("group", "Group", "kafka_consumergroup_members", _IN_CLUSTER, key="consumergroup"),
    Variable("topic", "Topic", "kafka_consumergroup_lag_sum", _IN_CLUSTER),
)

#: Label selectors, to go into braces.
C = 'cluster=~"$cluster",namespace=~"$namespace"'
B = f'{C},pod=~"$pod",instance=~"$instance"'
T = f'{C},topic=~"$topic"'
G = f'{C},consumergroup=~"$group",topic=~"$topic"'
R = "[$__rate_interval]"
#: The label of a broker in legends: the pod on Kubernetes, the address elsewhere.
BY, BROKER = "by (pod, instance)", "{{pod}} {{instance}}"
#: Brings the cluster's id to a metric, so that clusters are distinct even if the scrape configuration does not label them.
ID = f"* on (job, instance) group_left (cluster_id) ottla_broker_info{{{C}}}"


def rate(metric: str, selector: str, by: str = "") -> str:
    return f"sum {by + ' ' if by else ''}(rate({metric}{{{selector}}}{R}))"


def quantile(q: float, metric: str, selector: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{{selector}}}{R})))"


def stat(
    title: str,
    description: str,
    query: str,
    *,
    unit: str = "short",
    red_from: float | None = 1,
    red_below: float | None = None,
    links: tuple[tuple[str, str], ...] = (),
) -> Panel:
    return Panel(
        title, description, (Line(query, title),), unit, "stat", 4, 4, red_from, red_below, links=links
    )


def graph(title: str, description: str, unit: str, *lines: tuple[str, str], stacked: bool = False) -> Panel:
    return Panel(title, description, tuple(Line(*each) for each in lines), unit, stacked=stacked)


def rows_of(title: str, description: str, query: str, unit: str = "short", width: int = 12) -> Panel:
    return Panel(title, description, (Line(query, ""),), unit, "table", width)


CLUSTER = Board(
    "ottla-cluster",
    "Ottla: cluster",
    "Is the cluster healthy, and how much does it do? The first page to open.",
    _CLUSTER,
    (
        Row(
            "Health",
            (
                stat(
                    "Brokers offline",
                    "Brokers on record (`ottla cluster`) that are not registered. Removing one for good: `ottla cluster unregister`.",
                    f"sum(max by (cluster_id) (ottla_cluster_members{{{C}}} {ID}) - max by (cluster_id) (ottla_cluster_brokers{{{C}}} {ID}))",
                    links=(("Brokers", "/d/ottla-broker"),),
                ),
                stat(
                    "Clusters without one controller",
                    "Clusters that do not have exactly one controller. During an election this is 1 for about a second.",
                    f"count(sum by (cluster_id) (ottla_controller{{{C}}} {ID}) != 1) or vector(0)",
                ),
                stat(
                    "Partitions offline",
                    "Partitions without a leader: they can be neither read nor written. `ottla cluster status` lists them.",
                    f"sum(kafka_controller_kafkacontroller_offlinepartitionscount{{{C}}})",
                ),
                stat(
                    "Partitions under min ISR",
                    "Writes with acks=all to these partitions fail until enough replicas are in sync.",
                    f"sum(kafka_server_replicamanager_underminisrpartitioncount{{{C}}})",
                ),
                stat(
                    "Partitions under-replicated",
                    "Partitions with fewer in-sync replicas than replicas. Normal for a minute while a broker restarts.",
                    f"sum(kafka_server_replicamanager_underreplicatedpartitions{{{C}}})",
                ),
                stat(
                    "Log directories offline",
                    "Log directories that brokers took offline after an error of the disk.",
                    f"sum(kafka_log_logmanager_offlinelogdirectorycount{{{C}}})",
                ),
                stat(
                    "Brokers",
                    "Registered brokers.",
                    f"sum(max by (cluster_id) (ottla_cluster_brokers{{{C}}} {ID}))",
                    red_from=None,
                    red_below=1,
                ),
                stat(
                    "Topics",
                    "Topics, internal ones included.",
                    f"sum(kafka_controller_kafkacontroller_globaltopiccount{{{C}}})",
                    red_from=None,
                    links=(("Topics", "/d/ottla-topic"),),
                ),
                stat(
                    "Partitions",
                    "Partitions, internal ones included.",
                    f"sum(kafka_controller_kafkacontroller_globalpartitioncount{{{C}}})",
                    red_from=None,
                ),
                stat(
                    "Unclean elections",
                    "Leaders elected from outside of the in-sync replicas in the last hour; acknowledged records may be lost.",
                    f"sum(increase(kafka_controller_controllerstats_uncleanleaderelections_total{{{C}}}[1h]))",
                ),
                stat(
                    "Largest lag",
                    "Age of the oldest record that a group has not committed.",
                    f"max(ottla_consumergroup_lag_seconds{{{C}}})",
                    unit="s",
                    red_from=300,
                    links=(("Consumer groups", "/d/ottla-groups"),),
                ),
                stat(
                    "Least free disk",
                    "Free share of the fullest log directory's volume.",
                    f"min(ottla_log_dir_free_bytes{{{C}}} / ottla_log_dir_total_bytes{{{C}}})",
                    unit="percentunit",
                    red_from=None,
                    red_below=0.1,
                ),
            ),
        ),
        Row(
            "Traffic",
            (
                graph(
                    "Written, by broker",
                    "Bytes of records from producers, before replication.",
                    "Bps",
                    (rate("ottla_topic_received_bytes_total", C, BY), BROKER),
                    stacked=True,
                ),
                graph(
                    "Read, by broker",
                    "Bytes of records sent to consumers.",
                    "Bps",
                    (rate("ottla_topic_sent_bytes_total", C, BY), BROKER),
                    stacked=True,
                ),
                graph(
                    "Records written, by topic",
                    "The ten busiest topics.",
                    "cps",
                    (f"topk(10, {rate('ottla_topic_records_total', C, 'by (topic)')})", "{{topic}}"),
                ),
                graph(
                    "Requests, by API",
                    "Both protocols; a message on a stream counts as a request.",
                    "reqps",
                    (
                        f"topk(10, {rate('kafka_network_requestmetrics_requests_total', C, 'by (request, edge)')})",
                        "{{request}} ({{edge}})",
                    ),
                ),
                graph(
                    "Latency of writes and reads, p99",
                    "From the complete request to its response. Waiting because the client asked to, and throttling, are not included.",
                    "s",
                    (
                        quantile(0.99, "ottla_request_seconds", f'{C},api=~"Produce|Fetch"', by="api, edge"),
                        "{{api}} ({{edge}})",
                    ),
                ),
                graph(
                    "Errors returned",
                    "By error code. Some are normal: NOT_LEADER_OR_FOLLOWER after an election, UNKNOWN_TOPIC_OR_PARTITION for typing errors.",
                    "cps",
                    (rate("ottla_request_errors_total", C, "by (api, error)"), "{{api}} {{error}}"),
                ),
                graph(
                    "Busiest clients, bytes written and read",
                    "By client id (client.id of Kafka clients); each broker names the 100 busiest.",
                    "Bps",
                    (
                        f"topk(10, {rate('ottla_client_received_bytes_total', C, 'by (client_id)')} + {rate('ottla_client_sent_bytes_total', C, 'by (client_id)')})",
                        "{{client_id}}",
                    ),
                ),
                graph(
                    "Connections, by client",
                    "Connections of Kafka clients and streams of gRPC clients.",
                    "short",
                    (
                        f"topk(10, sum by (client_id) (ottla_client_connections{{{C}}}))",
                        "{{client_id}}",
                    ),
                ),
                graph(
                    "Transactions",
                    "Completed per second.",
                    "cps",
                    (rate("ottla_transactions_committed_total", C), "committed"),
                    (rate("ottla_transactions_aborted_total", C), "aborted"),
                ),
                graph(
                    "Hanging transactions",
                    "Open for longer than transaction.max.timeout.ms, and no coordinator ends them: readers with read_committed wait.",
                    "short",
                    (f"sum {BY} (ottla_log_hanging_transactions{{{C}}})", BROKER),
                ),
            ),
        ),
        Row(
            "Replication and metadata",
            (
                graph(
                    "Follower lag",
                    "Time since a follower last had all records of its leader, in its worst partition.",
                    "s",
                    (
                        f"max by (follower) (ottla_replication_follower_lag_seconds{{{C}}})",
                        "broker {{follower}}",
                    ),
                ),
                graph(
                    "ISR changes",
                    "Changes of in-sync sets. Many of them without restarts mean an overloaded disk or network.",
                    "cps",
                    (rate("ottla_replication_isr_changes_total", C, BY), BROKER),
                ),
                graph(
                    "Calls to etcd, p99",
                    "Over 0.5 s, etcd's disk or network is too slow for leases.",
                    "s",
                    (
                        quantile(0.99, "ottla_etcd_request_seconds", C, by="operation"),
                        "{{operation}}",
                    ),
                ),
                graph(
                    "Moves of partitions",
                    "Partitions that each broker copies because they move to it, and moves that wait. `ottla cluster moves` says why.",
                    "short",
                    (f"sum by (broker) (ottla_moves_copies{{{C}}})", "to broker {{broker}}"),
                    (f"sum(ottla_moves_waiting{{{C}}})", "waiting"),
                ),
                graph(
                    "Bytes left to copy",
                    "Estimated, by the broker that copies. Unchanged while the figures beside it are above 0: the copy stands still.",
                    "bytes",
                    (f"sum by (follower) (ottla_moves_left_bytes{{{C}}})", "to broker {{follower}}"),
                ),
            ),
        ),
    ),
)

BROKER_BOARD = Board(
    "ottla-broker",
    "Ottla: broker",
    "Where do brokers spend their time, memory and disk?",
    _BROKER,
    (
        Row(
            "Process",
            (
                graph(
                    "CPU",
                    "A broker uses about one core: at 0.9 add brokers, or move leaders away.",
                    "percentunit",
                    (rate("process_cpu_seconds_total", B, BY), BROKER),
                ),
                graph(
                    "Memory",
                    "Resident memory.",
                    "bytes",
                    (f"sum {BY} (process_resident_memory_bytes{{{B}}})", BROKER),
                ),
                graph(
                    "Uptime",
                    "Time since the start of the process; it falls to zero at a restart.",
                    "s",
                    (f"time() - sum {BY} (process_start_time_seconds{{{B}}})", BROKER),
                ),
                graph(
                    "Event loop lag, p99",
                    "How late timers run. Everything in a broker shares one event loop; over 0.1 s all clients notice.",
                    "s",
                    (quantile(0.99, "ottla_event_loop_lag_seconds", B, by="pod, instance"), BROKER),
                ),
                graph(
                    "Event loop turn, p99",
                    "Time spent on requests in one turn of the event loop, before others have their turn.",
                    "s",
                    (quantile(0.99, "ottla_event_loop_turn_seconds", B, by="pod, instance"), BROKER),
                ),
                graph(
                    "Open files",
                    "File descriptors: connections and segments.",
                    "short",
                    (f"sum {BY} (process_open_fds{{{B}}})", BROKER),
                ),
            ),
        ),
        Row(
            "Requests",
            (
                graph(
                    "Latency by API, p99",
                    "From the complete request to its response, without long polling and throttling. The ten slowest.",
                    "s",
                    (
                        f"topk(10, {quantile(0.99, 'ottla_request_seconds', B, by='api, edge')})",
                        "{{api}} ({{edge}})",
                    ),
                ),
                graph(
                    "Time of a write, by phase",
                    "Average per Produce request. Queue: waits for its turn; local: checks and appends; replication: waits for followers or the disk; send: waits for the client.",
                    "s",
                    (
                        f'sum by (phase) (rate(ottla_request_phase_seconds_total{{{B},api="Produce"}}{R})) / ignoring (phase) group_left sum(rate(ottla_request_seconds_count{{{B},api="Produce"}}{R}))',
                        "{{phase}}",
                    ),
                    stacked=True,
                ),
                graph(
                    "Time of a read, by phase",
                    "Average per Fetch request. Poll is the time that clients wait for new records, which is normal.",
                    "s",
                    (
                        f'sum by (phase) (rate(ottla_request_phase_seconds_total{{{B},api="Fetch"}}{R})) / ignoring (phase) group_left sum(rate(ottla_request_seconds_count{{{B},api="Fetch"}}{R}))',
                        "{{phase}}",
                    ),
                    stacked=True,
                ),
                graph(
                    "Connections (Kafka protocol)",
                    "Open connections by listener.",
                    "short",
                    (
                        f"sum by (listener) (kafka_server_socketservermetrics_connection_count{{{B}}})",
                        "{{listener}}",
                    ),
                ),
                graph(
                    "Waiting requests",
                    "Writes that wait for replicas, reads that wait for records, connections that wait for their turn.",
                    "short",
                    (f"sum(ottla_waiting_produces{{{B}}})", "writes"),
                    (f"sum(ottla_waiting_fetches{{{B}}})", "reads"),
                    (f"sum(ottla_event_loop_queued{{{B}}})", "turns"),
                ),
                graph(
                    "Memory of requests",
                    "Bytes of requests without a response yet; queued.max.request.bytes bounds them.",
                    "bytes",
                    (f"sum {BY} (ottla_kafka_queued_bytes{{{B}}})", BROKER),
                ),
            ),
        ),
        Row(
            "Disk and replication",
            (
                graph(
                    "Free disk",
                    "Free bytes of the volumes of log directories.",
                    "bytes",
                    (
                        f"min by (pod, instance, dir) (ottla_log_dir_free_bytes{{{B}}})",
                        "{{pod}} {{instance}} {{dir}}",
                    ),
                ),
                graph(
                    "Bytes of logs",
                    "All logs of a log directory.",
                    "bytes",
                    (
                        f"sum by (pod, instance, dir) (ottla_log_dir_log_bytes{{{B}}})",
                        "{{pod}} {{instance}} {{dir}}",
                    ),
                ),
                graph(
                    "fsync, p99",
                    "Segments are flushed when they roll, and as flush.messages, flush.ms and flush.before.ack say.",
                    "s",
                    (quantile(0.99, "ottla_log_flush_seconds", B, by="pod, instance"), BROKER),
                ),
                graph(
                    "Reads from disk",
                    "Share of reads that were not in the page cache. Consumers far behind cause them.",
                    "percentunit",
                    (
                        f"{rate('ottla_log_reads_cold_total', B)} / ({rate('ottla_log_reads_cold_total', B)} + {rate('ottla_log_reads_cached_total', B)})",
                        "from disk",
                    ),
                ),
                graph(
                    "Replication",
                    "Bytes of record batches to followers and from leaders.",
                    "Bps",
                    (rate("ottla_replication_sent_bytes_total", B, BY), f"to followers: {BROKER}"),
                    (rate("ottla_replication_received_bytes_total", B, BY), f"from leaders: {BROKER}"),
                ),
                graph(
                    "Partitions and leaders",
                    "`ottla cluster rebalance` evens them out.",
                    "short",
                    (f"sum {BY} (ottla_partitions{{{B}}})", f"partitions: {BROKER}"),
                    (f"sum {BY} (ottla_partition_leaders{{{B}}})", f"leaders: {BROKER}"),
                ),
            ),
        ),
    ),
)

TOPIC_BOARD = Board(
    "ottla-topic",
    "Ottla: topic",
    "Traffic, size and health of topics.",
    _TOPIC,
    (
        Row(
            "Traffic",
            (
                graph(
                    "Records written",
                    "The ten busiest of the selected topics.",
                    "cps",
                    (f"topk(10, {rate('ottla_topic_records_total', T, 'by (topic)')})", "{{topic}}"),
                ),
                graph(
                    "Bytes written",
                    "Before replication.",
                    "Bps",
                    (f"topk(10, {rate('ottla_topic_received_bytes_total', T, 'by (topic)')})", "{{topic}}"),
                ),
                graph(
                    "Bytes read",
                    "By consumers, without replication.",
                    "Bps",
                    (f"topk(10, {rate('ottla_topic_sent_bytes_total', T, 'by (topic)')})", "{{topic}}"),
                ),
                graph(
                    "Records per batch",
                    "Small batches cost brokers and disks: raise linger.ms and batch.size of producers.",
                    "short",
                    (
                        f"{rate('ottla_topic_records_total', T, 'by (topic)')} / ({rate('ottla_topic_batches_total', T, 'by (topic)')} > 0)",
                        "{{topic}}",
                    ),
                ),
                graph(
                    "Size on disk",
                    "All replicas on all brokers.",
                    "bytes",
                    (f"topk(10, sum by (topic) (ottla_topic_log_bytes{{{T}}}))", "{{topic}}"),
                ),
                graph(
                    "Retained records",
                    "Offsets between the start of the log and the high watermark; compacted topics hold fewer records.",
                    "short",
                    (
                        f"topk(10, sum by (topic) (kafka_topic_partition_current_offset{{{T}}} - kafka_topic_partition_oldest_offset{{{T}}}))",
                        "{{topic}}",
                    ),
                ),
            ),
        ),
        Row(
            "Partitions",
            (
                stat(
                    "Partitions",
                    "Of the selected topics.",
                    f"sum(kafka_topic_partitions{{{T}}})",
                    red_from=None,
                ),
                stat(
                    "Offline",
                    "Partitions without a leader.",
                    f"count(kafka_topic_partition_leader{{{T}}} < 0) or vector(0)",
                ),
                stat(
                    "Under min ISR",
                    "Writes with acks=all fail.",
                    f"sum(kafka_cluster_partition_underminisr{{{T}}})",
                ),
                stat(
                    "At min ISR",
                    "One more lost replica, and writes with acks=all fail.",
                    f"sum(kafka_cluster_partition_atminisr{{{T}}})",
                ),
                stat(
                    "Under-replicated",
                    "Fewer in-sync replicas than replicas.",
                    f"sum(kafka_topic_partition_under_replicated_partition{{{T}}})",
                ),
                stat(
                    "Not led by the preferred replica",
                    "`ottla cluster elect` gives leaderships back.",
                    f"sum(kafka_topic_partition_leader_is_preferred{{{T}}} < bool 1)",
                    red_from=None,
                ),
                rows_of(
                    "Largest partitions",
                    "Bytes of the largest replica of a partition.",
                    f"topk(20, max by (topic, partition) (kafka_log_log_size{{{T}}}))",
                    "bytes",
                ),
                rows_of(
                    "Replicas in sync",
                    "Partitions with the fewest in-sync replicas first.",
                    f"bottomk(20, min by (topic, partition) (kafka_topic_partition_in_sync_replica{{{T}}}))",
                ),
            ),
        ),
    ),
)

GROUPS = Board(
    "ottla-groups",
    "Ottla: consumer groups",
    "Which consumers are behind, by how much, and are they catching up?",
    _GROUP,
    (
        Row(
            "Lag",
            (
                graph(
                    "Lag in seconds",
                    "Age of the oldest record that a group has not committed, in its worst partition.",
                    "s",
                    (
                        f"topk(10, max by (consumergroup, topic) (ottla_consumergroup_lag_seconds{{{G}}}))",
                        "{{consumergroup}} {{topic}}",
                    ),
                ),
                graph(
                    "Lag in records",
                    "Records after the committed offset, over all partitions.",
                    "short",
                    (
                        f"topk(10, sum by (consumergroup, topic) (kafka_consumergroup_lag{{{G}}}))",
                        "{{consumergroup}} {{topic}}",
                    ),
                ),
                graph(
                    "Records consumed",
                    "Progress of committed offsets. Less than what is written means that the lag grows.",
                    "cps",
                    (
                        f"topk(10, sum by (consumergroup, topic) (rate(kafka_consumergroup_current_offset{{{G}}}{R})))",
                        "{{consumergroup}} {{topic}}",
                    ),
                ),
                rows_of(
                    "Partitions with the largest lag",
                    "One slow partition among fast ones: a key with many records, or a slow member.",
                    f"topk(20, max by (consumergroup, topic, partition) (kafka_consumergroup_lag{{{G}}}))",
                ),
                rows_of(
                    "Partitions with the oldest records",
                    "In seconds.",
                    f"topk(20, max by (consumergroup, topic, partition) (ottla_consumergroup_lag_seconds{{{G}}}))",
                    "s",
                ),
            ),
        ),
        Row(
            "Members",
            (
                graph(
                    "Members",
                    "A group without members does not consume.",
                    "short",
                    (
                        f'sum by (consumergroup) (kafka_consumergroup_members{{{C},consumergroup=~"$group"}})',
                        "{{consumergroup}}",
                    ),
                ),
                graph(
                    "Groups, by state",
                    "Of all groups of the cluster.",
                    "short",
                    (f"sum by (state) (ottla_groups{{{C}}})", "{{state}}"),
                ),
                graph(
                    "Rebalances and lost members",
                    "Of all groups. Sessions expire if a member is dead or does not send heartbeats in time.",
                    "cps",
                    (rate("ottla_group_rebalances_total", C), "rebalances"),
                    (rate("ottla_group_sessions_expired_total", C), "expired sessions"),
                ),
            ),
        ),
    ),
)

OPERATOR = Board(
    "ottla-operator",
    "Ottla: operator",
    "Resources that are not ready, and what the operator does.",
    (Variable("namespace", "Namespace", "ottla_operator_resources"),),
    (
        Row(
            "Resources",
            (
                stat(
                    "Resources not ready",
                    "`kubectl get clusters,topics,consumergroups` shows which, and why.",
                    'sum(ottla_operator_resources{namespace=~"$namespace",ready="false"})',
                ),
                stat(
                    "Resources ready",
                    "Clusters, Topics, ConsumerGroups, Rebalances.",
                    'sum(ottla_operator_resources{namespace=~"$namespace",ready="true"})',
                    red_from=None,
                ),
            ),
        ),
        Row(
            "Work",
            (
                graph(
                    "Reconciliations",
                    "By kind and result.",
                    "cps",
                    (
                        rate(
                            "ottla_operator_reconciles_total",
                            'namespace=~"$namespace"',
                            "by (kind, result)",
                        ),
                        "{{kind}} {{result}}",
                    ),
                ),
                graph(
                    "Duration of reconciliations, p99",
                    "By kind of resource.",
                    "s",
                    (
                        quantile(
                            0.99, "ottla_operator_reconcile_seconds", 'namespace=~"$namespace"', by="kind"
                        ),
                        "{{kind}}",
                    ),
                ),
                graph(
                    "Drift reverted",
                    "Changes by others that the operator took back: somebody edits what a resource defines.",
                    "cps",
                    (
                        rate("ottla_operator_drift_total", 'namespace=~"$namespace"', "by (kind)"),
                        "{{kind}}",
                    ),
                ),
                graph(
                    "Changes made",
                    "On brokers and on Kubernetes.",
                    "cps",
                    (
                        rate("ottla_operator_actions_total", 'namespace=~"$namespace"', "by (kind, action)"),
                        "{{kind}} {{action}}",
                    ),
                ),
                graph(
                    "Requests to the API server",
                    "By verb and status code.",
                    "reqps",
                    (
                        rate(
                            "ottla_operator_kube_requests_total", 'namespace=~"$namespace"', "by (verb, code)"
                        ),
                        "{{verb}} {{code}}",
                    ),
                ),
                graph(
                    "Lag of ConsumerGroup resources",
                    "In records, from the operator's last look.",
                    "short",
                    (
                        "topk(10, sum by (consumergroup_namespace, consumergroup) (ottla_operator_group_lag))",
                        "{{consumergroup_namespace}}/{{consumergroup}}",
                    ),
                ),
            ),
        ),
    ),
)

#: Metrics of Spark's driver have the application and the name of the query in their names, not in labels.
_STREAM = "metrics_.*_driver_spark_streaming_.*"
_NAME = "$1"


def _streaming(metric: str) -> str:
    series = f'{{__name__=~"{_STREAM}_{metric}_Value"}}'
    pattern = f"metrics_.*_driver_spark_streaming_(.*)_{metric}_Value"
    return f'sum by (query) (label_replace({series}, "query", "{_NAME}", "__name__", "{pattern}"))'


SPARK = Board(
    "ottla-spark",
    "Ottla: Spark",
    "Streaming queries, from Spark's own metrics (docs/monitoring.md says how to switch them on).",
    (),
    (
        Row(
            "Streaming queries",
            (
                graph(
                    "Records read",
                    "Per second, of each query.",
                    "cps",
                    (_streaming("inputRate_total"), "{{query}}"),
                ),
                graph(
                    "Records processed",
                    "Per second while a micro-batch runs. Below the rate of arrival, the query falls behind.",
                    "cps",
                    (_streaming("processingRate_total"), "{{query}}"),
                ),
                graph(
                    "Duration of micro-batches",
                    "Longer than the trigger's interval means that the query cannot keep up.",
                    "ms",
                    (_streaming("latency"), "{{query}}"),
                ),
            ),
        ),
        Row(
            "Executors",
            (
                graph(
                    "Tasks",
                    "Active and failed, of each executor.",
                    "short",
                    (
                        "sum by (application_name, executor_id) (metrics_executor_activeTasks)",
                        "active: {{application_name}} {{executor_id}}",
                    ),
                    (
                        "sum by (application_name, executor_id) (metrics_executor_failedTasks_total)",
                        "failed: {{application_name}} {{executor_id}}",
                    ),
                ),
                graph(
                    "Memory",
                    "Memory used for storage, of each executor.",
                    "bytes",
                    (
                        "sum by (application_name, executor_id) (metrics_executor_memoryUsed_bytes)",
                        "{{application_name}} {{executor_id}}",
                    ),
                ),
            ),
        ),
    ),
)

BOARDS = (CLUSTER, BROKER_BOARD, TOPIC_BOARD, GROUPS, OPERATOR, SPARK)
