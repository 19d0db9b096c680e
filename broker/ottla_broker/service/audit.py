"""The audit log: who did what to which resource, allowed or denied. [S]

Lines on the logger `ottla.audit`, apart from the broker's own log, whose level and limit on repetitions do not apply.

* A denied use is a line at INFO, an allowed administrative one (Create, Delete, Alter, AlterConfigs, ClusterAction),
  too. An allowed Read, Write or Describe is a line at DEBUG, when a client first uses the resource and again after the
  ACLs have changed.
* Equal uses within a second are one line with their number (`times`), so a client that is denied a thousand times a
  second writes one line in it. A request costs an entry in a dict; lines are written by a timer.
* A login is a line at INFO when a principal first logs in from an address, and whenever it fails.
* Lines per second are bounded apart for administration, other uses, first logins and failed logins, and in each for one
  principal (logins: one address). So no number of denials or failed logins leaves out what an administrator does. A
  first login that is left out is reported at the next one. Lines beyond a bound are counted in
  `ottla_audit_left_out_total`, and the next line says how many.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog

from ottla_broker.acl import Operation, ResourceType
from ottla_broker.caller import Caller
from ottla_broker.logs import AUDIT_LOGGER, LEVELS
from ottla_broker.metrics import AuthorizerProbe

INTERVAL_S = 1.0


class Bound(NamedTuple):
    """Lines per second: together, and those of one source. A line takes some 50 us."""

    name: str
    lines_max: int
    share_max: int


ADMINISTRATION = Bound("administration", 200, 100)
USES = Bound("uses", 200, 50)
FIRST_LOGINS = Bound("first logins", 100, 20)
FAILED_LOGINS = Bound("failed logins", 100, 20)
#: First logins that are remembered; the oldest are forgotten, and their principals reported again.
_KNOWN_LOGINS_MAX = 10_000

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

    @property
    def bound(self) -> Bound:
        return ADMINISTRATION if self.allowed and self.operation in _EACH else USES

    @property
    def source(self) -> str:
        return self.caller.principal

    @property
    def is_detail(self) -> bool:
        return self.allowed and self.operation not in _EACH

    @property
    def event(self) -> str:
        return "allowed" if self.allowed else "denied"

    def fields(self) -> dict[str, str]:
        caller = self.caller
        return {
            "principal": caller.principal,
            "operation": self.operation.name,
            "resource": f"{self.type.name}:{self.name}",
            "host": caller.address,
            "client_id": caller.client_id,
            "listener": caller.listener,
        }


class _Login(NamedTuple):
    user: str
    mechanism: str
    address: str
    listener: str
    #: Why it failed; empty if it did not.
    reason: str = ""

    @property
    def bound(self) -> Bound:
        return FAILED_LOGINS if self.reason else FIRST_LOGINS

    @property
    def is_detail(self) -> bool:
        return False

    @property
    def source(self) -> str:
        return self.address

    @property
    def event(self) -> str:
        return "login failed" if self.reason else "logged in"

    def fields(self) -> dict[str, str]:
        # A user that failed to log in is nobody's principal.
        who = (
            {"user": self.user, "reason": self.reason} if self.reason else {"principal": f"User:{self.user}"}
        )
        return who | {"mechanism": self.mechanism, "host": self.address, "listener": self.listener}


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
        self._pending: dict[_Use | _Login, int] = {}
        #: Different lines that are pending, by bound, and by bound and source.
        self._lines: Counter[Bound | tuple[Bound, str]] = Counter()
        self._known_logins: dict[_Login, None] = {}
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
        self._add(_Use(caller, operation, type_, name, allowed))

    def logged_in(self, user: str, *, mechanism: str, address: str, listener: str) -> None:
        login = _Login(user, mechanism, address, listener)
        if self._is_off or login in self._known_logins:
            return
        if self._add(login):
            if len(self._known_logins) >= _KNOWN_LOGINS_MAX:
                del self._known_logins[next(iter(self._known_logins))]
            self._known_logins[login] = None

    def login_failed(self, user: str, reason: str, *, mechanism: str, address: str, listener: str) -> None:
        if not self._is_off:
            self._add(_Login(user, mechanism, address, listener, reason or "unknown"))

    def _add(self, line: _Use | _Login) -> bool:
        """False if there is no room for the line in this second."""
        times = self._pending.get(line)
        if times is None:
            bound, lines = line.bound, self._lines
            share = (bound, line.source)
            if lines[bound] >= bound.lines_max or lines[share] >= bound.share_max:
                self._left_out += 1
                self._probe.left_out += 1
                return False
            lines[bound] += 1
            lines[share] += 1
        self._pending[line] = (times or 0) + 1
        if not self._is_scheduled:
            self._is_scheduled = True
            self._later(INTERVAL_S, self.flush)
        return True

    def flush(self) -> None:
        """Write what was noted."""
        self._is_scheduled = False
        pending, self._pending = self._pending, {}
        self._lines.clear()
        for line, times in pending.items():
            write = self._log.debug if line.is_detail else self._log.info
            more = {} if times == 1 else {"times": times}
            if self._left_out:
                more["left_out"], self._left_out = self._left_out, 0
            write(line.event, **line.fields(), **more)
