"""What the services of the native protocol have in common: from a call to its caller, metrics, refusals, turns. [S]

`refusal.guarded` uses the last three.
"""

from __future__ import annotations

from typing import Generic

from ottla_broker.edge.grpc.callers import Enter, S
from ottla_broker.edge.grpc.probe import GrpcProbe
from ottla_broker.edge.grpc.refusal import Refusals
from ottla_broker.scheduler import Scheduler


class NativeService(Generic[S]):
    def __init__(self, enter: Enter[S], probe: GrpcProbe, refusals: Refusals, scheduler: Scheduler) -> None:
        self._enter = enter
        self.probe = probe
        self.refusals = refusals
        self.scheduler = scheduler
