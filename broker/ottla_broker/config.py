"""Every setting of a broker, in one typed place: names, defaults, bounds, and the reason for each. [P]

One frozen dataclass per component; a component gets its own part and never sees the rest. Names are
Kafka's where Kafka has one. `resolve` merges flag > `OTTLA_…` variable > file > default and remembers where
each value came from; it reads no files itself, `__main__.py` passes the texts.

(No slots, and a docstring on every dataclass: slots make each class twice, and without a docstring `dataclass`
spends a millisecond on making one up. This file is on the way to the first answer of a starting broker.)

Topic defaults (`log.segment.bytes`, `message.max.bytes`, …) stay text in `BrokerConfig.topic_defaults`:
`topic_config.py` owns their meaning and their validation.
"""

# ruff: noqa: RUF009  (`setting` makes a dataclass field; its defaults are immutable)
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ottla_broker.authorizer_config import AuthorizerConfig
from ottla_broker.config_sources import read_environ, read_file
from ottla_broker.groups_config import GroupsConfig
from ottla_broker.http_config import HttpConfig
from ottla_broker.internal_tls_config import InternalTlsConfig, check_internal_tls
from ottla_broker.listeners import REPLACED_BY_LISTS, SECURITY_PROTOCOLS, SSL, listeners_of
from ottla_broker.sasl_config import SaslConfig, check_sasl, is_listener_setting, mechanisms_by_listener
from ottla_broker.setting import (
    ADDRESS,
    ADDRESSES,
    BOOLEAN,
    COUNTS,
    FILE,
    INT_MAX,
    LISTENERS,
    LONG_MAX,
    NAMES,
    WORD,
    Address,
    ConfigError,
    Listener,
    Setting,
    choice,
    listener,
    nearest,
    optional,
    pairs,
    setting,
    settings_in,
    whole,
)
from ottla_broker.tls_config import TlsConfig, check_tls
from ottla_broker.topic_config import TopicConfig, definitions
from ottla_broker.transactions_config import TransactionsConfig
from ottla_core.errors import InvalidConfig

KIB = 1024
MIB = 1024 * KIB

#: Kafka's names for the broker-wide defaults of topic settings (`log.segment.bytes`, `message.max.bytes`, …).
TOPIC_DEFAULT_NAMES: tuple[str, ...] = tuple(
    sorted({synonym.name for made in definitions() for synonym in made.synonyms})
)


#: The values of `replica.selector.class`: Kafka's class, and its name without the package.
RACK_AWARE = ("org.apache.kafka.common.replica.RackAwareReplicaSelector", "RackAwareReplicaSelector")


@dataclass(frozen=True)
class ProcessConfig:
    """Identity of this broker, and its process."""

    broker_id: int = setting(
        "broker.id", "0", whole(0), "Id of this broker; on Kubernetes the ordinal of its pod."
    )
    rack: str | None = setting(
        "broker.rack",
        "",
        optional(WORD),
        "Replicas of a partition are spread over racks; consumers may read in theirs (replica.selector.class).",
    )
    rack_file: str | None = setting(
        "rack.file",
        "",
        optional(FILE),
        "File with the rack, read at start, instead of broker.rack. An empty file: no rack.",
    )
    cluster_name: str = setting(
        "cluster.name",
        "ottla",
        WORD,
        "Keys live below /ottla/<cluster.name>/ in etcd: one etcd, many clusters.",
    )
    log_format: str = setting(
        "log.format", "console", choice("console", "json"), "Format of the broker's own log."
    )
    log_level: str = setting(
        "log.level",
        "info",
        choice("debug", "info", "warning", "error"),
        "Lowest level that is logged.",
    )
    # Kubernetes kills after 30 s by default; the rest is for the process to end in.
    stop_timeout_ms: int = setting("shutdown.timeout.ms", "25000", whole(0), "Time limit of a graceful stop.")
    # 0 where addresses outlive the process: connections to a stopped broker are refused at once. On Kubernetes
    # the pod's IP disappears with it, packets to it are lost for about a second, and librdkafka then waits for 30 s.
    stop_linger_ms: int = setting(
        "shutdown.linger.ms",
        "0",
        whole(0, 60_000),
        "After its leaderships moved, a stopping broker answers clients for this time, then refuses them for as long.",
    )
    # fsync, cold reads and compaction; more threads only queue deeper on one disk.
    background_threads: int = setting(
        "background.threads", "4", whole(1, 256), "Threads for work that blocks on the disk."
    )


