"""Service for both edges: creates, lists and deletes ACLs. [S]

Without an authoriser there are no ACLs to administer: SECURITY_DISABLED, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla_broker.acl import AclRow, Binding
from ottla_broker.acl_filter import AclFilter, bindings_in, checked
from ottla_broker.controller.commands.create_acls import CreateAcls
from ottla_broker.controller.commands.delete_acls import DeleteAcls
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.service.controller_calls import ControllerCalls
from ottla_core.errors import RequestError, SecurityDisabled

#: Kafka's requests have no timeout of their own; this is the default of its clients.
_TIMEOUT_S = 30.0


class AclService:
    def __init__(self, metadata: Metadata, controller: ControllerCalls, *, enabled: bool) -> None:
        self._metadata = metadata
        self._controller = controller
        self._enabled = enabled

    async def create(self, rows: Sequence[AclRow]) -> list[RequestError | None]:
        """One outcome per row: those that are refused do not affect the others."""
        self._check_enabled()
        errors: list[RequestError | None] = []
        valid: list[AclRow] = []
        for row in rows:
            try:
                valid.append(checked(row).row())
                errors.append(None)
            except RequestError as error:
                errors.append(error)
        if valid:
            outcomes = await self._controller.execute(CreateAcls(tuple(valid)), timeout_s=_TIMEOUT_S)
            made = iter(outcomes)
            errors = [next(made) if error is None else error for error in errors]
        return errors

    def describe(self, wanted: AclFilter) -> list[Binding]:
        self._check_enabled()
        wanted.check()
        return sorted(each for each in bindings_in(self._metadata.image.acls) if wanted.matches(each))

    async def delete(self, filters: Sequence[AclFilter]) -> list[list[Binding] | RequestError]:
        """For each filter the ACLs that it matched."""
        self._check_enabled()
        outcomes: list[list[Binding] | RequestError] = []
        valid: list[AclFilter] = []
        for each in filters:
            try:
                each.check()
                valid.append(each)
                outcomes.append([])
            except RequestError as error:
                outcomes.append(error)
        if not valid:
            return outcomes
        gone = await self._controller.execute(DeleteAcls(tuple(valid)), timeout_s=_TIMEOUT_S)
        deleted = [row.binding() for row in gone]
        return [
            outcome if isinstance(outcome, RequestError) else [b for b in deleted if each.matches(b)]
            for each, outcome in zip(filters, outcomes, strict=True)
        ]

    def _check_enabled(self) -> None:
        if not self._enabled:
            raise SecurityDisabled()
