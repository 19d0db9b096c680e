"""Configuration of consumer groups: one table for parsing, checking and DescribeConfigs. [P]

Members of the classic protocol choose their assignor and their timeouts; settings of a group override
that, for all of its members. A setting without a value leaves the choice to each member.

Names are Kafka's where it has one. Kafka's settings for protocols that are not supported are refused with the reason:
a setting that is silently ignored is worse than an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ottla_broker.topic_config import Definition, no_such_setting
from ottla_core.assignors.uniform import check_parameters
from ottla_core.errors import InvalidConfig

ASSIGNOR = "consumer.assignor"
PINS = "consumer.assignor.pins"
TOLERANCE = "consumer.assignor.tolerance"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
SESSION_TIMEOUT = "consumer.session.timeout.ms"
REBALANCE_TIMEOUT = "consumer.rebalance.timeout.ms"

#: As long as the name of a topic; assignors have short names.
_ASSIGNOR_CHARACTERS_MAX = 249

_DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        ASSIGNOR, "string", "",
        "Specific to Ottla: the assignor of the group if all members support it (classic groups) or the brokers "
        "have it (broker-side groups), whatever members vote for. Otherwise, and if not set, the vote counts.",
        (),
    ),
    Definition(
        PINS, "string", "",
        "Specific to Ottla: broker-side groups: members, by instance id, that get partitions, whatever the assignor "
        "(except broadcast): orders:0=worker-a,orders:1=worker-b. The assignor assigns the rest.",
        (),
    ),
    Definition(
        TOLERANCE, "string", "",
        "Specific to Ottla: for the assignor sticky, the part by which a member may exceed its share, from 0 to 1.",
        (),
    ),
    Definition(
        HEARTBEAT_INTERVAL, "int", "",
        "Broker-side groups: how often members send heartbeats. Not set: group.consumer.heartbeat.interval.ms "
        "of the brokers.",
        (), at_least=1,
    ),
    Definition(
        REBALANCE_TIMEOUT, "int", "",
        "Specific to Ottla: how long a rebalance waits for members. Not set: the longest timeout of its members "
        "(max.poll.interval.ms).",
        (), at_least=1,
    ),
    Definition(
        SESSION_TIMEOUT, "int", "",
        "Time after which a member without heartbeats is removed; within group.min.session.timeout.ms and "
        "group.max.session.timeout.ms of the brokers. Not set: the value of each member.",
        (), at_least=1,
    ),
)  # fmt: skip

_BY_NAME: Mapping[str, Definition] = MappingProxyType({d.name: d for d in _DEFINITIONS})

#: Names that Kafka has, and why they are refused.
_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "consumer.assignment.interval.ms": "assignments are computed as soon as they are due",
    }
)
_REFUSED_KINDS: Mapping[str, str] = MappingProxyType(
    {"share.": "share groups are not supported", "streams.": "streams groups are not supported"}
)


def definitions() -> tuple[Definition, ...]:
    """All settings of a group, by name."""
    return _DEFINITIONS


def definition(name: str) -> Definition:
    """One setting; `InvalidConfig` with a hint if there is none of this name."""
    found = _BY_NAME.get(name)
    if found is not None:
        return found
    reason = _REFUSED.get(name) or next(
        (r for kind, r in _REFUSED_KINDS.items() if name.startswith(kind)), None
    )
    if reason is not None:
        raise InvalidConfig(f"Group setting {name} is not supported: {reason}.")
    raise no_such_setting("group", name, _BY_NAME)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What is set for one group; None: its members decide."""

    assignor: str | None = None
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    heartbeat_interval_ms: int | None = None
    assignor_parameters: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, str]) -> GroupSettings:
        """`InvalidConfig` for an unknown name or an invalid value."""
        parsed = {name: definition(name).parse(text) for name, text in values.items()}
        made = cls(
            parsed.get(ASSIGNOR),
            parsed.get(SESSION_TIMEOUT),
            parsed.get(REBALANCE_TIMEOUT),
            parsed.get(HEARTBEAT_INTERVAL),
            {name.rpartition(".")[2]: parsed[name] for name in (PINS, TOLERANCE) if name in parsed},
        )
        made._check_parameters()
        if made.assignor is not None and not 0 < len(made.assignor) <= _ASSIGNOR_CHARACTERS_MAX:
            raise InvalidConfig(
                f"{ASSIGNOR} must have 1 to {_ASSIGNOR_CHARACTERS_MAX} characters; delete it to let members vote."
            )
        return made

    def _check_parameters(self) -> None:
        try:
            check_parameters(self.assignor_parameters)
        except ValueError as error:
            raise InvalidConfig(str(error)) from None

    @classmethod
    def understood(cls, values: Mapping[str, str]) -> GroupSettings:
        """As far as this version can use them: what a newer broker may have set besides is left out."""
        known: dict[str, str] = {}
        for name, text in values.items():
            try:
                cls.of({name: text})
            except InvalidConfig:
                continue
            known[name] = text
        return cls.of(known)

    def check_session(self, low_ms: int, high_ms: int) -> None:
        """`InvalidConfig` unless the session timeout is within the brokers' bounds."""
        if self.session_timeout_ms is not None and not low_ms <= self.session_timeout_ms <= high_ms:
            raise InvalidConfig(
                f"{SESSION_TIMEOUT} cannot be {self.session_timeout_ms}: the brokers take {low_ms} "
                f"(group.min.session.timeout.ms) to {high_ms} (group.max.session.timeout.ms)."
            )


NO_SETTINGS = GroupSettings()