@dataclass(frozen=True)
class LogDirsConfig:
    """Log directories and their background work: retention, compaction, scrubbing, expiry."""

    dirs: tuple[str, ...] = setting(
        "log.dirs", "ottla-data/log", NAMES, "Directories for the partitions, each on its own volume."
    )
    # Start-up raises the soft limit of descriptors (often 1024) to the hard one; connections need theirs too.
    open_files_max: int = setting(
        "log.open.files.max",
        "4096",
        whole(16),
        "Segment and index files kept open; the others are reopened on use.",
    )
    retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        "300000",
        whole(1, LONG_MAX),
        "How often retention checks for old segments.",
    )
    checkpoint_interval_ms: int = setting(
        "log.flush.offset.checkpoint.interval.ms",
        "60000",
        whole(1),
        "How often recovery points are written to disk.",
    )
    cleaner_enabled: bool = setting(
        "log.cleaner.enable", "true", BOOLEAN, "Whether compacted topics are compacted."
    )
    cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms",
        "15000",
        whole(1, LONG_MAX),
        "Pause of the cleaner when no log needed cleaning.",
    )
    # Kafka takes 128 MiB of a 1 GiB heap; Ottla uses a dict at ~100 bytes a key: 300,000 keys a pass.
    cleaner_buffer_bytes: int = setting(
        "log.cleaner.dedupe.buffer.size",
        str(32 * MIB),
        whole(MIB, LONG_MAX),
        "Memory for the keys of one pass of the cleaner.",
    )
    cleaner_bytes_per_s: int = setting(
        # Kafka has no limit by default; a cleaner that takes the whole disk shows in produce latency.
        "log.cleaner.io.max.bytes.per.second",
        str(64 * MIB),
        whole(KIB, LONG_MAX),
        "Limit of what the cleaner reads and writes, together.",
    )
    # Two thirds of a terabyte a day for 0.3 % of one core, with batches of 16 KiB; with the smallest a twentieth
    # of a core, which is the limit.
    scrub_bytes_per_s: int = setting(
        "log.scrub.bytes.per.second",
        str(8 * MIB),
        whole(0, LONG_MAX),
        "Read rate of the scrubber, which checks the CRCs of closed segments; 0 turns it off.",
    )
    # Others scrub weekly or monthly; at this rate a broker's disk takes a day or more anyway.
    scrub_interval_ms: int = setting(
        "log.scrub.interval.ms",
        "86400000",
        whole(1, LONG_MAX),
        "Minimum time from the start of one scrubber round to the start of the next.",
    )
    producer_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        "86400000",
        whole(1),
        "How long the sequence numbers of an idle producer are kept.",
    )
    # Kafka's names and defaults. If a transaction has a coordinator, that one ends it long before.
    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms",
        "900000",
        whole(1),
        "Longest transaction timeout that a producer may ask for. A transaction that is open for longer and that no "
        "coordinator knows is aborted.",
    )
    transaction_check_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "10000",
        whole(1),
        "How often the broker checks for timed-out transactions.",
    )
    producer_expiration_check_ms: int = setting(
        "producer.id.expiration.check.interval.ms",
        "600000",
        whole(1),
        "How often the broker checks for idle producers.",
    )


