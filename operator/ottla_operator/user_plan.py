"""Users: desired and observed state -> ordered actions, and the status. [P]

Brokers do not tell passwords. So the status remembers which version of the Secret is in force; a password that another
client has changed is noticed only if its iterations differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ottla_operator.specs import Meta
from ottla_operator.status import IN_FORCE, Condition, not_ready, ready
from ottla_operator.user_spec import SCRAM, AclRule, UserSpec

MECHANISM = "SCRAM-SHA-512"
#: More than the brokers' minimum of 4096, because generated passwords do not need them, and chosen ones do.
ITERATIONS = 8192


@dataclass(frozen=True, slots=True)
class SeenUser:
    """A user as the brokers describe it."""

    #: Iterations by mechanism.
    mechanisms: Mapping[str, int] = field(default_factory=dict)
    acls: frozenset[AclRule] = frozenset()
    #: Of the user alone, not of the user with a client id.
    quotas: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetPassword:
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DropPasswords:
    user: str
    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AddAcls:
    user: str
    rules: tuple[AclRule, ...]


@dataclass(frozen=True, slots=True)
class RemoveAcls:
    user: str
    rules: tuple[AclRule, ...]


@dataclass(frozen=True, slots=True)
class SetQuotas:
    user: str
    values: Mapping[str, float]
    remove: tuple[str, ...] = ()


Action = SetPassword | DropPasswords | AddAcls | RemoveAcls | SetQuotas


def plan(spec: UserSpec, seen: SeenUser, password: str | None, *, is_new: bool) -> tuple[Action, ...]:
    """`password` is that of the Secret, for SCRAM; `is_new`: its version is not in force yet.

    Denials first, so that nothing is allowed for a moment that the spec denies; removals last.
    """
    actions: list[Action] = []
    if spec.acls is not None:
        missing = sorted(spec.acls - seen.acls, key=lambda rule: (rule.permission != "DENY", rule))
        if missing:
            actions.append(AddAcls(spec.user, tuple(missing)))
        if extra := sorted(seen.acls - spec.acls):
            actions.append(RemoveAcls(spec.user, tuple(extra)))
    if spec.quotas is not None and spec.quotas != seen.quotas:
        changed = {name: value for name, value in spec.quotas.items() if seen.quotas.get(name) != value}
        actions.append(SetQuotas(spec.user, changed, tuple(sorted(set(seen.quotas) - set(spec.quotas)))))
    if spec.authentication == SCRAM:
        if password is not None and (is_new or seen.mechanisms.get(MECHANISM) != ITERATIONS):
            actions.append(SetPassword(spec.user, password))
        others = tuple(sorted(set(seen.mechanisms) - {MECHANISM}))
    else:
        others = tuple(sorted(seen.mechanisms))
    if others:
        actions.append(DropPasswords(spec.user, others))
    return tuple(actions)


def plan_removal(spec: UserSpec, seen: SeenUser) -> tuple[Action, ...]:
    """After the resource was deleted: no login and no right is left."""
    actions: list[Action] = []
    if seen.mechanisms:
        actions.append(DropPasswords(spec.user, tuple(sorted(seen.mechanisms))))
    if spec.acls is not None and seen.acls:
        actions.append(RemoveAcls(spec.user, tuple(sorted(seen.acls))))
    if spec.quotas is not None and seen.quotas:
        actions.append(SetQuotas(spec.user, {}, tuple(sorted(seen.quotas))))
    return tuple(actions)


def facts_of(spec: UserSpec, seen: SeenUser, secret_version: str | None) -> dict[str, Any]:
    return {
        "userName": spec.user,
        "principal": spec.principal,
        "secretName": spec.secret,
        "secretVersion": secret_version,
        "aclCount": len(seen.acls),
    }


def condition_of(spec: UserSpec, takes: Sequence[str]) -> Condition:
    """`takes` are the authentications that the Cluster's listeners have."""
    needed = "scram" if spec.authentication == SCRAM else "tls"
    if needed not in takes:
        return not_ready(
            "NoListener",
            f"The Cluster has no listener with authentication {needed}, so the user cannot log in: set listeners.tls "
            "or listeners.external of the Cluster.",
        )
    return ready("The user matches its spec.")


def words(action: Action) -> str:
    """Event message for an action."""
    match action:
        case SetPassword(user):
            return f"Setting the password of user {user}."
        case DropPasswords(user, mechanisms):
            return f"Removing the {', '.join(mechanisms)} credentials of user {user}."
        case AddAcls(user, rules):
            return f"Adding {len(rules)} ACLs of user {user}: {_list(rules)}."
        case RemoveAcls(user, rules):
            return f"Removing {len(rules)} ACLs of user {user}: {_list(rules)}."
        case SetQuotas(user, values, remove):
            said = [f"{name}={value:g}" for name, value in sorted(values.items())]
            return f"Setting quotas of user {user}: {', '.join([*said, *(f'no {name}' for name in remove)])}."


def _list(rules: Sequence[AclRule]) -> str:
    said = [f"{rule.permission} {rule.operation} {rule.resource_type}:{rule.name}" for rule in rules[:5]]
    return ", ".join(said) + (", …" if len(rules) > 5 else "")


def is_drift(
    meta: Meta, status: Mapping[str, Any] | None, actions: Sequence[Action], *, is_new: bool
) -> bool:
    """Whether another client changed the user: this spec and this Secret were in force, and now there are actions."""
    before = status or {}
    was_ready = any(
        row.get("type") == "Ready" and row.get("reason") in (*IN_FORCE, "NoListener")
        for row in before.get("conditions") or ()
    )
    return bool(actions) and not is_new and was_ready and before.get("observedGeneration") == meta.generation
