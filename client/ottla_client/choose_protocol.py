"""Which group protocol a consumer speaks: one rule, from its settings. [P]

Classic if a setting is given that only classic groups have, else broker-side. Called by `Consumer`; that the brokers do
not offer the broker-side one is noticed later, by `group_reader`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla_client.assignors import Assignor, assignors_for

AUTO, CLASSIC, BROKER_SIDE = "auto", "classic", "consumer"
_PROTOCOLS = (AUTO, BROKER_SIDE, CLASSIC)
#: As in Kafka's clients.
_SESSION_TIMEOUT_MS = 45_000
_HEARTBEAT_INTERVAL_MS = 3000
_ASSIGNORS = ("cooperative-sticky",)


class Chosen(NamedTuple):
    """The protocol to start with, and the settings of classic groups with their defaults."""

    is_classic: bool
    #: To the classic protocol, where the brokers do not offer the other.
    may_fall_back: bool
    #: Session timeout and heartbeat interval.
    timeouts_ms: tuple[int, int]
    assignors: tuple[Assignor, ...]


def choose_protocol(
    protocol: str,
    remote_assignor: str,
    session_timeout_ms: int | None,
    heartbeat_interval_ms: int | None,
    partition_assignment_strategy: str | Assignor | Sequence[str | Assignor] | None,
) -> Chosen:
    """ValueError if the settings contradict each other."""
    if protocol not in _PROTOCOLS:
        raise ValueError(
            f"group_protocol={protocol!r}: choose {', '.join(_PROTOCOLS[:-1])} or {_PROTOCOLS[-1]}."
        )
    session_ms = _SESSION_TIMEOUT_MS if session_timeout_ms is None else session_timeout_ms
    heartbeat_ms = _HEARTBEAT_INTERVAL_MS if heartbeat_interval_ms is None else heartbeat_interval_ms
    if not heartbeat_ms < session_ms:
        raise ValueError("heartbeat_interval_ms must be below session_timeout_ms, ideally a third of it.")
    strategy = _ASSIGNORS if partition_assignment_strategy is None else partition_assignment_strategy
    only_classic = {
        "session_timeout_ms": session_timeout_ms,
        "heartbeat_interval_ms": heartbeat_interval_ms,
        "partition_assignment_strategy": partition_assignment_strategy,
    }
    given = " and ".join(name for name, value in only_classic.items() if value is not None)
    if protocol == BROKER_SIDE and given:
        raise ValueError(
            f"{given}: only for classic groups; in broker-side groups the broker decides. Leave it out, or "
            "use group_protocol='classic'."
        )
    is_classic = protocol == CLASSIC or bool(given)
    if is_classic and remote_assignor:
        raise ValueError(
            f"group_remote_assignor={remote_assignor!r} is for broker-side groups only, and "
            f"{given or 'group_protocol'} asks for a classic one. Give one of the two."
        )
    return Chosen(is_classic, protocol == AUTO, (session_ms, heartbeat_ms), assignors_for(strategy))