@dataclass(frozen=True)
class TopicsConfig:
    """Creation and deletion of topics, and preferred leaders."""

    partitions: int = setting(
        "num.partitions",
        "1",
        whole(1, 100_000),
        "Partitions of a topic that is created without a partition count.",
    )
    replication_factor: int = setting(
        "default.replication.factor",
        "1",
        whole(1, 32_767),
        "Replicas of a topic that is created without a replication factor.",
    )
    auto_create: bool = setting(
        "auto.create.topics.enable",
        "true",
        BOOLEAN,
        "Whether a metadata request for an unknown topic creates it.",
    )
    delete_enabled: bool = setting("delete.topic.enable", "true", BOOLEAN, "Whether topics can be deleted.")
    rebalance_enabled: bool = setting(
        "auto.leader.rebalance.enable",
        "true",
        BOOLEAN,
        "Whether leaderships return to preferred replicas automatically.",
    )
    rebalance_interval_s: int = setting(
        "leader.imbalance.check.interval.seconds",
        "300",
        whole(1),
        "How often the controller checks whether leaderships should return to preferred replicas.",
    )


@dataclass(frozen=True)
class ReplicationConfig:
    """Replicas of partitions on other brokers."""

    lag_max_ms: int = setting(
        "replica.lag.time.max.ms",
        "30000",
        whole(100, LONG_MAX),
        "A follower that has not caught up for this time leaves the in-sync set.",
    )
    replica_selector: str | None = setting(
        "replica.selector.class",
        "",
        optional(choice(*RACK_AWARE)),
        "RackAwareReplicaSelector: consumers with client.rack read from an in-sync replica whose broker.rack is equal. "
        "Empty: they read from the leader.",
    )
    # Enough to copy some hundred GB again; a longer copy must not block the drain of a node for ever.
    ready_timeout_ms: int = setting(
        "replica.ready.timeout.ms",
        "3600000",
        whole(0, LONG_MAX),
        "How long a broker with replicas that are not in sync stays not ready; 0: ready at once.",
    )
    # A broker's copies share the bytes in flight of one stream per leader: a hundred at once finish no sooner than ten
    # after ten, but the last of ten is in sync, and its former replica removed, long before the last of a hundred.
    moves_max: int = setting(
        "num.concurrent.partition.movements.per.broker",
        "10",
        whole(1, 1000),
        "Replicas that a broker copies at once because partitions are moved to it; other moves wait for their turn. "
        "Can be changed at run time, for all brokers or for one; the file of the broker that is controller is used "
        "for those without such a value.",
    )


@dataclass(frozen=True)
class KafkaEdgeConfig:
    """The listener for Kafka clients and its limits."""

    listener: Listener = setting(
        "kafka.listener", "127.0.0.1:9092", listener("kafka"), "Listener for Kafka clients."
    )
    advertised: Address | None = setting(
        "kafka.advertised",
        "",
        optional(ADDRESS),
        "Address that Kafka clients connect to; port 0 means the bound port.",
    )
    listeners: tuple[Listener, ...] | None = setting(
        "listeners",
        "",
        optional(LISTENERS),
        "Listeners for Kafka clients, NAME://host:port,…; replaces kafka.listener and kafka.advertised.",
    )
    advertised_listeners: tuple[Listener, ...] | None = setting(
        "advertised.listeners",
        "",
        optional(LISTENERS),
        "Addresses that clients of these listeners connect to, by name; port 0 means the bound port.",
    )
    security_protocols: Mapping[str, str] | None = setting(
        "listener.security.protocol.map",
        "",
        optional(pairs(*SECURITY_PROTOCOLS)),
        "Security protocol of each listener, by name.",
    )
    request_max_bytes: int = setting(
        "socket.request.max.bytes",
        str(100 * MIB),
        whole(1024),
        "Maximum request size; a longer request closes its connection.",
    )
    # Kafka has no limit by default. One maximal request must fit, or it could never be read.
    queued_max_bytes: int = setting(
        "queued.max.request.bytes",
        str(128 * MIB),
        whole(MIB, LONG_MAX),
        "Memory of requests in progress, over all connections of both protocols; beyond it, reading pauses.",
    )
    # Pipelined requests of one connection are answered in order, so a deeper queue only holds memory.
    requests_max: int = setting(
        "connection.requests.max",
        "64",
        whole(1, 10_000),
        "Maximum unanswered requests of one connection; then reading pauses.",
    )
    write_buffer_bytes: int = setting(
        # Two fetch responses of librdkafka's default size: enough to keep a socket busy.
        "connection.write.buffer.bytes",
        str(2 * MIB),
        whole(64 * KIB, INT_MAX),
        "Maximum unsent bytes of one connection; beyond it, its requests wait.",
    )
    idle_max_ms: int = setting(
        "connections.max.idle.ms",
        "600000",
        whole(1, LONG_MAX),
        "An idle connection is closed after this time.",
    )
    # A connection costs ~10 KiB and a descriptor; Kafka has no limit.
    connections_max: int = setting(
        "max.connections",
        "10000",
        whole(1),
        "Maximum number of connections, divided evenly among the listeners; more are refused at once.",
    )
    connections_max_per_ip: int = setting(
        "max.connections.per.ip",
        str(INT_MAX),
        whole(0),
        "Maximum number of connections from one address, over all listeners.",
    )
    connections_max_of_ips: tuple[tuple[str, int], ...] = setting(
        "max.connections.per.ip.overrides",
        "",
        COUNTS,
        "Other maximums for single addresses: address:count,… with addresses, not names.",
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes",
        str(55 * MIB),
        whole(1024),
        "Maximum bytes of records in one fetch response, whatever the client requests.",
    )
    fetch_sessions_max: int = setting(
        "max.incremental.fetch.session.cache.slots",
        "1000",
        whole(0, 1_000_000),
        "Maximum number of fetch sessions; 0 turns them off.",
    )
    backlog: int = setting(
        "socket.listen.backlog.size",
        "128",
        whole(1, 65_535),
        "Backlog of connections that are not accepted yet.",
    )


