"""Service for both edges: describes and changes the quotas of users, client ids and addresses. [S]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla_broker.controller.commands.alter_quotas import AlterQuotas, QuotaChange
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.quota import DEFAULT, Entity, check_value
from ottla_broker.service.controller_calls import ControllerCalls
from ottla_core.errors import InvalidRequest, RequestError

#: Kafka's requests have no timeout of their own; this is the default of its clients.
_TIMEOUT_S = 30.0


class NameFilter(NamedTuple):
    """Of users, client ids or addresses: one of them, the default (`DEFAULT`), or with None any that is named."""

    name: str | None

    def matches(self, name: str | None) -> bool:
        return name is not None and self.name in (None, name)


class QuotaService:
    def __init__(self, metadata: Metadata, controller: ControllerCalls) -> None:
        self._metadata = metadata
        self._controller = controller

    def describe(
        self,
        user: NameFilter | None,
        client_id: NameFilter | None,
        ip: NameFilter | None = None,
        *,
        strict: bool,
    ) -> list[tuple[Entity, dict[str, float]]]:
        """Quotas of what the filters match. `strict`: only of entities without further names."""
        found = []
        for entity, quotas in self._metadata.image.quotas.items():
            if all(
                (name is None or not strict) if wanted is None else wanted.matches(name)
                for wanted, name in zip((user, client_id, ip), entity, strict=True)
            ):
                found.append((entity, dict(quotas)))
        return sorted(found, key=lambda each: [part or DEFAULT for part in each[0]])

    async def alter(
        self, changes: Sequence[QuotaChange], *, validate_only: bool
    ) -> list[RequestError | None]:
        """One outcome per change."""
        errors: list[RequestError | None] = []
        seen: set[Entity] = set()
        for each in changes:
            entity = each.entity
            try:
                entity.check()
                if entity in seen:
                    raise InvalidRequest("The same quota entity occurs twice in one request.")
                for name, value in each.set.items():
                    check_value(entity, name, value)
                errors.append(None)
            except RequestError as error:
                errors.append(error)
            seen.add(entity)
        valid = [each for each, error in zip(changes, errors, strict=True) if error is None]
        if validate_only or not valid:
            return errors
        outcomes = await self._controller.execute(AlterQuotas(tuple(valid)), timeout_s=_TIMEOUT_S)
        made = iter(outcomes)
        return [next(made) if error is None else error for error in errors]
