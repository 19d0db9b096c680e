"""ACLs: Kafka's resource types, operations, patterns and bindings, with their names and numbers. [P]"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class ResourceType(IntEnum):
    """Kafka's ResourceType, by its number on the wire."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Kafka's PatternType of a stored ACL."""

    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Kafka's AclOperation. Sets of operations are bit fields over these numbers, as in Kafka's responses."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Kafka's AclPermissionType."""

    DENY = 2
    ALLOW = 3


#: The only resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"
#: Matches every name, host, and name of a user.
WILDCARD = "*"
ANY_USER = "User:*"

#: Every operation but ALL.
EVERY_OPERATION = sum(1 << operation for operation in Operation if operation is not Operation.ALL)

#: Operations that make sense on a type of resource: what "authorized operations" in responses can contain.
SUPPORTED: dict[ResourceType, int] = {
    ResourceType.TOPIC: sum(1 << n for n in (3, 4, 5, 6, 7, 8, 10, 11)),
    ResourceType.GROUP: sum(1 << n for n in (3, 6, 8, 10, 11)),
    ResourceType.CLUSTER: sum(1 << n for n in (5, 7, 8, 9, 10, 11, 12)),
    ResourceType.TRANSACTIONAL_ID: sum(1 << n for n in (4, 8, 15)),
    ResourceType.DELEGATION_TOKEN: 1 << Operation.DESCRIBE,
    ResourceType.USER: sum(1 << n for n in (13, 14)),
}


class Pattern(NamedTuple):
    """The resources that an ACL is about."""

    type: ResourceType
    pattern_type: PatternType
    #: A name, the start of names, or (literal) `*`.
    name: str


class Entry(NamedTuple):
    """Who may or may not do what."""

    principal: str
    host: str
    operation: Operation
    permission: Permission


class Binding(NamedTuple):
    pattern: Pattern
    entry: Entry

    def row(self) -> AclRow:
        (type_, pattern_type, name), (principal, host, operation, permission) = self
        return AclRow(int(type_), int(pattern_type), name, principal, host, int(operation), int(permission))


class AclRow(NamedTuple):
    """A binding as plain values, as commands carry it between brokers."""

    type: int
    pattern_type: int
    name: str
    principal: str
    host: str
    operation: int
    permission: int

    def binding(self) -> Binding:
        """ValueError for a number that does not exist."""
        pattern = Pattern(ResourceType(self.type), PatternType(self.pattern_type), self.name)
        entry = Entry(self.principal, self.host, Operation(self.operation), Permission(self.permission))
        return Binding(pattern, entry)
