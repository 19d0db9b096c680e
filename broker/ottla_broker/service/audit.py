"""The audit log: who did what to which resource, allowed or denied. [S]

Lines on the logger `ottla.audit`, apart from the broker's own log, whose level and limit on repetitions do not apply.

* A denied use is a line at INFO, an allowed administrative one (Create, Delete, Alter, AlterConfigs, ClusterAction),
  too. An allowed Read, Write or Describe is a line at DEBUG, when a client first uses the resource and again after the
  ACLs have changed.
* Equal uses within a second are one line with their number (`times`), so a client that is denied a thousand times a
  second writes one line in it. A request costs an entry in a dict; lines are written by a timer.
* At most `LINES_MAX` different lines per second; those beyond it are counted in `ottla_audit_left_out_total`, and the
  next line says how many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog

from ottla_broker.acl import Operation, ResourceType
from ottla_broker.caller import Caller
from ottla_broker.logs import AUDIT_LOGGER, LEVELS
from ottla_broker.metrics import AuthorizerProbe

INTERVAL_S = 1.0
#: Some 10 ms of writing.
LINES_MAX = 200

_EACH = frozenset(
    (
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.ALTER_CONFIGS,
        Operation.CLUSTER_ACTION,
    )
)


class _Use(NamedTuple):
    caller: Caller
    operation: Operation
    type: ResourceType
    name: str
    allowed: bool


def audit_logger(level: str) -> Any:
    """Lines of at least this level, whatever the level of the broker's log is."""
    return structlog.wrap_logger(
        None,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory_args=(AUDIT_LOGGER,),
    )


class Audit:
    def __init__(
        self,
        level: str,
        probe: AuthorizerProbe,
        log: Any = None,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        """`level` is debug, info or off; `later` calls after some seconds, by default with the running loop."""
        self._probe = probe
        self._is_off = level == "off"
        self._is_detailed = level == "debug"
        self._log = log if log is not None or self._is_off else audit_logger(level)
        self._later = later or (lambda s, call: asyncio.get_running_loop().call_later(s, call))
        self._pending: dict[_Use, int] = {}
        self._left_out = 0
        self._is_scheduled = False

    def reports_each(self, operation: Operation) -> bool:
        """Whether an allowed use is reported each time, not only the first time."""
        return operation in _EACH

    def note(
        self, caller: Caller, operation: Operation, type_: ResourceType, name: str, *, allowed: bool
    ) -> None:
        if not allowed:
            self._probe.denied.add(f"{type_.name}:{operation.name}")
        if self._is_off or (allowed and not self._is_detailed and operation not in _EACH):
            return
        use = _Use(caller, operation, type_, name, allowed)
        times = self._pending.get(use)
        if times is None and len(self._pending) >= LINES_MAX:
            self._left_out += 1
            self._probe.left_out += 1
            return
        self._pending[use] = (times or 0) + 1
        if not self._is_scheduled:
            self._is_scheduled = True
            self._later(INTERVAL_S, self.flush)

    def flush(self) -> None:
        """Write what was noted."""
        self._is_scheduled = False
        pending, self._pending = self._pending, {}
        for use, times in pending.items():
            write = self._log.info if not use.allowed or use.operation in _EACH else self._log.debug
            more = {} if times == 1 else {"times": times}
            if self._left_out:
                more["left_out"], self._left_out = self._left_out, 0
            write(
                "allowed" if use.allowed else "denied",
                principal=use.caller.principal,
                operation=use.operation.name,
                resource=f"{use.type.name}:{use.name}",
                host=use.caller.address,
                client_id=use.caller.client_id,
                listener=use.caller.listener,
                **more,
            )
