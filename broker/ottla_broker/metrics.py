"""Metrics of a broker: names, labels and meaning, one probe per component. [P]

A probe is a plain object with int fields, passed to its component, which writes `probe.bytes_in += n` on the
hot path: tens of nanoseconds, no lock, no look-up. Nothing is computed until a scrape: `Metrics.families`
reads all probes then, and `exposition.py` writes them as Prometheus text. All on the loop's thread.

Names follow Prometheus' conventions: base units, `_total` for counters. Labels come from small closed sets,
or from topics up to a limit; what is beyond it is summed up under `topic="(other)"`, so that no client can
make the series grow without bound.
"""

# ruff: noqa: RUF009  (these functions make dataclass fields)
from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import starmap
from operator import attrgetter
from typing import Any

from ottla_broker.exposed import OTHER, Family, Histogram, Histograms, Sample
from ottla_broker.request_metrics import ApiTimes, ClientTraffic, RequestMetrics
from ottla_broker.request_metrics import families as request_families


class Cell:
    """One labelled count, held by the component that increments it."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


class Labelled:
    """Counts by one label. `of` gives the cell to keep: look it up once, then `cell.n += 1`."""

    __slots__ = ("_cells", "_limit", "label")

    def __init__(self, label: str, limit: int) -> None:
        self.label = label
        self._limit = limit
        self._cells: dict[str, Cell] = {}

    def of(self, value: str) -> Cell:
        cell = self._cells.get(value)
        if cell is None:
            if len(self._cells) >= self._limit:
                value = OTHER
            cell = self._cells.setdefault(value, Cell())
        return cell

    def add(self, value: str, n: int = 1) -> None:
        self.of(value).n += n

    def samples(self) -> list[Sample]:
        return [Sample("", ((self.label, value),), cell.n) for value, cell in self._cells.items()]


def counter(name: str, doc: str) -> Any:
    return field(default=0, metadata={"name": name, "type": "counter", "doc": doc})


def gauge(name: str, doc: str) -> Any:
    return field(default=0, metadata={"name": name, "type": "gauge", "doc": doc})


def seconds(name: str, doc: str) -> Any:
    return field(default_factory=Histogram, metadata={"name": name, "type": "histogram", "doc": doc})


def seconds_by(name: str, doc: str, label: str) -> Any:
    return field(
        default_factory=lambda: Histograms(label), metadata={"name": name, "type": "histogram", "doc": doc}
    )


def requests_of(edge: str) -> Any:
    """Not a family: `Metrics` shows both edges together."""
    return field(default_factory=lambda: RequestMetrics(edge))


def labelled(name: str, doc: str, label: str, limit: int = 128, type: str = "counter") -> Any:
    """A counter by a label from a closed set; the limit only guards against a bug."""
    return field(
        default_factory=lambda: Labelled(label, limit), metadata={"name": name, "type": type, "doc": doc}
    )


@dataclass
class KafkaEdgeProbe:
    """Connections and requests of Kafka clients."""

    connections_opened: int = counter("ottla_kafka_connections_opened_total", "Connections accepted.")
    connections_closed: int = counter("ottla_kafka_connections_closed_total", "Connections ended.")
    connections_refused: int = counter(
        "ottla_kafka_connections_refused_total", "Refused over max.connections."
    )
    connections_dropped: Labelled = labelled(
        "ottla_kafka_connections_dropped_total", "Connections closed by the broker, by reason.", "reason"
    )
    bytes_in: int = counter("ottla_kafka_received_bytes_total", "Bytes of requests.")
    bytes_out: int = counter("ottla_kafka_sent_bytes_total", "Bytes of responses.")
    requests: Labelled = labelled("ottla_kafka_requests_total", "Requests by API.", "api")
    errors: Labelled = labelled("ottla_kafka_errors_total", "Error codes returned.", "error")
    queued_bytes: int = gauge("ottla_kafka_queued_bytes", "Memory of requests that are not answered yet.")
    reading_paused: int = counter(
        "ottla_kafka_reading_paused_total", "Times a connection waited for request memory."
    )
    connections: Labelled = labelled(
        "kafka_server_socketservermetrics_connection_count",
        "Open connections by listener.",
        "listener",
        type="gauge",
    )
    times: RequestMetrics = requests_of("kafka")


@dataclass
class LoopProbe:
    """Turn time and lag of the event loop, which everything in a broker shares."""

    turn_seconds: Histogram = seconds(
        "ottla_event_loop_turn_seconds", "Time spent on client requests in one turn of the event loop."
    )
    lag_seconds: Histogram = seconds(
        "ottla_event_loop_lag_seconds",
        "Event loop lag, sampled four times a second.",
    )
    queued: int = gauge("ottla_event_loop_queued", "Connections and streams waiting for their turn.")


@dataclass
class GrpcEdgeProbe:
    """See `edge.grpc.probe.GrpcProbe`: a gRPC call is far heavier than a method call, so it has methods."""

    opened: Labelled = labelled("ottla_grpc_streams_opened_total", "Streams accepted, by method.", "method")
    closed: Labelled = labelled("ottla_grpc_streams_closed_total", "Streams ended, by method.", "method")
    requests: Labelled = labelled("ottla_grpc_requests_total", "Requests answered, by method.", "method")
    errors: Labelled = labelled("ottla_grpc_errors_total", "Error codes returned.", "error")
    times: RequestMetrics = requests_of("grpc")

    def answered(self, method: str, errors: Iterable[str] = ()) -> None:
        self.requests.add(method)
        for error in errors:
            self.errors.add(error)
            self.times.failed(method, error)

    def api(self, method: str) -> ApiTimes:
        return self.times.of(method)

    def connected(self, client_id: str) -> ClientTraffic:
        return self.times.connected(client_id)

    def disconnected(self, traffic: ClientTraffic) -> None:
        self.times.disconnected(traffic)

    def stream_opened(self, method: str) -> None:
        self.opened.add(method)

    def stream_closed(self, method: str) -> None:
        self.closed.add(method)


@dataclass
class InternalProbe:
    """The listener for other brokers."""

    refused: Labelled = labelled(
        "ottla_internal_refused_calls_total",
        "Calls to the internal listener without a valid token, by reason.",
        "reason",
    )


@dataclass
class LoginsProbe:
    """Logins of clients on both protocols."""

    logins: Labelled = labelled("ottla_logins_total", "Successful logins, by mechanism.", "mechanism")
    failed: Labelled = labelled("ottla_failed_logins_total", "Failed logins, by mechanism.", "mechanism")
    refused: int = counter(
        "ottla_refused_logins_total", "Logins that were not checked, because too many were waiting."
    )
    expired: int = counter(
        "ottla_expired_sessions_total",
        "Connections closed because their client did not log in again within connections.max.reauth.ms.",
    )


@dataclass
class LogProbe:
    """Writes, reads and upkeep of all logs."""

    batches: int = counter("ottla_log_appended_batches_total", "Record batches written.")
    bytes_appended: int = counter("ottla_log_appended_bytes_total", "Bytes of record batches written.")
    reads_cached: int = counter("ottla_log_reads_cached_total", "Reads served from the page cache.")
    reads_cold: int = counter("ottla_log_reads_cold_total", "Reads that waited for the disk.")
    flushes: int = counter("ottla_log_flushes_total", "fsync calls.")
    flush_seconds: Histogram = seconds("ottla_log_flush_seconds", "Duration of fsync calls.")
    segments_rolled: int = counter("ottla_log_segments_rolled_total", "Segments rolled.")
    segments_deleted: int = counter("ottla_log_segments_deleted_total", "Segments removed by retention.")
    compactions: int = counter("ottla_log_compactions_total", "Passes of the cleaner.")
    compacted_bytes: int = counter("ottla_log_compacted_bytes_total", "Bytes read by the cleaner.")
    recovered_bytes: int = counter(
        "ottla_log_recovered_bytes_total", "Bytes scanned by recovery after an unclean stop."
    )
    recovery_cut_bytes: int = counter("ottla_log_recovery_cut_bytes_total", "Bytes truncated by recovery.")
    corruptions: int = counter(
        "ottla_log_corruptions_total",
        "Times damage was found that a crash does not explain. Damaged batches are not served.",
    )
    rereads_checked: int = counter(
        "ottla_log_rereads_checked_total", "Repeated reads whose CRCs were checked."
    )
    hanging_transactions: int = gauge(
        "ottla_log_hanging_transactions",
        "Transactions in partitions that this broker leads, open for more than transaction.max.timeout.ms, that no "
        "coordinator will end.",
    )
    hanging_aborted: int = counter(
        "ottla_log_hanging_transactions_aborted_total",
        "Hanging transactions that this broker aborted, because no coordinator knew their producer.",
    )
    scrubbed_bytes: int = counter(
        "ottla_log_scrubbed_bytes_total", "Bytes of closed segments checked by the scrubber."
    )
    scrub_rounds: int = counter(
        "ottla_log_scrub_rounds_total", "Completed scrubber rounds over all closed segments."
    )
    scrub_damaged: int = counter(
        "ottla_log_scrub_damaged_total", "Segments in which the scrubber found damage."
    )
    dirs_offline: int = gauge("ottla_log_dirs_offline", "Log directories taken offline after an error.")


@dataclass
class PartitionsProbe:
    """Partitions on this broker, and the requests that wait for them."""

    partitions: int = gauge("ottla_partitions", "Partitions on this broker.")
    leaders: int = gauge("ottla_partition_leaders", "Partitions that this broker leads.")
    offline: int = gauge("ottla_partitions_offline", "Partitions on this broker without a usable log.")
    waiting_produces: int = gauge("ottla_waiting_produces", "Writes waiting for replication.")
    waiting_fetches: int = gauge("ottla_waiting_fetches", "Fetches waiting for data.")


@dataclass
class ReplicationProbe:
    """Replication to followers and from leaders."""

    streams: int = gauge("ottla_replication_followers", "Brokers with a Follow stream from this broker.")
    streams_to_leaders: int = gauge(
        "ottla_replication_leaders", "Brokers that this broker has a Follow stream to."
    )
    bytes_out: int = counter("ottla_replication_sent_bytes_total", "Bytes of batches sent to followers.")
    bytes_in: int = counter(
        "ottla_replication_received_bytes_total", "Bytes of batches received from leaders."
    )
    frames_out: int = counter("ottla_replication_sent_frames_total", "Frames sent to followers.")
    frames_in: int = counter("ottla_replication_received_frames_total", "Frames received from leaders.")
    throttled_out: int = counter(
        "ottla_replication_throttled_sent_bytes_total",
        "Bytes of batches sent to throttled replicas (leader.replication.throttled.replicas).",
    )
    throttled_in: int = counter(
        "ottla_replication_throttled_received_bytes_total",
        "Bytes of batches received by throttled replicas (follower.replication.throttled.replicas).",
    )
    bad_sections: int = counter(
        "ottla_replication_refused_total", "Sections from leaders that were rejected: wrong CRC or offset."
    )
    isr_changes: int = counter(
        "ottla_replication_isr_changes_total", "In-sync set changes proposed by this broker."
    )
    under_replicated: int = gauge(
        "ottla_partitions_under_replicated",
        "Partitions led by this broker with fewer in-sync replicas than replicas.",
    )


@dataclass
class AuthorizerProbe:
    """Authorisation by ACLs, and its audit log."""

    denied: Labelled = labelled(
        "ottla_authorizer_denied_total",
        "Uses of resources that were denied, by resource type and operation.",
        "use",
    )
    left_out: int = counter("ottla_audit_left_out_total", "Lines that the audit log left out over its limit.")


@dataclass
class QuotaProbe:
    """Clients that exceed their quotas."""

    throttled: Labelled = labelled(
        "ottla_quota_throttled_total", "Requests whose clients had to wait, by quota.", "quota"
    )
    seconds: Histogram = seconds("ottla_quota_throttle_seconds", "Waits of clients that exceed a quota.")


@dataclass
class GroupsProbe:
    """Consumer groups that this broker coordinates."""

    shards: int = gauge(
        "ottla_group_shards", "Partitions of __consumer_offsets that this broker coordinates."
    )
    shards_loading: int = gauge(
        "ottla_group_shards_loading", "Coordinated partitions of __consumer_offsets that are still loading."
    )
    groups: Labelled = labelled("ottla_groups", "Groups by state.", "state", type="gauge")
    offsets: int = gauge("ottla_group_offsets", "Committed offsets in memory.")
    member_bytes: int = gauge(
        "ottla_group_member_bytes", "Memory of the members of all groups; at most group.members.max.bytes."
    )
    joins: int = counter("ottla_group_joins_total", "JoinGroup requests accepted.")
    rebalances: int = counter("ottla_group_rebalances_total", "Rebalances started.")
    assignments: int = counter("ottla_group_assignments_total", "Target assignments of broker-side groups.")
    assignor_failures: int = counter(
        "ottla_group_assignor_failures_total",
        "Assignments by uniform because the selected assignor failed, or its parameters are invalid.",
    )
    sessions_expired: int = counter(
        "ottla_group_sessions_expired_total", "Members removed after their session timeout."
    )
    offsets_committed: int = counter("ottla_group_offsets_committed_total", "Offsets committed.")
    offsets_expired: int = counter("ottla_group_offsets_expired_total", "Offsets expired.")
    records_skipped: int = counter(
        "ottla_group_records_skipped_total", "Records of __consumer_offsets that could not be decoded."
    )
    load_seconds: Histogram = seconds(
        "ottla_group_load_seconds", "Time from the election of a coordinator until it can answer."
    )


@dataclass
class TransactionsProbe:
    """Transactions that this broker coordinates."""

    shards: int = gauge(
        "ottla_transaction_shards", "Partitions of __transaction_state that this broker coordinates."
    )
    transactions: Labelled = labelled(
        "ottla_transactions", "Transactional ids by state of their last transaction.", "state", type="gauge"
    )
    state_bytes: int = gauge(
        "ottla_transaction_state_bytes",
        "Memory of transactional ids and partitions of open transactions; at most transaction.state.max.bytes.",
    )
    committed: int = counter(
        "ottla_transactions_committed_total", "Transactions committed in all partitions."
    )
    aborted: int = counter("ottla_transactions_aborted_total", "Transactions aborted in all partitions.")
    timed_out: int = counter(
        "ottla_transactions_timed_out_total", "Transactions aborted after their timeout."
    )
    fenced: int = counter(
        "ottla_transactions_fenced_total", "Transactions aborted because another producer took their id."
    )
    records_skipped: int = counter(
        "ottla_transaction_records_skipped_total",
        "Records of __transaction_state that could not be decoded.",
    )
    load_seconds: Histogram = seconds(
        "ottla_transaction_load_seconds", "Time from the election of a coordinator until it can answer."
    )


@dataclass
class MetadataProbe:
    """The image of the cluster and the calls to etcd."""

    revision: int = gauge("ottla_metadata_revision", "etcd revision of this broker's metadata image.")
    is_controller: int = gauge(
        "ottla_controller", "1 on the controller while its lease in etcd is alive, else 0."
    )
    lease_confirmed: int = gauge(
        "ottla_lease_confirmed", "1 while the lease of this broker in etcd is certainly alive."
    )
    brokers: int = gauge("ottla_cluster_brokers", "Registered brokers in this broker's metadata image.")
    members: int = gauge("ottla_cluster_members", "Brokers on record, online or not.")
    leaderless: int = gauge(
        "ottla_cluster_partitions_without_leader", "Partitions without a leader; counted by the controller."
    )
    lagging: int = gauge(
        "ottla_cluster_partitions_under_replicated", "Under-replicated partitions; counted by the controller."
    )
    scans: int = counter(
        "ottla_metadata_scans_total", "Full reads of the metadata: at start, and after a lost watch."
    )
    store_errors: int = counter("ottla_metadata_store_errors_total", "Calls to etcd that failed.")
    transactions: int = counter("ottla_metadata_transactions_total", "Transactions sent to etcd.")
    transactions_lost: int = counter(
        "ottla_metadata_transactions_lost_total", "Transactions that failed because another writer was first."
    )
    store_seconds: Histograms = seconds_by(
        "ottla_etcd_request_seconds", "Duration of calls to etcd, by operation.", "operation"
    )


class TopicProbe:
    """Traffic of one topic; a partition keeps the one of its topic."""

    __slots__ = ("batches_in", "bytes_in", "bytes_out", "records_in")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.batches_in = 0
        self.records_in = 0


_TOPIC_FAMILIES = (
    ("bytes_in", "ottla_topic_received_bytes_total", "Bytes of records written to the topic."),
    ("bytes_out", "ottla_topic_sent_bytes_total", "Bytes of records read from the topic."),
    ("batches_in", "ottla_topic_batches_total", "Batches written to the topic."),
    ("records_in", "ottla_topic_records_total", "Records written to the topic."),
    ("bytes_in", "kafka_server_brokertopicmetrics_bytesin_total", "Bytes written to the topic."),
    ("bytes_out", "kafka_server_brokertopicmetrics_bytesout_total", "Bytes read from the topic."),
    ("records_in", "kafka_server_brokertopicmetrics_messagesin_total", "Records written to the topic."),
)


class Topics:
    """Traffic by topic, for the first `limit` topics seen; the others share one probe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._probes: dict[str, TopicProbe] = {}
        self._other = TopicProbe()

    def of(self, topic: str) -> TopicProbe:
        probe = self._probes.get(topic)
        if probe is None:
            if len(self._probes) >= self._limit:
                return self._other
            probe = self._probes[topic] = TopicProbe()
        return probe

    def forget(self, topic: str) -> None:
        """Drop the probe of a deleted topic. Increments by components that still hold it are lost."""
        self._probes.pop(topic, None)

    def families(self) -> Iterator[Family]:
        rows: list[tuple[str, TopicProbe]] = [*self._probes.items(), (OTHER, self._other)]
        for attribute, name, doc in _TOPIC_FAMILIES:
            read = attrgetter(attribute)
            samples = starmap(partial(_of_topic, read), rows)
            yield Family(name, "counter", doc, samples)


