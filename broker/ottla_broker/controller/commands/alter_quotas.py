"""Sets and removes quotas of users, client ids and addresses. [P]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ottla_broker.controller.command import Change, Command, Tools
from ottla_broker.controller.planner import Plan, set_key
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.sections.quotas import QUOTAS
from ottla_broker.quota import Entity
from ottla_core.errors import PolicyViolation, RequestError

#: Every broker keeps all of them in memory.
ENTITIES_MAX = 10_000


class QuotaChange(NamedTuple):
    user: str | None
    client_id: str | None
    set: Mapping[str, float]
    remove: tuple[str, ...]
    ip: str | None = None

    @property
    def entity(self) -> Entity:
        return Entity(self.user, self.client_id, self.ip)


@dataclass(frozen=True, slots=True)
class AlterQuotas(Command[list[RequestError | None]]):
    """Checked changes of different entities. The result has one error, or none, for each."""

    changes_of: tuple[QuotaChange, ...]

    result_type = list[RequestError | None]

    def changes(self, image: ClusterImage, tools: Tools) -> Sequence[Change]:
        return [_Alteration(each) for each in self.changes_of]

    def answer(self, results: list[RequestError | None]) -> list[RequestError | None]:
        return results


@dataclass(frozen=True, slots=True)
class _Alteration:
    change: QuotaChange

    def plan(self, image: ClusterImage) -> Plan:
        entity = self.change.entity
        now = image.quotas.get(entity, {})
        made = {name: value for name, value in now.items() if name not in self.change.remove}
        made |= self.change.set
        if made and not now and len(image.quotas) >= ENTITIES_MAX:
            raise PolicyViolation(
                f"{ENTITIES_MAX} users, client ids and addresses have quotas already; use defaults."
            )
        if made == now:
            return Plan()
        return set_key(QUOTAS.key(entity), QUOTAS.encode(made) if made else None)

    def result(self, error: RequestError | None) -> RequestError | None:
        return error


COMMAND = AlterQuotas