@dataclass(frozen=True)
class GrpcEdgeConfig:
    """The listener for Ottla clients and its limits."""

    listener: Listener = setting(
        "grpc.listener", "127.0.0.1:9192", listener("grpc"), "Listener for Ottla clients."
    )
    advertised: Address | None = setting(
        "grpc.advertised",
        "",
        optional(ADDRESS),
        "Address that Ottla clients connect to; port 0 means the bound port.",
    )
    listeners: tuple[Listener, ...] | None = setting(
        "grpc.listeners",
        "",
        optional(LISTENERS),
        "Listeners for Ottla clients, NAME://host:port,…; replaces grpc.listener and grpc.advertised.",
    )
    advertised_listeners: tuple[Listener, ...] | None = setting(
        "advertised.grpc.listeners",
        "",
        optional(LISTENERS),
        "Addresses that clients of these listeners connect to, by name; port 0 means the bound port.",
    )
    # Requests of the Ottla client have 1 MiB at most. Each Produce stream that is read may bring such a message, so
    # queued.max.request.bytes divided by this is how many streams are read at the same time.
    message_max_bytes: int = setting(
        "grpc.message.max.bytes",
        str(2 * MIB),
        whole(64 * KIB),
        "Maximum message size; a longer message ends its stream.",
    )
    # The Ottla client has some five. Each may fill its window without being read.
    streams_max: int = setting(
        "grpc.streams.max", "100", whole(1, 1_000_000), "Maximum concurrent calls of one connection."
    )
    # Each may be as long as grpc.message.max.bytes. The Ottla client has one Fetch stream per connection.
    reads_max: int = setting(
        "grpc.connection.reads.max",
        "8",
        whole(1, 1_000_000),
        "Maximum messages of one connection that are read at once, except Produce; and its maximum of streams.",
    )
    # The same as for Kafka clients; docs/kubernetes.md says what each connection can cost.
    connections_max: int = setting(
        "grpc.connections.max", "10000", whole(1), "Maximum number of connections; more are refused at once."
    )
    # Produce requests of one stream that are appended but not yet answered.
    stream_requests_max: int = setting(
        "grpc.stream.requests.max",
        "64",
        whole(1, 10_000),
        "Maximum unanswered requests of one stream; then reading pauses.",
    )
    # Held by a stream that is not read. More did not raise the rate: a message that is being read may fill
    # more than the window anyway.
    stream_window_bytes: int = setting(
        "grpc.stream.window.bytes",
        str(256 * KIB),
        whole(64 * KIB, 16 * MIB),
        "HTTP/2 flow-control window of one stream.",
    )


