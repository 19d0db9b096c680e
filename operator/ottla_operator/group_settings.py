"""A ConsumerGroup's assignor, pins and timeouts, as settings of the group on the brokers. [P]

A resource that declares one of these settings owns all of them: the operator unsets those that it leaves out, reverts
changes by other clients, and unsets all when the resource is deleted. A resource that declares none leaves the
group's settings alone. `status.settings` records what was set, so that it is unset when it is no longer declared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ottla_operator.group_plan import SeenGroup, SeenMember
from ottla_operator.plan import Claim
from ottla_operator.specs import ASSIGNORS, BROKER_SIDE_ASSIGNORS, CLASSIC_ASSIGNORS, GroupSpec, Meta
from ottla_operator.status import Condition

APPLIED = "SettingsApplied"
ASSIGNOR = "consumer.assignor"
SESSION_TIMEOUT = "consumer.session.timeout.ms"
REBALANCE_TIMEOUT = "consumer.rebalance.timeout.ms"
PINS = "consumer.assignor.pins"
TOLERANCE = "consumer.assignor.tolerance"
_NAMES = (ASSIGNOR, TOLERANCE, PINS, SESSION_TIMEOUT, REBALANCE_TIMEOUT)
#: Members named in a message; the rest are counted.
_NAMED_MAX = 5


def declared(spec: GroupSpec) -> dict[str, str]:
    pins = ",".join(f"{topic}:{number}={who}" for (topic, number), who in sorted(spec.pins.items())) or None
    values = (spec.assignor, spec.tolerance, pins, spec.session_timeout_ms, spec.rebalance_timeout_ms)
    return {name: str(value) for name, value in zip(_NAMES, values, strict=True) if value is not None}


def remembered(status: Mapping[str, Any] | None) -> dict[str, str]:
    """The settings that this resource has set before."""
    return dict((status or {}).get("settings") or {})


def changes(
    spec: GroupSpec, settings: Mapping[str, str], status: Mapping[str, Any] | None
) -> dict[str, str | None]:
    """Changes to make on the brokers; None: unset."""
    wanted = declared(spec)
    if not wanted and not remembered(status):
        return {}
    made: dict[str, str | None] = {n: value for n, value in wanted.items() if settings.get(n) != value}
    made.update((name, None) for name in _NAMES if name in settings and name not in wanted)
    return made


def removal(settings: Mapping[str, str]) -> dict[str, str | None]:
    """The resource was deleted: unset everything."""
    return {name: None for name in _NAMES if name in settings}


def is_drift(meta: Meta, spec: GroupSpec, status: Mapping[str, Any] | None) -> bool:
    """Whether another client changed the settings: this spec was already in force."""
    settled = (status or {}).get("observedGeneration") == meta.generation
    return settled and remembered(status) == declared(spec)


def words(made: Mapping[str, str | None]) -> str:
    said = [f"{name} is unset" if value is None else f"{name} = {value}" for name, value in made.items()]
    return f"{', '.join(said)}."


# ------------------------------------------------------------------ what the resource shows


def condition_of(
    spec: GroupSpec, seen: SeenGroup, owner: Claim | None = None, refusal: str | None = None
) -> Condition | None:
    """Whether the declared settings are in force. `owner` is an older resource for the same group; `refusal` is the
    brokers' error message for the change."""
    wanted = declared(spec)
    if not wanted:
        return None
    if owner is not None:
        message = f"{seen.group} belongs to the older ConsumerGroup {owner.name!r}; its settings apply."
        return Condition(APPLIED, False, "Conflict", message)
    if refusal is not None:
        return Condition(APPLIED, False, "Refused", refusal)
    if {name: seen.settings[name] for name in _NAMES if name in seen.settings} != wanted:
        return Condition(
            APPLIED, False, "NotSet", "The settings on the brokers differ from the declared ones."
        )
    if not seen.members:
        return Condition(
            APPLIED, True, "Set", "The settings are set on the brokers; the group has no members yet."
        )
    late = _late(spec, seen.members)
    if late:
        return Condition(APPLIED, None, "Pending", late)
    if seen.assignor_failure:
        message = f"{seen.assignor_failure}. The group uses {seen.protocol} instead."
        return Condition(APPLIED, False, "AssignorFailed", message)
    if spec.assignor is None or seen.protocol == spec.assignor:
        return Condition(APPLIED, True, "InForce", "All members use the declared settings.")
    return _other_assignor(spec.assignor, seen)


def _late(spec: GroupSpec, members: Sequence[SeenMember]) -> str | None:
    for wanted, attribute, name in (
        (spec.session_timeout_ms, "session_timeout_ms", "session timeout"),
        (spec.rebalance_timeout_ms, "rebalance_timeout_ms", "rebalance timeout"),
    ):
        if wanted is not None and any(getattr(m, attribute) != wanted for m in members):
            return f"The coordinator does not use the {name} of {wanted} ms yet."
    return None


def _other_assignor(assignor: str, seen: SeenGroup) -> Condition:
    if not seen.protocol:
        return Condition(APPLIED, None, "Rebalancing", "The group is rebalancing.")
    strangers = [
        m.client_id or m.member_id for m in seen.members if m.protocols and assignor not in m.protocols
    ]
    if seen.is_broker_side:
        return _not_on_brokers(assignor, seen.protocol)
    if not strangers:
        message = f"The members use {seen.protocol}; {assignor} applies from the next rebalance."
        return Condition(APPLIED, None, "Pending", message)
    named, more = strangers[:_NAMED_MAX], len(strangers) - _NAMED_MAX
    who = ", ".join(named) + (f" and {more} more" if more > 0 else "")
    message = f"The members voted for {seen.protocol}, because these do not support {assignor}: {who}."
    if assignor in BROKER_SIDE_ASSIGNORS:
        advice = f"{assignor} is for broker-side groups: start the members with group.protocol=consumer."
        return Condition(APPLIED, False, "ClassicGroup", f"{message} {advice}")
    return Condition(APPLIED, False, "NotKnownToAll", f"{message} Add it to their assignors.")


def _not_on_brokers(assignor: str, in_use: str) -> Condition:
    if assignor in ASSIGNORS and assignor not in CLASSIC_ASSIGNORS:
        return Condition(APPLIED, None, "Pending", f"The group uses {in_use}, and {assignor} in a moment.")
    why = (
        "exists in classic groups only"
        if assignor in CLASSIC_ASSIGNORS
        else "is not installed on the brokers"
    )
    available = ", ".join(each for each in ASSIGNORS if each not in CLASSIC_ASSIGNORS)
    message = f"The assignor {assignor} {why}, so the group uses {in_use}. Available: {available}."
    return Condition(APPLIED, False, "UnknownAssignor", message)
