"""Types of handlers: the request, its context, and the three kinds of responses. [S]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ottla_broker.edge.kafka import codec
from ottla_broker.edge.kafka.fetch_session import FetchSession, FetchSessions
from ottla_broker.edge.kafka.versions import Api
from ottla_broker.edge.memory import Hold
from ottla_broker.request_metrics import RequestMetrics
from ottla_broker.requests import Maybe
from ottla_broker.steps import Pause
from ottla_core.errors import RequestError
from ottla_core.ports.disk import Buffer

if TYPE_CHECKING:
    from ottla_broker.caller import Caller
    from ottla_broker.config import KafkaEdgeConfig
    from ottla_broker.edge.kafka.metadata_cache import MetadataCache
    from ottla_broker.edge.kafka.sasl import SaslGate
    from ottla_broker.edge.memory import Memory
    from ottla_broker.metrics import Labelled
    from ottla_broker.service.services import Services


#: Up to this size, the fields of a request are a millisecond's work at most.
_LONG_BODY_BYTES = 1 << 12


class Disconnect(Exception):
    """A well-formed request that the protocol cannot refuse with an error: the connection is closed."""


@dataclass(slots=True)
class Context:
    """One connection as its handlers see it."""

    #: As its caller may use them; replaced when the client id changes.
    services: Services
    config: KafkaEdgeConfig
    #: What all connections share; a fetch asks it how much its answer may hold.
    memory: Memory
    metadata_cache: MetadataCache
    #: Error codes answered, for the metrics.
    errors: Labelled
    peer: str = "?"
    fetch_sessions: FetchSessions = field(default_factory=lambda: FetchSessions(0))
    #: This connection's own, if it has one.
    fetch_session: FetchSession | None = None
    #: What the client called itself in ApiVersions; for logs.
    software: str = ""
    #: Monotonic connect time; infinity if unknown.
    opened_at: float = float("inf")
    #: Errors by API. `api` is the one that was handled last.
    requests: RequestMetrics = field(default_factory=lambda: RequestMetrics("kafka"))
    api: str = ""
    #: Of a connection to a listener with logins.
    login: SaslGate | None = None

    @property
    def caller(self) -> Caller:
        return self.services.caller

    @property
    def listener(self) -> str:
        """Metadata answers with the endpoints of the listener it was asked on."""
        return self.config.listener.name

    def failed(self, error: RequestError, api: str = "") -> int:
        """Count a returned error; return its code. `api` is needed if other requests may be handled meanwhile."""
        self.errors.add(error.name)
        self.requests.failed(api or self.api, error.name)
        return error.code


class Request:
    """One request, header parsed, body still bytes.

    `body` lies in a buffer that is used again as soon as the handler has returned: whatever is needed
    later, in an awaitable too, must be parsed or copied before. `fields()` copies everything.
    """

    __slots__ = ("api", "body", "client_id", "correlation_id", "version")

    def __init__(
        self, api: Api, version: int, correlation_id: int, client_id: str | None, body: memoryview
    ) -> None:
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body = body

    def fields(self) -> dict[str, Any]:
        """The body by its schema, as plain Python values. Raises `Malformed`."""
        return codec.decode_request(self.api, self.version, self.body)

    def fields_in_steps(self) -> Generator[None, None, dict[str, Any]]:
        """The same; the fields of a long body in slices."""
        if len(self.body) <= _LONG_BODY_BYTES:
            return self.fields()
        self.body = memoryview(bytes(self.body))
        return (yield from codec.decode_in_steps(self.api, self.version, self.body))


class Encoded(NamedTuple):
    """An answer whose body the handler wrote itself: buffers that are sent in order, uncopied."""

    body: Sequence[Buffer]
    #: The memory that it is counted in until it is passed to the socket.
    hold: Hold | None = None
    #: The wait for a quota that it announces.
    wait_s: float = 0.0


Reply: TypeAlias = dict[str, Any] | Encoded | None
"""Fields by the response's schema, or ready bytes, or None: nothing is sent (acks=0)."""

Steps: TypeAlias = Generator[Pause, None, "Reply | Awaitable[Reply | Steps]"]
"""A large request in slices of a millisecond or less (`ottla_broker.steps`). Between them other connections are served
and leaders may change, so each slice looks for itself. What is needed of `Request.body` is copied before the first."""

Handler: TypeAlias = Callable[[Context, Request], "Maybe[Reply | Steps] | Steps"]


def error_fields(error: RequestError | None) -> dict[str, Any]:
    """The two fields most answers carry, for a result or its absence."""
    if error is None:
        return {"error_code": 0, "error_message": None}
    return {"error_code": error.code, "error_message": error.message}