def _of_topic(read: Callable[[TopicProbe], int], topic: str, probe: TopicProbe) -> Sample:
    return Sample("", (("topic", topic),), read(probe))


class Metrics:
    """All probes of one broker. Made once by the composition root; no global registry."""

    def __init__(self, *, topics_max: int = 1000, clients_max: int = 100) -> None:
        self.loop = LoopProbe()
        self.kafka = KafkaEdgeProbe()
        self.grpc = GrpcEdgeProbe()
        self.internal = InternalProbe()
        self.logins = LoginsProbe()
        self.log = LogProbe()
        self.partitions = PartitionsProbe()
        self.replication = ReplicationProbe()
        self.groups = GroupsProbe()
        self.transactions = TransactionsProbe()
        self.metadata = MetadataProbe()
        self.authorizer = AuthorizerProbe()
        self.quotas = QuotaProbe()
        self.topics = Topics(topics_max)
        self.kafka.times.clients_max = self.grpc.times.clients_max = clients_max
        self._refreshers: list[Callable[[], None]] = []
        self._collectors: list[Callable[[], Awaitable[None]]] = []
        self._sources: list[Callable[[], Iterable[Family | None]]] = []
        self._info: dict[str, str] = {}

    def before_scrape(self, refresh: Callable[[], None]) -> None:
        """For gauges that are cheaper to count when asked than to keep current."""
        self._refreshers.append(refresh)

    def source(
        self,
        families: Callable[[], Iterable[Family | None]],
        collect: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Add families that another component makes; it may yield None where it has worked long enough for one
        slice. `collect` gets them ready, and may wait."""
        self._sources.append(families)
        if collect is not None:
            self._collectors.append(collect)

    @property
    def collectors(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return self._collectors

    def describe(self, labels: Mapping[str, str]) -> None:
        """Facts about the process that never change: version, broker id, cluster id."""
        self._info.update(labels)

    def families(self) -> Iterator[Family]:
        """All at once."""
        return (family for family in self.exposed() if family is not None)

    def exposed(self) -> Iterator[Family | None]:
        """In slices: None where other work may go on."""
        for refresh in self._refreshers:
            refresh()
        yield None
        yield Family(
            "ottla_broker_info", "gauge", "Always 1; the labels identify the broker.",
            [Sample("", tuple(sorted(self._info.items())), 1)],
        )  # fmt: skip
        for probe in (
            self.loop,
            self.kafka,
            self.grpc,
            self.internal,
            self.logins,
            self.log,
            self.partitions,
            self.replication,
            self.groups,
            self.transactions,
            self.metadata,
            self.authorizer,
            self.quotas,
        ):
            yield from _families_of(probe)
            yield None
        # Strimzi's dashboards and JMX rules name it so; others, as in `KafkaEdgeProbe`.
        yield Family(
            "kafka_server_socket_server_metrics_connection_count", "gauge", "Open connections by listener.",
            self.kafka.connections.samples(),
        )  # fmt: skip
        yield from self.topics.families()
        yield from request_families((self.kafka.times, self.grpc.times))
        for families in self._sources:
            yield from families()


def _families_of(probe: Any) -> Iterator[Family]:
    for part in fields(probe):
        if "name" not in part.metadata:
            continue
        value = getattr(probe, part.name)
        samples = [Sample("", (), value)] if isinstance(value, int | float) else value.samples()
        yield Family(part.metadata["name"], part.metadata["type"], part.metadata["doc"], samples)
