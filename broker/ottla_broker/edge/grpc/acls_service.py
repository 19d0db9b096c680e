"""`ottla.v1.Acls`: ACLs on the native protocol, translated to the service and back. [S]"""

from __future__ import annotations

from typing import Any, Protocol

from ottla_broker.acl import AclRow, Binding
from ottla_broker.acl_filter import ANY, AclFilter
from ottla_broker.edge.grpc.native_service import NativeService
from ottla_broker.edge.grpc.refusal import guarded
from ottla_broker.edge.grpc.translation import error_message
from ottla_broker.service.acls import AclService
from ottla_core.errors import RequestError
from ottla_core.pb import acls_pb2 as pb

ACLS_SERVICE = "ottla.v1.Acls"
#: The method in the proto, the method here, and its request.
ACLS_CALLS: dict[str, tuple[str, Any]] = {
    "CreateAcls": ("create_acls", pb.CreateAclsRequest),
    "DescribeAcls": ("describe_acls", pb.DescribeAclsRequest),
    "DeleteAcls": ("delete_acls", pb.DeleteAclsRequest),
}


class AclServices(Protocol):
    """The services object, as far as this service uses it."""

    @property
    def acls(self) -> AclService: ...


class AclsService(NativeService[AclServices]):
    @guarded
    async def create_acls(self, request: pb.CreateAclsRequest, context: Any) -> pb.CreateAclsResponse:
        rows = [
            AclRow(a.resource_type, a.pattern_type, a.name, a.principal, a.host, a.operation, a.permission)
            for a in request.acls
        ]
        try:
            errors = await self._enter(context).acls.create(rows)
        except RequestError as error:
            return pb.CreateAclsResponse(error=error_message(error))
        return pb.CreateAclsResponse(
            outcomes=[pb.AclOutcome(error=None if e is None else error_message(e)) for e in errors]
        )

    @guarded
    async def describe_acls(self, request: pb.DescribeAclsRequest, context: Any) -> pb.DescribeAclsResponse:
        try:
            found = self._enter(context).acls.describe(_filter(request.filter))
        except RequestError as error:
            return pb.DescribeAclsResponse(error=error_message(error))
        return pb.DescribeAclsResponse(acls=map(_acl, found))

    @guarded
    async def delete_acls(self, request: pb.DeleteAclsRequest, context: Any) -> pb.DeleteAclsResponse:
        try:
            outcomes = await self._enter(context).acls.delete([_filter(each) for each in request.filters])
        except RequestError as error:
            return pb.DeleteAclsResponse(error=error_message(error))
        return pb.DeleteAclsResponse(
            deleted=[
                pb.DeletedAcls(error=error_message(each))
                if isinstance(each, RequestError)
                else pb.DeletedAcls(acls=map(_acl, each))
                for each in outcomes
            ]
        )


def _filter(asked: pb.AclFilter) -> AclFilter:
    return AclFilter(
        asked.resource_type or ANY,
        asked.pattern_type or ANY,
        asked.name if asked.HasField("name") else None,
        asked.principal if asked.HasField("principal") else None,
        asked.host if asked.HasField("host") else None,
        asked.operation or ANY,
        asked.permission or ANY,
    )


def _acl(binding: Binding) -> pb.Acl:
    row = binding.row()
    return pb.Acl(
        resource_type=row.type,  # type: ignore[arg-type]  # a number of the enumeration
        pattern_type=row.pattern_type,  # type: ignore[arg-type]
        name=row.name,
        principal=row.principal,
        host=row.host,
        operation=row.operation,  # type: ignore[arg-type]
        permission=row.permission,  # type: ignore[arg-type]
    )