@dataclass(frozen=True)
class InternalEdgeConfig:
    """The listener for other brokers and its limits. Clients never reach it: every call needs the cluster secret."""

    listener: Listener = setting(
        "internal.listener", "127.0.0.1:9392", listener("internal"), "Listener for other brokers."
    )
    advertised: Address | None = setting(
        "internal.advertised",
        "",
        optional(ADDRESS),
        "Address that other brokers connect to; port 0 means the bound port.",
    )
    # A file, not a value: any client that may describe configs can read a value.
    secret_file: str | None = setting(
        "cluster.secret.file",
        "",
        optional(FILE),
        "File with the secret that all brokers of a cluster share. One per line: the first signs, all are accepted.",
    )
    # A broker has two connections to each other broker: its Follow stream, and its requests. 300 brokers fit.
    connections_max: int = setting(
        "internal.connections.max",
        "1024",
        whole(16, 65_535),
        "Maximum number of connections; more are refused at once.",
    )
    # One connection carries the requests of one broker, and a client may wait for each.
    streams_max: int = setting(
        "internal.streams.max", "128", whole(8, 10_000), "Maximum concurrent calls of one connection."
    )
    # Positions of 5,000 partitions are 250 KB; a request lists partitions, or topics to create.
    message_max_bytes: int = setting(
        "internal.message.max.bytes",
        str(4 * MIB),
        whole(512 * KIB, 64 * MIB),
        "Maximum message size from another broker; a longer message ends its call.",
    )


@dataclass(frozen=True)
class EtcdConfig:
    """The connection to etcd, and how long the broker tolerates its absence."""

    endpoints: tuple[Address, ...] = setting(
        "etcd.endpoints", "127.0.0.1:2379", ADDRESSES, "Client addresses of the etcd cluster."
    )
    request_timeout_ms: int = setting(
        "etcd.request.timeout.ms", "5000", whole(100), "Timeout of one call to etcd."
    )
    connect_timeout_ms: int = setting(
        "etcd.connect.timeout.ms", "15000", whole(100), "How long start-up waits for etcd before it gives up."
    )
    user: str | None = setting("etcd.user", "", optional(WORD), "Log in to etcd as this user.")
    # A file, not a value: any client that may describe configs can read a value.
    password_file: str | None = setting(
        "etcd.password.file", "", optional(FILE), "File with the password of etcd.user."
    )
    tls: bool = setting("etcd.tls.enable", "false", BOOLEAN, "Use TLS for connections to etcd.")
    tls_ca_file: str | None = setting(
        "etcd.tls.ca.file",
        "",
        optional(FILE),
        "PEM file of CA certificates to trust instead of the system's.",
    )
    tls_certificate_file: str | None = setting(
        "etcd.tls.certificate.file", "", optional(FILE), "PEM file of the client certificate for etcd."
    )
    tls_key_file: str | None = setting(
        "etcd.tls.key.file", "", optional(FILE), "PEM file of the key of the client certificate for etcd."
    )
    # Kafka's default is 9 s; 6 s is three missed keepalives.
    session_timeout_ms: int = setting(
        "broker.session.timeout.ms", "6000", whole(2000), "TTL of the lease of the broker's registration."
    )
    heartbeat_interval_ms: int = setting(
        "broker.heartbeat.interval.ms", "2000", whole(100), "How often the lease is renewed."
    )


