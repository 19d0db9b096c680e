"""Administration of quotas: describe, set and remove. [S]

Used by `Admin`, which has the same methods. Names and units are Kafka's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla_client.connection import exception_of
from ottla_core.pb import quotas_pb2 as pb

_Call = Callable[[str, Any], Awaitable[Any]]

#: As a name: the default of all that have no quota of their own.
DEFAULT = ""


@dataclass(frozen=True, slots=True, order=True)
class QuotaEntity:
    """A user, a client id, both, or an ip. An empty name (`DEFAULT`) is the default."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


@dataclass(frozen=True, slots=True)
class Quota:
    entity: QuotaEntity
    #: producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate, or
    #: connection_creation_rate.
    values: Mapping[str, float] = field(default_factory=dict)


class QuotaAdmin:
    def __init__(self, ask: _Call, change: _Call) -> None:
        self._ask = ask
        self._change = change

    async def describe(self, wanted: QuotaEntity) -> list[Quota]:
        answer = await self._ask("DescribeQuotas", pb.DescribeQuotasRequest(entity=_to_pb(wanted)))
        _raise(answer)
        return [Quota(_from_pb(each.entity), dict(each.values)) for each in answer.quotas]

    async def alter(self, entity: QuotaEntity, values: Mapping[str, float], remove: Iterable[str]) -> None:
        change = pb.QuotaChange(entity=_to_pb(entity), set=values, remove=remove)
        answer = await self._change("AlterQuotas", pb.AlterQuotasRequest(changes=[change]))
        for outcome in (answer, *answer.outcomes):
            _raise(outcome)


def _raise(answer: Any) -> None:
    if answer.HasField("error"):
        raise exception_of(answer.error)


def _to_pb(entity: QuotaEntity) -> pb.QuotaEntity:
    return pb.QuotaEntity(user=entity.user, client_id=entity.client_id, ip=entity.ip)


def _from_pb(entity: pb.QuotaEntity) -> QuotaEntity:
    user, client_id, ip = (
        getattr(entity, name) if entity.HasField(name) else None for name in ("user", "client_id", "ip")
    )
    return QuotaEntity(user, client_id, ip)
