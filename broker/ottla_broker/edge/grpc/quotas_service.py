"""`ottla.v1.Quotas`: quotas on the native protocol, translated to the service and back. [S]"""

from __future__ import annotations

from typing import Any, Protocol

from ottla_broker.controller.commands.alter_quotas import QuotaChange
from ottla_broker.edge.grpc.native_service import NativeService
from ottla_broker.edge.grpc.refusal import guarded
from ottla_broker.edge.grpc.translation import error_message
from ottla_broker.quota import Entity
from ottla_broker.service.quotas import NameFilter, QuotaService
from ottla_core.errors import RequestError
from ottla_core.pb import quotas_pb2 as pb

QUOTAS_SERVICE = "ottla.v1.Quotas"
#: The method in the proto, the method here, and its request.
QUOTAS_CALLS: dict[str, tuple[str, Any]] = {
    "DescribeQuotas": ("describe_quotas", pb.DescribeQuotasRequest),
    "AlterQuotas": ("alter_quotas", pb.AlterQuotasRequest),
}
_PARTS = ("user", "client_id", "ip")


class QuotasServices(Protocol):
    """The services object, as far as this service uses it."""

    @property
    def quotas(self) -> QuotaService: ...


class QuotasService(NativeService[QuotasServices]):
    @guarded
    async def describe_quotas(
        self, request: pb.DescribeQuotasRequest, context: Any
    ) -> pb.DescribeQuotasResponse:
        names = [_part(request.entity, part) for part in _PARTS]
        filters = [None if name is None else NameFilter(name) for name in names]
        try:
            found = self._enter(context).quotas.describe(*filters, strict=False)
        except RequestError as error:
            return pb.DescribeQuotasResponse(error=error_message(error))
        return pb.DescribeQuotasResponse(
            quotas=[pb.Quota(entity=_entity(entity), values=values) for entity, values in found]
        )

    @guarded
    async def alter_quotas(self, request: pb.AlterQuotasRequest, context: Any) -> pb.AlterQuotasResponse:
        changes = [
            QuotaChange(
                _part(each.entity, "user"),
                _part(each.entity, "client_id"),
                dict(each.set),
                tuple(each.remove),
                _part(each.entity, "ip"),
            )
            for each in request.changes
        ]
        try:
            errors = await self._enter(context).quotas.alter(changes, validate_only=request.validate_only)
        except RequestError as error:
            return pb.AlterQuotasResponse(error=error_message(error))
        return pb.AlterQuotasResponse(
            outcomes=[pb.QuotaOutcome(error=None if e is None else error_message(e)) for e in errors]
        )


def _part(entity: Any, name: str) -> str | None:
    return str(getattr(entity, name)) if entity.HasField(name) else None


def _entity(entity: Entity) -> pb.QuotaEntity:
    return pb.QuotaEntity(user=entity.user, client_id=entity.client_id, ip=entity.ip)
