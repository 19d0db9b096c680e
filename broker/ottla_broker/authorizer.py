"""Decides what a principal may do with a resource: the rules of Kafka's StandardAuthorizer. [P]

All operations are decided at once, as a bit field over `Operation`. So a decision that is cached answers every later
question about its resource, and the "authorized operations" of responses need no other code.

* A1: super users may do everything; ACLs do not count for them.
* A2: a matching DENY beats every ALLOW.
* A3: ALLOW of Read, Write, Delete or Alter implies Describe, of AlterConfigs DescribeConfigs. DENY implies nothing.
* A4: without any ACL for a resource, whoever its principals are, `allow.everyone.if.no.acl.found` decides.

`Rules` are the ACLs of one resource pattern, by principal and host. For a resource at most one literal pattern, the
wildcard, and one prefix per length of prefixes in use can match, and each is one look-up: the cost does not grow with
the number of ACLs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla_broker.acl import (
    ANY_USER,
    EVERY_OPERATION,
    WILDCARD,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)

_IMPLIED = (
    (
        sum(1 << n for n in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)),
        1 << Operation.DESCRIBE,
    ),
    (1 << Operation.ALTER_CONFIGS, 1 << Operation.DESCRIBE_CONFIGS),
)


def _bits(operation: Operation) -> int:
    return EVERY_OPERATION if operation is Operation.ALL else 1 << operation


def _with_implied(allowed: int) -> int:
    for of, implied in _IMPLIED:
        if allowed & of:
            allowed |= implied
    return allowed


class Rules:
    """The ACLs of one pattern. Immutable."""

    __slots__ = ("_bits", "entries")

    def __init__(self, entries: Iterable[Entry]) -> None:
        #: Without repetitions, in a fixed order.
        self.entries: tuple[Entry, ...] = tuple(sorted(set(entries)))
        #: By principal and host: allowed operations with what they imply, and denied ones.
        self._bits: dict[tuple[str, str], tuple[int, int]] = {}
        for each in self.entries:
            allowed, denied = self._bits.get((each.principal, each.host), (0, 0))
            if each.permission is Permission.ALLOW:
                allowed |= _with_implied(_bits(each.operation))
            else:
                denied |= _bits(each.operation)
            self._bits[each.principal, each.host] = allowed, denied

    def of(self, principal: str, host: str) -> tuple[int, int]:
        """What they allow and deny."""
        allowed = denied = 0
        for who in ((principal, host), (principal, WILDCARD), (ANY_USER, host), (ANY_USER, WILDCARD)):
            if (found := self._bits.get(who)) is not None:
                allowed |= found[0]
                denied |= found[1]
        return allowed, denied

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rules) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        return f"Rules({list(self.entries)!r})"


class AuthorizerSettings(NamedTuple):
    super_users: frozenset[str] = frozenset()
    allow_if_no_acl: bool = False


class Authorizer:
    """The decisions for one set of ACLs."""

    def __init__(self, acls: Mapping[Pattern, Rules], settings: AuthorizerSettings) -> None:
        self._acls = acls
        self._settings = settings
        lengths: dict[ResourceType, set[int]] = {}
        for pattern in acls:
            if pattern.pattern_type is PatternType.PREFIXED:
                lengths.setdefault(pattern.type, set()).add(len(pattern.name))
        self._prefix_lengths = {type_: sorted(found) for type_, found in lengths.items()}

    def is_super(self, principal: str) -> bool:
        return principal in self._settings.super_users

    def allowed(self, principal: str, host: str, type_: ResourceType, name: str) -> int:
        """The operations that are allowed, as a bit field."""
        if principal in self._settings.super_users:
            return EVERY_OPERATION
        acls, allowed, denied, found = self._acls, 0, 0, False
        matching = [Pattern(type_, PatternType.LITERAL, name)]
        if name != WILDCARD:
            matching.append(Pattern(type_, PatternType.LITERAL, WILDCARD))
        matching += [
            Pattern(type_, PatternType.PREFIXED, name[:length])
            for length in self._prefix_lengths.get(type_, ())
            if length <= len(name)
        ]
        for pattern in matching:
            if (rules := acls.get(pattern)) is not None:
                found = True
                more = rules.of(principal, host)
                allowed |= more[0]
                denied |= more[1]
        if not found:
            return EVERY_OPERATION if self._settings.allow_if_no_acl else 0
        return allowed & ~denied

    def allowed_somewhere(self, principal: str, host: str, operation: Operation, type_: ResourceType) -> bool:
        """Whether the operation is allowed on any resource of the type, existing or not."""
        if principal in self._settings.super_users:
            return True
        if self._settings.allow_if_no_acl and not any(pattern.type is type_ for pattern in self._acls):
            return True
        bit = 1 << operation
        allows: list[Pattern] = []
        denies: set[Pattern] = set()
        for pattern, rules in self._acls.items():
            if pattern.type is type_:
                allowed, denied = rules.of(principal, host)
                if allowed & bit:
                    allows.append(pattern)
                if denied & bit:
                    denies.add(pattern)
        if Pattern(type_, PatternType.LITERAL, WILDCARD) in denies:
            return False
        return any(not _is_dominated(pattern, denies) for pattern in allows)


def _is_dominated(pattern: Pattern, denies: set[Pattern]) -> bool:
    """Whether everything that the pattern matches is denied."""
    if pattern in denies:
        return True
    if pattern == Pattern(pattern.type, PatternType.LITERAL, WILDCARD):
        return False
    name = pattern.name
    return any(
        Pattern(pattern.type, PatternType.PREFIXED, name[:length]) in denies
        for length in range(1, len(name) + 1)
    )
