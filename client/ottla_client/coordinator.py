"""Finds, caches and calls the coordinator of one group, or of one transactional id. [S]

Used by the membership, by commits, by transactions and by the admin; each call is one attempt, and the caller handles
errors. After NOT_COORDINATOR or a timeout, the next call looks the coordinator up again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ottla_client.cluster import Cluster
from ottla_client.connection import Broker, exception_of
from ottla_client.errors import CannotConnect, ClientError, NotServed
from ottla_core.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
    RequestError,
    RequestTimedOut,
)
from ottla_core.pb import groups_pb2 as pb
from ottla_core.ports.clock import Clock

_PAUSE_S = 0.1
_PAUSE_MAX_S = 1.0


class Coordinator:
    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        group: str,
        kind: pb.CoordinatorType = pb.COORDINATOR_TYPE_GROUP,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        #: The group, or the transactional id, by `kind`.
        self.group = group
        self._kind = kind
        self._broker: Broker | None = None
        #: Last broker that answered NOT_COORDINATOR or timed out.
        self._left: Broker | None = None

    async def call(
        self,
        method: str,
        request: Any,
        timeout_s: float,
        error_of: Callable[[Any], RequestError | None] | None = None,
    ) -> Any:
        """One attempt. Raises if no broker answered; the caller checks the error in the response."""
        deadline = self._clock.monotonic() + timeout_s
        broker = self._broker
        if broker is None:
            broker = self._broker = await self._find(timeout_s)
        try:
            answer = await self._cluster.call_at(
                broker, method, request, max(0.001, deadline - self._clock.monotonic())
            )
        except (CannotConnect, RequestTimedOut, NotCoordinator, CoordinatorNotAvailable):
            self._forget(broker)
            raise
        if isinstance((error_of or refusal)(answer), NotCoordinator | CoordinatorNotAvailable):
            self._forget(broker)
        return answer

    async def ask(
        self,
        method: str,
        request: Any,
        timeout_s: float,
        error_of: Callable[[Any], RequestError | None] | None = None,
    ) -> Any:
        """Retry until success, an error that a retry does not fix, or the timeout."""
        deadline = self._clock.monotonic() + timeout_s
        pause_s = _PAUSE_S
        while True:
            left_s = max(0.001, deadline - self._clock.monotonic())
            try:
                answer = await self.call(method, request, left_s, error_of)
                if (error := (error_of or refusal)(answer)) is None:
                    return answer
                raise error
            except (RequestError, CannotConnect) as error:
                if not passes(error) or self._clock.monotonic() + pause_s >= deadline:
                    raise
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    async def _find(self, timeout_s: float) -> Broker:
        request = pb.FindCoordinatorRequest(groups=[self.group], type=self._kind)
        found = self._named(await self._cluster.call("FindCoordinator", request, timeout_s=timeout_s))
        if found is self._left:
            # The broker may be partitioned from the cluster and return a stale coordinator: ask another one.
            answer = await self._cluster.second_opinion("FindCoordinator", request)
            if answer is not None:
                found = self._named(answer)
        return found

    @classmethod
    async def find_all(
        cls, cluster: Cluster, clock: Clock, names: Sequence[str], kind: pb.CoordinatorType, timeout_s: float
    ) -> list[Coordinator]:
        """Coordinators of many groups or transactional ids, with one call for all."""
        made = [cls(cluster, clock, name, kind) for name in names]
        if len(made) > 1:
            request = pb.FindCoordinatorRequest(groups=names, type=kind)
            answer = await cluster.call("FindCoordinator", request, timeout_s=timeout_s)
            for each, found in zip(made, answer.coordinators, strict=False):
                if found.broker.host and not found.HasField("error"):
                    each._broker = cluster.broker_at(found.broker)  # Else its first call looks for it.
        return made

    def _named(self, answer: pb.FindCoordinatorResponse) -> Broker:
        found = answer.coordinators[0] if answer.coordinators else pb.GroupCoordinator()
        if found.HasField("error"):
            raise exception_of(found.error)
        if not found.broker.host:
            raise CoordinatorNotAvailable()
        return self._cluster.broker_at(found.broker)

    def _forget(self, broker: Broker) -> None:
        if self._broker is broker:
            self._broker, self._left = None, broker


def refusal(answer: Any) -> RequestError | None:
    """The top-level error of the response, if any."""
    if "error" in answer.DESCRIPTOR.fields_by_name and answer.HasField("error"):
        return exception_of(answer.error)
    return None


def first_refusal(answer: Any) -> RequestError | None:
    """The error of the only group, for responses with one error per group."""
    return next((exception_of(each.error) for each in answer.groups if each.HasField("error")), None)


def passes(error: RequestError | ClientError) -> bool:
    """Whether the same call may succeed later."""
    if isinstance(error, RequestError):
        return error.retriable or isinstance(error, CoordinatorLoadInProgress)
    return isinstance(error, CannotConnect) and not isinstance(error, NotServed)