@dataclass(frozen=True)
class BrokerConfig:
    """The whole configuration; made by `resolve`, passed to the composition root."""

    process: ProcessConfig = field(default_factory=ProcessConfig)
    log_dirs: LogDirsConfig = field(default_factory=LogDirsConfig)
    topics: TopicsConfig = field(default_factory=TopicsConfig)
    groups: GroupsConfig = field(default_factory=GroupsConfig)
    transactions: TransactionsConfig = field(default_factory=TransactionsConfig)
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    kafka: KafkaEdgeConfig = field(default_factory=KafkaEdgeConfig)
    grpc: GrpcEdgeConfig = field(default_factory=GrpcEdgeConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    sasl: SaslConfig = field(default_factory=SaslConfig)
    authorizer: AuthorizerConfig = field(default_factory=AuthorizerConfig)
    internal: InternalEdgeConfig = field(default_factory=InternalEdgeConfig)
    internal_tls: InternalTlsConfig = field(default_factory=InternalTlsConfig)
    etcd: EtcdConfig = field(default_factory=EtcdConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    #: Only those that were set, by their server-side name, as text.
    topic_defaults: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    #: All that was set by flag, variable or file, as text: what DescribeConfigs calls static.
    static: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, values: Mapping[str, str]) -> BrokerConfig:
        """A config from settings alone, for tests and tools."""
        return resolve(values, {}, None).config


@dataclass(frozen=True)
class Origin:
    """One effective value as text, and who set it: `flag`, `variable OTTLA_…`, `file …` or `default`."""

    value: str
    source: str


@dataclass(frozen=True)
class Resolved:
    config: BrokerConfig
    #: Every setting, and every topic default that was set, by name.
    sources: Mapping[str, Origin]
    #: Sentences about what was ignored.
    warnings: tuple[str, ...] = ()


_COMPONENTS: dict[str, type] = {
    "process": ProcessConfig,
    "log_dirs": LogDirsConfig,
    "topics": TopicsConfig,
    "groups": GroupsConfig,
    "transactions": TransactionsConfig,
    "replication": ReplicationConfig,
    "kafka": KafkaEdgeConfig,
    "grpc": GrpcEdgeConfig,
    "tls": TlsConfig,
    "sasl": SaslConfig,
    "authorizer": AuthorizerConfig,
    "internal": InternalEdgeConfig,
    "internal_tls": InternalTlsConfig,
    "etcd": EtcdConfig,
    "http": HttpConfig,
}

#: Every setting with a name, a kind, a default and a reason, in the order of this file.
SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {found.name: found for component in _COMPONENTS.values() for _, found in settings_in(component)}
)

_KNOWN = frozenset((*SETTINGS, *TOPIC_DEFAULT_NAMES))


def resolve(
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    file_text: str | None,
    *,
    file_name: str = "ottla.toml",
) -> Resolved:
    """Merge the four levels. ConfigError, one sentence, if a value is unknown, malformed or contradictory."""
    merged, warnings = _merge(flags, environ, file_text, file_name)
    for name, origin in merged.items():
        _check_known(name, "given as a flag" if origin.source == "flag" else f"in {file_name}")
    config = _build(merged)
    for new, old in REPLACED_BY_LISTS:
        if new in merged and merged[new].value and old in merged:
            warnings = (*warnings, f"{old} is ignored, because {new} is set.")
    sources = {name: merged.get(name) or Origin(made.default, "default") for name, made in SETTINGS.items()}
    sources.update((name, merged[name]) for name in TOPIC_DEFAULT_NAMES if name in merged)
    return Resolved(config, MappingProxyType(sources), warnings)


def resolve_store(
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    file_text: str | None,
    *,
    file_name: str = "ottla.toml",
) -> tuple[EtcdConfig, str]:
    """The connection to etcd and the name of the cluster, for a tool that uses the settings of the brokers.

    Everything else is ignored: it lacks what only a broker has, such as its addresses on Kubernetes.
    """
    merged, _ = _merge(flags, environ, file_text, file_name)
    etcd: EtcdConfig = _component(EtcdConfig, merged)
    _check_etcd(etcd)
    process: ProcessConfig = _component(ProcessConfig, merged)
    return etcd, process.cluster_name


