"""Filters of ACLs, as in DescribeAcls and DeleteAcls, and the checks of new ACLs. [P]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ottla_broker.acl import (
    CLUSTER_NAME,
    SUPPORTED,
    WILDCARD,
    AclRow,
    Binding,
    Operation,
    Pattern,
    PatternType,
    ResourceType,
)
from ottla_broker.authorizer import Rules
from ottla_core.errors import InvalidRequest

#: Kafka's "any", for resource types, pattern types, operations and permissions.
ANY = 1
#: Kafka's pattern type of filters: all patterns that match a resource of this name.
MATCH = 2

#: Names are parts of keys that every broker keeps in memory.
_TEXT_MAX = 1_000


class AclFilter(NamedTuple):
    """None, or `ANY`, matches everything."""

    type: int = ANY
    pattern_type: int = ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY

    def check(self) -> None:
        for what, value, low, high in (
            ("resource type", self.type, ANY, 7),
            ("pattern type", self.pattern_type, ANY, 4),
            ("operation", self.operation, ANY, 15),
            ("permission", self.permission, ANY, 3),
        ):
            if not low <= value <= high:
                raise InvalidRequest(f"The filter's {what} {value} does not exist; {ANY} matches any.")

    def matches(self, binding: Binding) -> bool:
        pattern, entry = binding
        return self._matches_pattern(pattern) and (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (ANY, entry.operation)
            and self.permission in (ANY, entry.permission)
        )

    def _matches_pattern(self, pattern: Pattern) -> bool:
        if self.type not in (ANY, pattern.type):
            return False
        if self.pattern_type not in (ANY, MATCH, pattern.pattern_type):
            return False
        if self.name is None or self.name == pattern.name:
            return True
        if self.pattern_type != MATCH:
            return False
        if pattern.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name == WILDCARD


def bindings_in(acls: Mapping[Pattern, Rules]) -> Iterator[Binding]:
    for pattern, rules in acls.items():
        for entry in rules.entries:
            yield Binding(pattern, entry)


def checked(row: AclRow) -> Binding:
    """The binding that a client wants to create. InvalidRequest with a sentence if it makes no sense."""
    try:
        made = row.binding()
    except ValueError as error:
        raise InvalidRequest(
            f"An ACL needs a type, a pattern, an operation and a permission: {error}."
        ) from None
    (type_, pattern_type, name), entry = made
    if not name:
        raise InvalidRequest("An ACL needs the name of a resource, or * for all.")
    if max(len(name), len(entry.principal), len(entry.host)) > _TEXT_MAX:
        raise InvalidRequest(f"Names in an ACL have at most {_TEXT_MAX} characters.")
    if type_ is ResourceType.CLUSTER and (name != CLUSTER_NAME or pattern_type is not PatternType.LITERAL):
        raise InvalidRequest(
            f"The only resource of type CLUSTER is the literal {CLUSTER_NAME!r}, not {name!r}."
        )
    kind, colon, who = entry.principal.partition(":")
    if not (kind and colon and who):
        raise InvalidRequest(f"A principal has the form User:name, not {entry.principal!r}.")
    if not entry.host:
        raise InvalidRequest("An ACL needs a host, or * for all.")
    if entry.operation is not Operation.ALL and not SUPPORTED[type_] >> entry.operation & 1:
        raise InvalidRequest(f"{entry.operation.name} is not an operation on resources of type {type_.name}.")
    return made
