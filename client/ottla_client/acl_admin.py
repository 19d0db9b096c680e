"""Administration of ACLs: create, describe, delete. [S]

Used by `Admin`, which has the same methods. Names are Kafka's: `TOPIC`, `PREFIXED`, `READ`, `ALLOW`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ottla_client.connection import exception_of
from ottla_core.pb import acls_pb2 as pb

_Call = Callable[[str, Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    #: TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID or USER.
    resource_type: str
    #: `*` for all of the type, `kafka-cluster` for the cluster.
    name: str
    #: Such as `User:alice`.
    principal: str
    #: READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS, ALL, …
    operation: str
    permission: str = "ALLOW"
    #: LITERAL or PREFIXED.
    pattern_type: str = "LITERAL"
    host: str = "*"


@dataclass(frozen=True, slots=True)
class AclFilter:
    """None matches everything."""

    resource_type: str | None = None
    name: str | None = None
    principal: str | None = None
    operation: str | None = None
    permission: str | None = None
    #: LITERAL, PREFIXED, or MATCH: every pattern that matches a resource of this name.
    pattern_type: str | None = None
    host: str | None = None


class AclAdmin:
    def __init__(self, ask: _Call, change: _Call) -> None:
        self._ask = ask
        self._change = change

    async def create(self, acls: Iterable[Acl]) -> None:
        answer = await self._change("CreateAcls", pb.CreateAclsRequest(acls=map(_to_pb, acls)))
        for outcome in (answer, *answer.outcomes):
            _raise(outcome)

    async def describe(self, wanted: AclFilter) -> list[Acl]:
        answer = await self._ask("DescribeAcls", pb.DescribeAclsRequest(filter=_filter(wanted)))
        _raise(answer)
        return sorted(map(_from_pb, answer.acls))

    async def delete(self, filters: Iterable[AclFilter]) -> list[Acl]:
        answer = await self._change("DeleteAcls", pb.DeleteAclsRequest(filters=map(_filter, filters)))
        for outcome in (answer, *answer.deleted):
            _raise(outcome)
        return sorted({_from_pb(acl) for deleted in answer.deleted for acl in deleted.acls})


def _raise(answer: Any) -> None:
    if answer.HasField("error"):
        raise exception_of(answer.error)


def _number(enum: Any, prefix: str, name: str | None) -> Any:
    """0, which matches everything, for None. ValueError for a name that does not exist."""
    return 0 if name is None else enum.Value(f"{prefix}_{name.upper()}")


def _to_pb(acl: Acl) -> pb.Acl:
    return pb.Acl(
        resource_type=_number(pb.AclResourceType, "ACL_RESOURCE_TYPE", acl.resource_type),
        pattern_type=_number(pb.AclPatternType, "ACL_PATTERN_TYPE", acl.pattern_type),
        name=acl.name,
        principal=acl.principal,
        host=acl.host,
        operation=_number(pb.AclOperation, "ACL_OPERATION", acl.operation),
        permission=_number(pb.AclPermission, "ACL_PERMISSION", acl.permission),
    )


def _filter(wanted: AclFilter) -> pb.AclFilter:
    return pb.AclFilter(
        resource_type=_number(pb.AclResourceType, "ACL_RESOURCE_TYPE", wanted.resource_type),
        pattern_type=_number(pb.AclPatternType, "ACL_PATTERN_TYPE", wanted.pattern_type),
        name=wanted.name,
        principal=wanted.principal,
        host=wanted.host,
        operation=_number(pb.AclOperation, "ACL_OPERATION", wanted.operation),
        permission=_number(pb.AclPermission, "ACL_PERMISSION", wanted.permission),
    )


def _from_pb(acl: pb.Acl) -> Acl:
    return Acl(
        pb.AclResourceType.Name(acl.resource_type).removeprefix("ACL_RESOURCE_TYPE_"),
        acl.name,
        acl.principal,
        pb.AclOperation.Name(acl.operation).removeprefix("ACL_OPERATION_"),
        pb.AclPermission.Name(acl.permission).removeprefix("ACL_PERMISSION_"),
        pb.AclPatternType.Name(acl.pattern_type).removeprefix("ACL_PATTERN_TYPE_"),
        acl.host,
    )