def _merge(
    flags: Mapping[str, str], environ: Mapping[str, str], file_text: str | None, file_name: str
) -> tuple[dict[str, Origin], tuple[str, ...]]:
    """What was set, the strongest level last; and warnings."""
    merged: dict[str, Origin] = {}
    if file_text is not None:
        for name, value in read_file(file_text, file_name).items():
            merged[name] = Origin(value, f"file {file_name}")
    from_environ, warnings = read_environ(environ, _KNOWN)
    for name, (value, variable) in from_environ.items():
        merged[name] = Origin(value, f"variable {variable}")
    merged.update((name, Origin(value, "flag")) for name, value in flags.items())
    return merged, warnings


def _check_known(name: str, where: str) -> None:
    if name not in _KNOWN and not is_listener_setting(name):
        raise ConfigError(f"There is no setting {name!r} ({where}){nearest(name, sorted(_KNOWN))}")


def _component(component: type, merged: Mapping[str, Origin]) -> Any:
    values: dict[str, Any] = {}
    for attribute, made in settings_in(component):
        if (origin := merged.get(made.name)) is not None:
            values[attribute] = made.parse(origin.value, origin.source)
    return component(**values)


def _build(merged: Mapping[str, Origin]) -> BrokerConfig:
    parts: dict[str, Any] = {part: _component(component, merged) for part, component in _COMPONENTS.items()}
    parts["sasl"] = replace(
        parts["sasl"],
        mechanisms_of=mechanisms_by_listener({name: (o.value, o.source) for name, o in merged.items()}),
    )
    config = BrokerConfig(
        **parts,
        topic_defaults=MappingProxyType(
            {name: merged[name].value for name in TOPIC_DEFAULT_NAMES if name in merged}
        ),
        static=MappingProxyType({name: origin.value for name, origin in merged.items()}),
    )
    _check_together(config)
    return config


def _check_etcd(etcd: EtcdConfig) -> None:
    if (etcd.user is None) != (etcd.password_file is None):
        raise ConfigError("etcd.user and etcd.password.file go together: set both or none.")
    if (etcd.tls_certificate_file is None) != (etcd.tls_key_file is None):
        raise ConfigError("etcd.tls.certificate.file and etcd.tls.key.file go together: set both or none.")
    if not etcd.tls and (etcd.tls_ca_file or etcd.tls_certificate_file):
        raise ConfigError("etcd.tls.ca.file and etcd.tls.certificate.file need etcd.tls.enable=true.")


def bind_addresses(config: BrokerConfig) -> list[tuple[str, Address]]:
    """Every address that the broker binds, and the setting that it comes from."""
    http = Address(config.http.listener.host, config.http.listener.port)
    return [(each.setting, each.bind) for each in listeners_of(config)] + [("http.listener", http)]


def _check_together(config: BrokerConfig) -> None:
    """Check settings against each other."""
    try:
        TopicConfig.resolve({}, config.topic_defaults)
    except InvalidConfig as refused:
        raise ConfigError(str(refused)) from None
    taken: dict[Address, str] = {}
    for name, bound in bind_addresses(config):
        if bound.port and bound in taken:
            raise ConfigError(f"{name} and {taken[bound]} cannot both be {bound}.")
        taken[bound] = name
    if config.kafka.queued_max_bytes < config.kafka.request_max_bytes:
        raise ConfigError(
            f"queued.max.request.bytes ({config.kafka.queued_max_bytes}) must be at least "
            f"socket.request.max.bytes ({config.kafka.request_max_bytes}), or it could never be read."
        )
    _check_etcd(config.etcd)
    served = listeners_of(config)
    secured = [each.name for each in served if each.has_tls and each.protocol != "internal"]
    check_tls(config.tls, [*secured, *(["http"] if config.http.security == SSL else [])])
    check_internal_tls(config.internal_tls)
    check_sasl(config.sasl, [each.name for each in served if each.has_sasl and each.protocol == "kafka"])
    if config.etcd.heartbeat_interval_ms * 2 > config.etcd.session_timeout_ms:
        raise ConfigError(
            f"broker.heartbeat.interval.ms ({config.etcd.heartbeat_interval_ms}) must be at most half of "
            f"broker.session.timeout.ms ({config.etcd.session_timeout_ms}), or one lost heartbeat expires the lease."
        )
