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


class ClassicSettings(NamedTuple):
    """The settings of classic groups, with defaults for those that were not given."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignors: tuple[Assignor, ...]
    #: Names of those that were given.
    given: tuple[str, ...]


def classic_settings(
    session_timeout_ms: int | None,
    heartbeat_interval_ms: int | None,
    partition_assignment_strategy: str | Assignor | Sequence[str | Assignor] | None,
) -> ClassicSettings:
    """ValueError if they contradict each other."""
    named = {
        "session_timeout_ms": session_timeout_ms,
        "heartbeat_interval_ms": heartbeat_interval_ms,
        "partition_assignment_strategy": partition_assignment_strategy,
    }
    session_ms = _SESSION_TIMEOUT_MS if session_timeout_ms is None else session_timeout_ms
    heartbeat_ms = _HEARTBEAT_INTERVAL_MS if heartbeat_interval_ms is None else heartbeat_interval_ms
    if not heartbeat_ms < session_ms:
        raise ValueError("heartbeat_interval_ms must be below session_timeout_ms, ideally a third of it.")
    strategy = _ASSIGNORS if partition_assignment_strategy is None else partition_assignment_strategy
    given = tuple(name for name, value in named.items() if value is not None)
    return ClassicSettings(session_ms, heartbeat_ms, assignors_for(strategy), given)


def speaks_classic(protocol: str, given: Sequence[str], remote_assignor: str) -> bool:
    """Whether the consumer starts with the classic protocol. ValueError if the settings contradict each other."""
    if protocol not in _PROTOCOLS:
        raise ValueError(
            f"group_protocol={protocol!r}: choose {', '.join(_PROTOCOLS[:-1])} or {_PROTOCOLS[-1]}."
        )
    names = " and ".join(given)
    if protocol == BROKER_SIDE and given:
        raise ValueError(
            f"{names}: only for classic groups; in broker-side groups the broker decides. Leave it out, or "
            "use group_protocol='classic'."
        )
    is_classic = protocol == CLASSIC or bool(given)
    if is_classic and remote_assignor:
        raise ValueError(
            f"group_remote_assignor={remote_assignor!r} is for broker-side groups only, and "
            f"{names if given else 'group_protocol'} asks for a classic one. Give one of the two."
        )
    return is_classic
