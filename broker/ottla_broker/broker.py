"""The composition root: wires the parts of one broker, starts and stops them in order, and decides nothing. [S]

Start, in the order that safety asks for (design rules 1 and 3):

1. log directories are opened and locked, and after a dirty stop recovered;
2. listeners are bound, so that their addresses are known;
3. the broker registers; the controller moves its former leaderships to new epochs and admits it;
4. from then on it leads partitions as the image says, and the edges serve.

Stop is the reverse: hand leaderships over, stop serving, leave the cluster, flush and close the logs, mark them clean.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ottla_broker.authn.logins import Logins
from ottla_broker.authorizer import AuthorizerSettings
from ottla_broker.cluster_secret import ClusterSecret, SecretMissing
from ottla_broker.config import BrokerConfig
from ottla_broker.controller.leaders import is_handed_over
from ottla_broker.controller.producer_id_blocks import ProducerIdBlocks
from ottla_broker.controller.service import Controller
from ottla_broker.edge.grpc.internal_server import InternalEdge
from ottla_broker.edge.grpc.server import GrpcEdge
from ottla_broker.edge.grpc.turns import turns_within
from ottla_broker.edge.kafka.sasl import Sasl
from ottla_broker.edge.kafka.server import KafkaEdge
from ottla_broker.edge.kafka.tls_accept import Security
from ottla_broker.edge.memory import Memory
from ottla_broker.edge.seats import Addresses, Seats
from ottla_broker.event_loop import LagProbe, next_turn
from ottla_broker.exporter import Exporter
from ottla_broker.listeners import PLAINTEXT, SSL, ServedListener, listeners_of
from ottla_broker.log.dirs import LogDirs
from ottla_broker.membership.broker_rpc import BrokerRpc
from ottla_broker.membership.failure_detector import FailureDetector
from ottla_broker.membership.registration import Registration
from ottla_broker.metadata.cluster_id import find_or_create_cluster_id
from ottla_broker.metadata.history import Seen
from ottla_broker.metadata.image import BrokerImage, ClusterImage, Endpoint
from ottla_broker.metadata.metered_store import MeteredStore
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.metrics import Metrics
from ottla_broker.observe.disks import DiskMetrics
from ottla_broker.observe.lag import LagMetrics
from ottla_broker.observe.partitions import PartitionMetrics
from ottla_broker.partition.dir_mover import DirMover
from ottla_broker.partition.host import PartitionHost
from ottla_broker.partition.housekeeping import Housekeeping
from ottla_broker.peer_wiring import PeerWiring
from ottla_broker.readiness import CatchUp
from ottla_broker.replication.grpc_peers import GrpcPeers, Locate, PeerAddress
from ottla_broker.replication.peer_auth import PeerAuth, SecretAuth
from ottla_broker.scheduler import Scheduler
from ottla_broker.service.access import Authority, Bystander
from ottla_broker.service.acls import AclService
from ottla_broker.service.audit import Audit
from ottla_broker.service.broker_dirs import BrokerDirs
from ottla_broker.service.cluster import ClusterService
from ottla_broker.service.configs import ConfigService, broker_defaults, care_config
from ottla_broker.service.controller_calls import ControllerCalls
from ottla_broker.service.group_lag import GroupLags
from ottla_broker.service.groups import GroupService
from ottla_broker.service.log_dirs import LogDirService
from ottla_broker.service.log_ends import LogEnds
from ottla_broker.service.metrics_pages import MetricsPages
from ottla_broker.service.producer_ids import ProducerIds
from ottla_broker.service.producing import Producing
from ottla_broker.service.quotas import QuotaService
from ottla_broker.service.records import RecordService
from ottla_broker.service.replica_sizes import ReplicaSizes
from ottla_broker.service.services import Services
from ottla_broker.service.throttling import Throttling
from ottla_broker.service.topics import TopicService
from ottla_broker.service.transactions import TransactionService
from ottla_broker.service.txn_verifying import TransactionVerifying
from ottla_broker.service.users import UserService
from ottla_broker.setting import Address, Listener
from ottla_broker.throttle_config import dir_rate
from ottla_broker.topic_config import TopicConfig
from ottla_broker.visits import stepped
from ottla_core import compiled
from ottla_core.assignors.plugins import load_assignors
from ottla_core.errors import InvariantViolation
from ottla_core.ids import NO_BROKER
from ottla_core.ports.chance import Chance
from ottla_core.ports.clock import Clock
from ottla_core.ports.disk import Disk
from ottla_core.ports.offload import Offload
from ottla_core.ports.peers import Peers
from ottla_core.ports.store import MetadataStore, StoreError
from ottla_core.records.structure import RECORDS_PER_TURN, RECORDS_PER_TURN_COMPILED

if TYPE_CHECKING:
    from ottla_broker.authn.tokens import Tokens
    from ottla_broker.replication.peer_tls import PeerTls
    from ottla_broker.tls_files import TlsFiles

#: How long a starting broker waits to be admitted; a controller that has to move ten thousand leaderships
#: needs about a second.
_ADMISSION_TIMEOUT_S = 30.0
#: A controller moves ten thousand leaderships in about a second; without one nothing moves.
_HAND_OVER_TIMEOUT_S = 8.0
#: Time for pending requests when a stop begins.
_STOP_GRACE_S = 3.0
#: Threads that close logs at a stop: with four, fsyncs of a thousand files take a quarter of the time.
_CLOSING_SHARES = 4


#: How soon others lead what was in a log directory that has failed; after the last one the broker ends.
_DIRS_CHECK_S = 0.5


class NoLogDirectory(Exception):
    """Every log directory has failed."""


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        disk: Disk,
        offload: Offload,
        chance: Chance,
        store: MetadataStore,
        log: Any,
        secret: ClusterSecret,
        tls: TlsFiles | None = None,
        peer_tls: PeerTls | None = None,
        users: Mapping[str, str] | None = None,
        login_offload: Offload | None = None,
        make_peers: Callable[[Locate, PeerAuth, PeerTls | None], Peers] = GrpcPeers,
    ) -> None:
        """`secret` is the shared secret of the cluster; `tls` is needed if a listener for clients has TLS,
        `peer_tls` for TLS between brokers. `users` have passwords in a file (`sasl.users.file`); passwords are checked
        by `login_offload`, or else by `offload`."""
        self._config = config
        self._secret = secret
        self._tls = tls
        self._peer_tls = peer_tls
        self._users = users or {}
        self._login_offload = login_offload or offload
        self._make_peers = make_peers
        self._clock = clock
        self._disk = disk
        self._offload = offload
        self._chance = chance
        self._log = log
        self._metrics = Metrics(topics_max=config.http.topics_max, clients_max=config.http.clients_max)
        self._audit = Audit(config.authorizer.audit_level, self._metrics.authorizer)
        self._lag = LagProbe(self._metrics.loop.lag_seconds.observe)
        self._store: MetadataStore = MeteredStore(store, self._metrics.metadata, clock)
        context = tls.context_for_logins if tls is not None and config.http.security == SSL else None
        self._scheduler = Scheduler(clock.monotonic, next_turn, self._metrics.loop.turn_seconds.observe)
        self._pages = MetricsPages(
            self._metrics, partial(stepped, self._scheduler), timeout_s=config.http.timeout_ms / 1000
        )
        self._exporter = Exporter(config.http, self._pages, self.not_ready, context, clock)
        #: Bound addresses: the main listener of each protocol by protocol, the others as `listener.<name>`.
        self.addresses: dict[str, Address] = {}
        self._waiting_for: str | None = "the broker has not started"
        self._catch_up = CatchUp(
            config.process.broker_id, timeout_s=config.replication.ready_timeout_ms / 1000
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._failed = asyncio.Event()
        self._failure: BaseException | None = None
        self._dirs: LogDirs | None = None

    def not_ready(self) -> Sequence[str]:
        """Why this broker should get no traffic; empty when it should."""
        if self._waiting_for is not None:
            return [self._waiting_for]
        reasons = []
        if self._metadata.refusal is not None:
            reasons.append(self._metadata.refusal)
        if not self._dirs or not self._dirs.online:
            reasons.append("no log directory is online")
        behind = self._catch_up.reason(self._metadata.image, self._clock.monotonic())
        if behind is not None:
            reasons.append(behind)
        return reasons

    # ------------------------------------------------------------------ start

    async def start(self) -> None:
        config = self._config
        self._waiting_for = "log directories are being opened"
        self.addresses["http"] = Address(config.http.listener.host, await self._exporter.start())
        await self._open_dirs()
        self._waiting_for = "the broker is not registered"
        await self._bind()
        await self._join()
        await self._logins.add_users(self._users)
        self._waiting_for = None
        self._lag.start()
        # Other brokers first: clients are served when replication can begin.
        for _, edge in sorted(self._edges, key=lambda each: each[0].protocol != "internal"):
            await edge.serve()

    async def _open_dirs(self) -> None:
        """Read the log directories, after a dirty stop with a scan, and find out which cluster this is."""
        config = self._config
        dirs = LogDirs(
            self._disk,
            config.log_dirs.dirs,
            broker_id=config.process.broker_id,
            chance=self._chance,
            probe=self._metrics.log,
            records_per_turn=RECORDS_PER_TURN_COMPILED if compiled.is_in_use() else RECORDS_PER_TURN,
        )
        await self._offload.run(lambda: dirs.open(now_ms=self._clock.wall_ms()))
        recoveries, revision = dirs.history
        seen = Seen(dirs.cluster_id, revision, recoveries)
        cluster_id = await find_or_create_cluster_id(self._store, self._chance, seen)
        dirs.join_cluster(cluster_id)
        self._dirs = dirs
        self._wire_cluster(dirs, replace(seen, cluster_id=cluster_id))
        self._wire_services(dirs)
        self._metrics.describe({"broker": str(config.process.broker_id), "cluster_id": cluster_id})

    def _wire_cluster(self, dirs: LogDirs, seen: Seen) -> None:
        """What makes this broker one of several: metadata, partitions, controller, peers. Nothing runs yet."""
        config, metrics = self._config, self._metrics
        self._metadata = Metadata(
            self._store, self._clock, self._chance, seen=seen, on_refusal=self._on_refusal
        )
        own, incarnation = config.process.broker_id, self._chance.uuid()
        self._wire_peers(seen.cluster_id or "", incarnation)
        self._host = PartitionHost(
            config.process.broker_id,
            dirs,
            self._clock,
            self._offload,
            metrics,
            lambda image: broker_defaults(config, image),
            lag_max_s=config.replication.lag_max_ms / 1000,
            is_rack_aware=config.replication.replica_selector is not None,
        )
        self._registration = Registration(
            self._store,
            self._clock,
            self._metadata,
            BrokerImage(own, incarnation, (), config.process.rack, directories=dirs.ids, torn=dirs.torn),
            ttl_s=config.etcd.session_timeout_ms // 1000,
            interval_s=config.etcd.heartbeat_interval_ms / 1000,
        )
        log_ends = LogEnds(config.process.broker_id, self._host, self._metadata, self._rpc)
        self._controller = Controller(
            self._store,
            self._clock,
            self._chance,
            self._metadata,
            self._registration,
            validate=lambda values: TopicConfig.validate(
                values, broker_defaults(config, self._metadata.image)
            ),
            defaults=lambda image: broker_defaults(config, image),
            care=care_config(config),
            ask_positions=log_ends.ask,
        )
        self._detector = FailureDetector(
            self._store,
            self._clock,
            self._metadata,
            self._registration,
            self._peers,
            self._rpc,
            ttl_s=config.etcd.session_timeout_ms / 1000,
        )
        self._calls = ControllerCalls(own, self._controller, self._metadata, self._clock, self._rpc)
        self._peer_wiring = PeerWiring(
            own,
            incarnation,
            self._host,
            self._metadata,
            self._store,
            self._peers,
            answer=self._rpc.answer,
            suspect=self._detector.suspect,
            is_confirmed=lambda: self._registration.confirmed,
            clock=self._clock,
            offload=self._offload,
            chance=self._chance,
            probe=metrics.replication,
        )

    def _wire_peers(self, cluster_id: str, incarnation: UUID) -> None:
        """The way to other brokers, whose addresses the image has."""
        own = self._config.process.broker_id
        self._auth = SecretAuth(self._secret.values, cluster_id, own, incarnation)
        self._peers = self._make_peers(self._address_of, self._auth, self._peer_tls)
        self._rpc = BrokerRpc(self._peers)

    def _wire_services(self, dirs: LogDirs) -> None:
        """What serves clients, on top of what `_wire_cluster` has made."""
        config, metrics = self._config, self._metrics
        blocks = ProducerIdBlocks(self._store, self._clock, self._chance, self._metadata)
        producer_ids = ProducerIds(blocks.allocate)
        records = RecordService(
            self._host,
            producer_ids,
            self._clock,
            self._offload,
            metrics,
            self._scheduler,
        )
        topics = TopicService(config.topics, self._metadata, self._calls, self._detector.settling)
        self._groups = self._make_groups(topics)
        mover = self._dir_mover = DirMover(
            dirs,
            self._disk,
            self._clock,
            self._offload,
            rate=lambda: dir_rate(broker_defaults(config, self._metadata.image)),
            checkpoint=lambda: dirs.checkpoint_work(self._host.high_watermarks()),
        )
        log_dirs = LogDirService(dirs, self._host, self._disk, self._offload, moves_begun=mover.wake)
        broker_dirs = BrokerDirs(config.process.broker_id, log_dirs, self._rpc)
        sizes = ReplicaSizes(config.process.broker_id, log_dirs, self._rpc)
        self._transactions = self._make_transactions(topics, producer_ids)
        services = Services(
            config,
            self._metadata,
            records,
            Producing(records, TransactionVerifying(self._host, self._transactions).verify),
            topics,
            ConfigService(config, self._metadata, self._calls),
            self._groups,
            log_dirs,
            ClusterService(self._metadata, self._calls, sizes, broker_dirs),
            self._transactions,
            UserService(self._metadata, self._calls),
            AclService(self._metadata, self._calls, enabled=config.authorizer.class_name is not None),
            GroupLags(
                config.process.broker_id, self._host, self._metadata, self._rpc, self._clock, self._offload
            ),
            QuotaService(self._metadata, self._calls),
            self._pages,
            Throttling(self._metadata, self._clock, metrics.quotas),
            self._make_authority(),
        )
        self._logins = Logins(
            lambda: self._metadata.image.scram_credentials,
            self._secret.values[0],
            self._clock,
            self._login_offload,
            metrics.logins,
            delay_s=config.sasl.failure_delay_ms / 1000,
            tokens=self._make_tokens(),
            audit=self._audit,
        )
        self._make_edges(services)
        self._housekeeping = Housekeeping(
            self._host,
            dirs,
            config.log_dirs,
            self._clock,
            self._offload,
            metrics.log,
            self._transactions.owners,
        )
        metrics.before_scrape(self._refresh_metrics)
        self._add_sources(services)

    def _make_tokens(self) -> Tokens | None:
        config = self._config.sasl
        if config.jwks_url is None:
            return None
        from ottla_broker.authn.token_wiring import tokens_of  # Its libraries cost 0.1 s and 10 MB.

        return tokens_of(config, self._clock, self._offload)

    def _add_sources(self, services: Services) -> None:
        """Metrics that are collected when Prometheus asks."""
        config, metrics = self._config, self._metrics
        limits = config.http
        partitions = PartitionMetrics(
            self._host,
            self._clock,
            metrics,
            lambda: self._metadata.image,
            lambda: self._controller.is_active,
            lambda: self._controller.unclean_elections,
            partitions_max=limits.partitions_max,
        )
        metrics.source(partitions.families)
        files = [files for files in (self._tls, self._peer_tls and self._peer_tls.files) if files]
        if files:
            from ottla_broker.tls_files import certificate_families

            metrics.source(lambda: certificate_families(files))
        disks = DiskMetrics(
            services.log_dirs, topics_max=limits.topics_max, partitions_max=limits.partitions_max
        )
        metrics.source(disks.families, disks.refresh)
        lag = LagMetrics(self._groups, services.lags, self._clock, series_max=limits.lags_max)
        metrics.source(lag.families, lag.refresh)

    def _make_edges(self, services: Services) -> None:
        config, metrics = self._config, self._metrics
        memory = Memory(config.kafka.queued_max_bytes)
        addresses = Addresses(config.kafka.connections_max_per_ip, dict(config.kafka.connections_max_of_ips))
        turns = turns_within(memory, config.grpc.message_max_bytes)
        served = listeners_of(config)
        rules, files = config.tls.principal_rules, self._tls
        listeners = Counter(listener.protocol for listener in served)
        edges: list[KafkaEdge | GrpcEdge | InternalEdge] = []
        for listener in served:
            bind = Listener(listener.name, listener.bind.host, listener.bind.port)
            if listener.protocol == "kafka":
                seats = Seats(max(1, config.kafka.connections_max // listeners["kafka"]), addresses)
                kafka = KafkaEdge(
                    services,
                    replace(config.kafka, listener=bind),
                    metrics.kafka,
                    clock=self._clock,
                    memory=memory,
                    scheduler=self._scheduler,
                    seats=seats,
                    security=self._security(listener),
                    sasl=self._sasl(listener),
                    on_violation=self.on_violation,
                )
                edges.append(kafka)
            elif listener.protocol == "grpc":
                # gRPC counts the connections of each listener for itself.
                most = max(1, config.grpc.connections_max // listeners["grpc"])
                own = replace(config.grpc, listener=bind, connections_max=most)
                grpc = GrpcEdge(
                    services,
                    own,
                    metrics.grpc,
                    memory=memory,
                    turns=turns,
                    scheduler=self._scheduler,
                    credentials=files.grpc_credentials(logins=listener.has_sasl)
                    if files and listener.has_tls
                    else None,
                    rules=rules if listener.security == SSL else None,
                    logins=self._logins if listener.has_sasl else None,
                    on_violation=self.on_violation,
                )
                edges.append(grpc)
            else:
                internal = InternalEdge(
                    self._peer_wiring,
                    self._auth,
                    config.internal,
                    self._clock,
                    metrics.internal,
                    metrics.grpc,
                    credentials=self._peer_tls and self._peer_tls.server_credentials(),
                    on_violation=self.on_violation,
                )
                edges.append(internal)
        self._edges = tuple(zip(served, edges, strict=True))

    def _security(self, listener: ServedListener) -> Security | None:
        """TLS of a listener for Kafka clients."""
        files = self._tls
        if files is None or not listener.has_tls:
            return None
        if listener.has_sasl:
            return Security(files.context_for_logins, None)
        return Security(files.context, self._config.tls.principal_rules)

    def _sasl(self, listener: ServedListener) -> Sasl | None:
        """Logins of a listener for Kafka clients."""
        if not listener.has_sasl:
            return None
        config = self._config.sasl
        return Sasl(self._logins, config, config.enabled(listener.name), listener.name)

    def _address_of(self, broker_id: int) -> PeerAddress | None:
        """Address of another broker's internal listener."""
        broker = self._metadata.image.brokers.get(broker_id)
        found = None if broker is None else broker.endpoint("internal")
        if broker is None or found is None:
            return None
        return PeerAddress(found.host, found.port, broker.incarnation, found.security == SSL)

    def _on_refusal(self, reason: str) -> None:
        """Rule 18: controller, leaders and detector look at the refusal before they write; `not_ready` shows it."""
        self._log.error("etcd lost history; metadata changes are suspended", reason=reason)

    def _make_authority(self) -> Authority | Bystander | None:
        settings = self._config.authorizer
        if settings.class_name is None:
            return None if settings.audit_level == "off" else Bystander(self._audit)
        rules = AuthorizerSettings(settings.super_users, settings.allow_if_no_acl)
        return Authority(rules, self._metadata, self._audit)

    def _make_groups(self, topics: TopicService) -> GroupService:
        return GroupService(
            self._config.groups,
            self._metadata,
            topics,
            self._host,
            self._clock,
            self._offload,
            self._chance,
            self._metrics.groups,
            load_assignors(),
        )

    def _make_transactions(self, topics: TopicService, producer_ids: ProducerIds) -> TransactionService:
        return TransactionService(
            self._config,
            self._metadata,
            topics,
            self._groups,
            self._host,
            self._rpc,
            producer_ids,
            self._clock,
            self._offload,
            self._metrics.transactions,
        )

    async def _bind(self) -> None:
        """Bind the ports before they are announced; port 0 becomes the bound one."""
        endpoints = []
        for listener, edge in self._edges:
            port = await edge.bind(listener.bind.host, listener.bind.port)
            bound, advertised = Address(listener.bind.host, port), listener.endpoint(port)
            if self.addresses.setdefault(listener.protocol, bound) is not bound:
                self.addresses[f"listener.{listener.name}"] = bound
            endpoints.append(
                Endpoint(
                    listener.name,
                    listener.protocol,
                    advertised.host,
                    advertised.port,
                    # Clients know the security of their listeners; only brokers ask the image for it.
                    listener.security if listener.protocol == "internal" else PLAINTEXT,
                )
            )
        self._registration.broker = replace(self._registration.broker, endpoints=tuple(endpoints))

    async def _join(self) -> None:
        image = await self._metadata.load()
        self._check_alone(image)
        self._waiting_for = "logs are being opened"
        await self._offload.run(lambda: self._host.open_logs(image))
        self._warn_of_new_directories(image)
        torn = self._dirs.torn if self._dirs is not None else ()
        self._registration.broker = replace(
            self._registration.broker, torn=torn, offline=self._host.give_up_broken()
        )
        self._waiting_for = "the broker is not registered"
        await self._registration.register(self._config.etcd.session_timeout_ms / 1000 * 2)
        self._metadata.subscribe(self._host.on_image)
        # After the partitions: coordinators follow their roles.
        self._metadata.subscribe(self._groups.on_image)
        self._metadata.subscribe(self._transactions.on_image)
        for name, work in (
            ("metadata", self._metadata.run()),
            ("registration", self._registration.run()),
            ("controller", self._controller.run()),
            ("failure detector", self._detector.run()),
        ):
            self._begin(name, work)
        own = self._config.process.broker_id
        await self._metadata.wait_until(self._is_admitted, _ADMISSION_TIMEOUT_S)
        self._check_alone(self._metadata.image)
        self._host.admit(self._metadata.image)
        for coordinator in (self._groups, self._transactions):
            coordinator.on_image(ClusterImage(cluster_id=""), self._metadata.image)
        self._log.info("admitted", broker=own, partitions=len(self._host))
        self._begin("log directories", self._watch_dirs())
        self._begin("housekeeping", self._housekeeping.run())
        self._begin("dir mover", self._dir_mover.run())
        self._begin("in-sync sets", self._host.run())
        self._begin("followers", self._peer_wiring.run())

    def _check_alone(self, image: ClusterImage) -> None:
        """Without a shared secret this broker can neither follow others nor be followed, so it must be the only one."""
        others = sorted({*image.brokers, *image.members} - {self._config.process.broker_id})
        if others and not self._secret.is_shared:
            raise SecretMissing(
                f"The cluster has other brokers ({', '.join(map(str, others[:5]))}), and this one does not know their "
                "secret: set cluster.secret.file to the file that they use."
            )

    def _warn_of_new_directories(self, image: ClusterImage) -> None:
        """This broker was here before with other log directories: a volume was replaced, and its copies are lost."""
        own = self._config.process.broker_id
        member, present = image.members.get(own), self._dirs.ids if self._dirs is not None else ()
        missing = [str(each) for each in member.directories if each not in present] if member else []
        if missing:
            held = sum(own in p.replicas for topic in image.topics.values() for p in topic.partitions)
            self._log.warning(
                "log directories are missing or empty; copying their replicas from other brokers",
                broker=own,
                missing=missing,
                present=[str(each) for each in present],
                replicas=held,
            )

    def _is_admitted(self, image: ClusterImage) -> bool:
        """The controller has admitted this very incarnation, and there is one to ask for changes."""
        member = image.members.get(self._config.process.broker_id)
        ours = member is not None and member.incarnation == self._registration.broker.incarnation
        return ours and image.controller != NO_BROKER

    async def _watch_dirs(self) -> None:
        """Announce partitions of failed directories, so that other brokers lead them. Stop when none is left."""
        while self._dirs is not None and self._dirs.online:
            await self._announce_offline()
            await self._clock.sleep(_DIRS_CHECK_S)
        failed = [f"{log_dir.path}: {log_dir.error}" for log_dir in self._dirs.dirs] if self._dirs else []
        raise NoLogDirectory(f"All log directories have failed ({'; '.join(failed)}).")

    async def _announce_offline(self) -> None:
        """Retry until the image shows the announcement: any attempt may get lost."""
        offline = self._host.give_up_broken()
        registered = self._metadata.image.brokers.get(self._config.process.broker_id)
        if registered is None or registered.offline == offline:
            return
        before, count = (sum(map(len, o.values())) for o in (self._registration.broker.offline, offline))
        if count > before:
            self._log.error("partitions have no usable log; other brokers must lead them", partitions=count)
        elif count < before:
            self._log.info("logs are usable again", partitions=before - count, still_offline=count)
        try:
            await self._registration.announce_offline(offline)
        except StoreError as error:
            self._log.warning("offline partitions not announced yet", reason=str(error))

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._on_ended)
        self._tasks.append(task)

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        """Parts run as long as the broker does: one that ends by itself takes the broker along."""
        if not task.cancelled():
            error = task.exception()
            self._log.error("background task failed; shutting down", part=task.get_name(), error=repr(error))
            self._failure = self._failure or error or RuntimeError(f"{task.get_name()} ended")
            self._failed.set()

    def on_violation(self, violation: InvariantViolation) -> None:
        """An invariant is violated, so nothing that this broker would do next can be trusted: it stops."""
        if self._failure is None:
            self._log.error("invariant violated; shutting down", invariant=str(violation))
            self._failure = violation
            self._failed.set()

    # ------------------------------------------------------------------ run and stop

    async def run_until(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; raises the error if a part of the broker fails."""
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(stop.wait()), loop.create_task(self._failed.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """Graceful stop: hand leaderships over, answer pending requests, leave the cluster, flush, mark the logs clean.

        `shutdown.linger.ms` is spent twice. With the listeners open, clients learn the new leaders and have no more
        reason to connect here. With the listeners closed, clients that were idle are disconnected, refused at once
        when they connect again, and look up the leaders elsewhere.

        After an invariant violation the broker stops as if killed: it answers no more, and the next start scans the
        logs.
        """
        serves, self._waiting_for = self._waiting_for is None, "the broker is stopping"
        self._lag.stop()
        linger_s = self._config.process.stop_linger_ms / 1000 if serves and self._failure is None else 0.0
        if serves and self._failure is None and await self._hand_over():
            await self._clock.sleep(linger_s)
        if self._dirs is not None and isinstance(self._failure, InvariantViolation):
            await self._stop_parts(grace_s=0.0)
            self._dirs.abandon()
        elif self._dirs is not None:
            await self._stop_parts(grace_s=_STOP_GRACE_S)
            watermarks, dirs = self._host.high_watermarks(), self._dirs
            await asyncio.gather(*(self._offload.run(work) for work in dirs.closing(_CLOSING_SHARES)))
            await self._offload.run(lambda: dirs.close(watermarks))
            await self._clock.sleep(linger_s)
        await self._exporter.stop()
        await self._pages.stop()

    async def _hand_over(self) -> bool:
        """Move leaderships to other brokers first, so that no client notices; bounded. False if that failed."""
        own, config = self._config.process.broker_id, self._config
        if len(self._metadata.image.brokers) < 2:
            return False
        try:
            await self._registration.announce_stop()
            await self._metadata.wait_until(
                lambda image: is_handed_over(image, own, broker_defaults(config, image)), _HAND_OVER_TIMEOUT_S
            )
            await self._controller.resign()
        except (StoreError, TimeoutError) as error:
            self._log.warning("stopping without handing over leaderships", reason=str(error))
            return False
        return True

    async def _stop_parts(self, *, grace_s: float) -> None:
        self._detector.end()
        self._groups.close()
        self._transactions.close()
        self._host.close()
        await self._peer_wiring.stop()
        await asyncio.gather(*(edge.stop(grace_s) for _, edge in self._edges))
        self._audit.flush()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._calls.close()
        await self._peers.close()
        try:
            await self._registration.withdraw()
        except StoreError as error:
            self._log.warning("registration not removed from etcd; the lease will expire", reason=str(error))

    def _refresh_metrics(self) -> None:
        self._host.refresh_metrics()
        self._groups.refresh_metrics()
        self._transactions.refresh_metrics()
        self._metrics.loop.queued = self._scheduler.waiting
        probe = self._metrics.metadata
        probe.revision = self._metadata.image.revision
        probe.lease_confirmed = int(self._registration.confirmed)
        # Without a lease it changes nothing, so an outage of etcd shows as a cluster without a controller.
        probe.is_controller = int(self._controller.is_active and self._registration.confirmed)
        probe.brokers = len(self._metadata.image.brokers)
        probe.members = len(self._metadata.image.members)
        # Only there, so that a sum over all brokers is the truth.
        states = (
            [p for t in self._metadata.image.topics.values() for p in t.partitions]
            if self._controller.is_active
            else []
        )
        probe.leaderless = sum(p.leader == NO_BROKER for p in states)
        probe.lagging = sum(p.is_under_replicated for p in states)
        self._metrics.log.dirs_offline = len(self._dirs.offline) if self._dirs else 0
