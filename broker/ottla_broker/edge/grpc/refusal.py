"""Maps exceptions to errors for the client: a code and a sentence, never a traceback. [S]

`RequestError`s are returned. Anything else is a bug: it is logged with its traceback, and returned as
UNKNOWN_SERVER_ERROR; an invariant violation also stops the broker. Where a response has no
field for an error, the call is aborted with the nearest gRPC status and the same `Error` message in the
trailer `ottla-error-bin`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, NoReturn, TypeVar

import grpc
import structlog

from ottla_broker.edge.grpc.callers import client_id_of
from ottla_broker.edge.grpc.meter import CallMeter
from ottla_broker.edge.grpc.translation import error_message
from ottla_broker.edge.grpc.visits import entered
from ottla_broker.edge.timed import Timed
from ottla_core.errors import InvariantViolation, RequestError
from ottla_core.pb import broker_pb2 as pb

_log = structlog.get_logger("ottla.grpc")

ERROR_TRAILER = "ottla-error-bin"

_ERROR = pb.Error.DESCRIPTOR

Answer = TypeVar("Answer")
Method = Callable[[Any, Any, Any], Coroutine[Any, Any, Answer]]

_STATUS_BY_NAME = {
    "REQUEST_TIMED_OUT": grpc.StatusCode.DEADLINE_EXCEEDED,
    "UNKNOWN_SERVER_ERROR": grpc.StatusCode.INTERNAL,
    "TOPIC_AUTHORIZATION_FAILED": grpc.StatusCode.PERMISSION_DENIED,
    "GROUP_AUTHORIZATION_FAILED": grpc.StatusCode.PERMISSION_DENIED,
    "CLUSTER_AUTHORIZATION_FAILED": grpc.StatusCode.PERMISSION_DENIED,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": grpc.StatusCode.PERMISSION_DENIED,
    "SASL_AUTHENTICATION_FAILED": grpc.StatusCode.UNAUTHENTICATED,
    "THROTTLING_QUOTA_EXCEEDED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "RESOURCE_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "COORDINATOR_NOT_AVAILABLE": grpc.StatusCode.UNAVAILABLE,
}


class Refusals:
    """One per listener: the error responses of handlers that raised."""

    def __init__(
        self,
        on_violation: Callable[[InvariantViolation], None] | None = None,
        meter: CallMeter | None = None,
    ) -> None:
        """`meter` delays the responses of clients that exceed their quota of time."""
        self._on_violation = on_violation
        self.meter = meter

    def of(self, error: Exception, doing: str) -> RequestError:
        """The error for the client; unexpected exceptions are logged."""
        if isinstance(error, RequestError):
            return error
        _log.error("call failed unexpectedly", call=doing, exc_info=error)
        if isinstance(error, InvariantViolation) and self._on_violation is not None:
            self._on_violation(error)
        return RequestError()


async def abort(context: Any, error: RequestError) -> NoReturn:
    status = _STATUS_BY_NAME.get(error.name, grpc.StatusCode.FAILED_PRECONDITION)
    if error.name == "INVALID_REQUEST":
        status = grpc.StatusCode.INVALID_ARGUMENT
    trailer = ((ERROR_TRAILER, error_message(error).SerializeToString()),)
    await context.abort(status, error.message, trailer)
    raise AssertionError("abort raises")  # for the type checker: grpc is untyped


def _errors_in(answer: Any) -> list[str]:
    """Names of the errors in a response: its own, and those of what it lists."""
    found = []
    for field, value in answer.ListFields():
        if field.message_type is _ERROR:
            found.append(value.name)
        elif field.message_type is not None and "error" in field.message_type.fields_by_name:
            listed = value if isinstance(value, Sequence) else (value,)
            found += [each.error.name for each in listed if each.HasField("error")]
    return found


#: Served before bulk work, as the same requests of Kafka clients are: small, and groups depend on them.
_URGENT = frozenset(("find_coordinator", "join", "sync", "heartbeat", "leave", "consumer_heartbeat"))


def guarded(method: Method[Answer]) -> Method[Answer]:
    """A unary method in the run queue, whose every exception becomes a refusal, and whose answers are counted.

    Its service has a `scheduler`, which has the queue.
    """
    urgent = method.__name__ in _URGENT

    @functools.wraps(method)
    async def call(self: Any, request: Any, context: Any) -> Answer:
        name = method.__name__
        traffic = self.probe.connected(client_id_of(context))
        began = monotonic()
        queued_s = 0.0
        work: Timed[Answer] | None = None
        try:
            traffic.requests += 1
            if isinstance(request, RequestError):  # the deserializer would not have it
                raise request
            await entered(self.scheduler, urgent=urgent)
            queued_s = monotonic() - began
            work = Timed(method(self, request, context))
            answer = await work
            if self.refusals.meter is not None:
                await self.refusals.meter.pause(context, work.worked_s)
        except Exception as error:
            refusal = self.refusals.of(error, name)
            self.probe.answered(name, (refusal.name,))
            await abort(context, refusal)
        finally:
            self.probe.disconnected(traffic)
            took_s = monotonic() - began - queued_s
            worked_s = took_s if work is None else work.worked_s
            self.probe.api(name).answered(queued_s, took_s, took_s - worked_s)
        self.probe.answered(name, _errors_in(answer))
        return answer

    return call
