"""The gRPC listener for clients: options, limits, which method is served by what, start and stop. [A]

Made by the broker's composition root. Holds no logic: `log_service` and `admin_service` translate, the
services behind them decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import OVERALL_HEALTH
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from ottla_broker.authn.logins import Logins
from ottla_broker.caller import Caller
from ottla_broker.config import GrpcEdgeConfig
from ottla_broker.edge import needs
from ottla_broker.edge.grpc.acls_service import ACLS_CALLS, ACLS_SERVICE, AclServices, AclsService
from ottla_broker.edge.grpc.admin_service import AdminService, Cluster
from ottla_broker.edge.grpc.bounds import bounded
from ottla_broker.edge.grpc.callers import Principals, caller_of
from ottla_broker.edge.grpc.cluster_service import CLUSTER_CALLS, ClusterAdminService, ClusterServices
from ottla_broker.edge.grpc.groups_service import GROUPS_CALLS, GROUPS_SERVICE, GroupServices, GroupsService
from ottla_broker.edge.grpc.listening import bind_port, options
from ottla_broker.edge.grpc.log_service import LogService, LogServices
from ottla_broker.edge.grpc.login_first import LoginFirst
from ottla_broker.edge.grpc.meter import CallMeter
from ottla_broker.edge.grpc.probe import GrpcProbe
from ottla_broker.edge.grpc.quotas_service import QUOTAS_CALLS, QUOTAS_SERVICE, QuotasService, QuotasServices
from ottla_broker.edge.grpc.reads import Reads
from ottla_broker.edge.grpc.refusal import Refusals
from ottla_broker.edge.grpc.transactions_service import (
    TRANSACTIONS_CALLS,
    TRANSACTIONS_SERVICE,
    TransactionServices,
    TransactionsService,
)
from ottla_broker.edge.grpc.turns import Turns, turns_within
from ottla_broker.edge.grpc.users_service import USERS_CALLS, UsersService, UsersServices
from ottla_broker.edge.memory import Memory
from ottla_broker.event_loop import loop_time, next_turn
from ottla_broker.exposed import Histogram
from ottla_broker.scheduler import Scheduler
from ottla_core.errors import InvariantViolation, invariant
from ottla_core.pb import broker_pb2 as pb

LOG_SERVICE = "ottla.v1.Log"
ADMIN_SERVICE = "ottla.v1.Admin"
_SERVICES = (LOG_SERVICE, ADMIN_SERVICE, GROUPS_SERVICE, TRANSACTIONS_SERVICE, ACLS_SERVICE, QUOTAS_SERVICE)

#: Every request but Produce is names and numbers; ten thousand partitions with long names fit.
_SMALL_REQUEST_BYTES_MAX = 2 * 1024 * 1024
#: As many partitions as one broker is meant to hold, and some scalar fields beside them.
_ENTRIES_MAX = 10_000 + 16
#: For a listener that does not share its budget.
_MEMORY_BYTES = 128 * 1024 * 1024
#: Headers of a call: ours are empty, authentication tokens are a few KiB.
_METADATA_BYTES_MAX = 16 * 1024
#: From the connection to the first bytes of HTTP/2, through TLS. gRPC's own limit is two minutes, and it counts a
#: connection in `grpc.connections.max` before its handshake, so silent ones would keep clients out for that long.
_HANDSHAKE_MS = 10_000
#: A connection without a call is closed.
_IDLE_MAX_MS = 600_000
#: The same on a listener with logins. gRPC does not know which connections have logged in, so the limit is of all, and
#: a client that was idle connects again with its next call.
_IDLE_LOGIN_MAX_MS = 30_000

_LOG_STREAMS: dict[str, tuple[str, Any]] = {
    "Produce": ("produce", pb.ProduceRequest),
    "Fetch": ("fetch", pb.FetchRequest),
}
_LOG_CALLS: dict[str, tuple[str, Any]] = {
    "ListOffsets": ("list_offsets", pb.ListOffsetsRequest),
    "OffsetsForLeaderEpoch": ("offsets_for_leader_epoch", pb.OffsetsForLeaderEpochRequest),
    "DeleteRecords": ("delete_records", pb.DeleteRecordsRequest),
    "InitProducerId": ("init_producer_id", pb.InitProducerIdRequest),
}
#: The method in the proto, the method here, and its request.
_ADMIN_CALLS: dict[str, tuple[str, Any]] = {
    "Metadata": ("metadata", pb.MetadataRequest),
    "CreateTopics": ("create_topics", pb.CreateTopicsRequest),
    "DeleteTopics": ("delete_topics", pb.DeleteTopicsRequest),
    "CreatePartitions": ("create_partitions", pb.CreatePartitionsRequest),
    "DescribeConfigs": ("describe_configs", pb.DescribeConfigsRequest),
    "AlterConfigs": ("alter_configs", pb.AlterConfigsRequest),
}


class Services(
    AclServices,
    Cluster,
    ClusterServices,
    GroupServices,
    LogServices,
    QuotasServices,
    TransactionServices,
    UsersServices,
    Protocol,
):
    """The services object, as far as this edge uses it."""

    def of(self, caller: Caller) -> Services: ...


class GrpcEdge:
    def __init__(
        self,
        services: Services,
        config: GrpcEdgeConfig,
        probe: GrpcProbe,
        *,
        memory: Memory | None = None,
        turns: Turns | None = None,
        scheduler: Scheduler | None = None,
        credentials: Any = None,
        rules: Principals | None = None,
        logins: Logins | None = None,
        on_violation: Callable[[InvariantViolation], None] | None = None,
    ) -> None:
        """`memory` is the budget that streams share with each other and with the other protocol, `scheduler` the run
        queue; `turns` bounds the Produce messages that are read at once, over all gRPC listeners. With `credentials` it
        speaks TLS, and `rules` make principals of client certificates. With `logins` each call needs a
        user and password."""
        self._config = config
        self._credentials = credentials
        self._logins = logins

        def caller(context: Any) -> Caller:
            return caller_of(
                context, config.listener.name, rules, user_of=None if logins is None else logins.user_of
            )

        meter = CallMeter(services.throttling, caller)
        refusals = Refusals(on_violation, meter)

        def enter(context: Any) -> Services:
            found = caller(context)
            meter.check_connection(context.peer(), found.address)
            return services.of(found)

        memory = memory or Memory(_MEMORY_BYTES)
        scheduler = scheduler or Scheduler(loop_time, next_turn, Histogram().observe)
        self._log = LogService(
            enter,
            config,
            probe,
            refusals,
            memory,
            turns or turns_within(memory, config.message_max_bytes),
            scheduler,
        )
        self._admin = AdminService(enter, config, probe, refusals, scheduler)
        self._cluster = ClusterAdminService(enter, probe, refusals, scheduler)
        self._users = UsersService(enter, probe, refusals, scheduler)
        self._groups = GroupsService(enter, probe, refusals, scheduler)
        self._transactions = TransactionsService(enter, probe, refusals, scheduler)
        self._acls = AclsService(enter, probe, refusals, scheduler)
        self._quotas = QuotasService(enter, probe, refusals, scheduler)
        invariant(served() <= needs.GRPC.keys(), "each gRPC method has a row in edge/needs.py")
        self._health = health.HealthServicer()
        self._server: Any = None

    async def bind(self, host: str, port: int) -> int:
        """Bind the port without serving; return the port, a free one for 0. OSError if it is taken."""
        # Produce is read in turns with the Produce streams of all other connections.
        reads = Reads(self._config.reads_max, without=(f"/{LOG_SERVICE}/Produce",))
        interceptors: tuple[aio.ServerInterceptor, ...] = (reads,)
        if self._logins is not None:
            interceptors = (LoginFirst(self._logins, self._config.listener.name), reads)
        server = aio.server(
            interceptors=interceptors,
            options=_options(self._config, has_logins=self._logins is not None),
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(LOG_SERVICE, self._log_handlers()),
                grpc.method_handlers_generic_handler(
                    ADMIN_SERVICE,
                    _unary(self._admin, _ADMIN_CALLS)
                    | _unary(self._cluster, CLUSTER_CALLS)
                    | _unary(self._users, USERS_CALLS),
                ),
                grpc.method_handlers_generic_handler(GROUPS_SERVICE, _unary(self._groups, GROUPS_CALLS)),
                grpc.method_handlers_generic_handler(
                    TRANSACTIONS_SERVICE, _unary(self._transactions, TRANSACTIONS_CALLS)
                ),
                grpc.method_handlers_generic_handler(ACLS_SERVICE, _unary(self._acls, ACLS_CALLS)),
                grpc.method_handlers_generic_handler(QUOTAS_SERVICE, _unary(self._quotas, QUOTAS_CALLS)),
            )
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((*_SERVICES, HEALTH_SERVICE, reflection.SERVICE_NAME), server)
        bound = bind_port(server, host, port, "gRPC", self._credentials)
        self._server = server
        return bound

    async def serve(self) -> None:
        await self._server.start()
        for service in (OVERALL_HEALTH, *_SERVICES):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def start(self, host: str, port: int) -> int:
        """Bind and serve at once."""
        bound = await self.bind(host, port)
        await self.serve()
        return bound

    async def stop(self, grace_s: float) -> None:
        """Tell health checks, let streams answer what they have read, cut what is left after `grace_s`."""
        if self._server is None:
            return
        await self._health.enter_graceful_shutdown()
        self._log.stop()
        await self._server.stop(grace_s)
        self._server = None

    def _log_handlers(self) -> dict[str, Any]:
        handlers = _unary(self._log, _LOG_CALLS)
        for name, (method, request) in _LOG_STREAMS.items():
            limit = self._config.message_max_bytes if name == "Produce" else _SMALL_REQUEST_BYTES_MAX
            handlers[name] = grpc.stream_stream_rpc_method_handler(
                getattr(self._log, method),
                request_deserializer=bounded(request.FromString, bytes_max=limit, entries_max=_ENTRIES_MAX),
                response_serializer=_serialize,
            )
        return handlers


def served() -> frozenset[str]:
    """Full names of the methods for clients."""
    tables = (
        (LOG_SERVICE, _LOG_STREAMS | _LOG_CALLS),
        (ADMIN_SERVICE, _ADMIN_CALLS),
        (ADMIN_SERVICE, CLUSTER_CALLS),
        (ADMIN_SERVICE, USERS_CALLS),
        (GROUPS_SERVICE, GROUPS_CALLS),
        (TRANSACTIONS_SERVICE, TRANSACTIONS_CALLS),
        (ACLS_SERVICE, ACLS_CALLS),
        (QUOTAS_SERVICE, QUOTAS_CALLS),
    )
    return frozenset(f"{service}/{name}" for service, calls in tables for name in calls)


def _unary(service: object, calls: dict[str, tuple[str, Any]]) -> dict[str, Any]:
    return {
        name: grpc.unary_unary_rpc_method_handler(
            getattr(service, method),
            request_deserializer=bounded(
                request.FromString, bytes_max=_SMALL_REQUEST_BYTES_MAX, entries_max=_ENTRIES_MAX
            ),
            response_serializer=_serialize,
        )
        for name, (method, request) in calls.items()
    }


def _serialize(message: Any) -> bytes:
    made: bytes = message.SerializeToString()
    return made


def _options(config: GrpcEdgeConfig, *, has_logins: bool) -> list[tuple[str, int]]:
    return options(
        message_max_bytes=config.message_max_bytes,
        streams_max=config.streams_max,
        connections_max=config.connections_max,
        metadata_max_bytes=_METADATA_BYTES_MAX,
        stream_window_bytes=config.stream_window_bytes,
        idle_max_ms=_IDLE_LOGIN_MAX_MS if has_logins else _IDLE_MAX_MS,
        handshake_max_ms=_HANDSHAKE_MS,
    )
