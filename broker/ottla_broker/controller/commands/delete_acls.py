"""Deletes the ACLs that filters match. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ottla_broker.acl import AclRow, Binding, Entry, Pattern
from ottla_broker.acl_filter import AclFilter, bindings_in
from ottla_broker.authorizer import Rules
from ottla_broker.controller.command import Change, Command, Tools
from ottla_broker.controller.planner import Plan, set_key
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.sections.acls import ACLS
from ottla_core.errors import RequestError


@dataclass(frozen=True, slots=True)
class DeleteAcls(Command[list[AclRow]]):
    """The result lists the ACLs that were deleted, each of which a filter matches."""

    filters: tuple[AclFilter, ...]

    result_type = list[AclRow]

    def changes(self, image: ClusterImage, tools: Tools) -> Sequence[Change]:
        matched: dict[Pattern, set[Entry]] = {}
        for pattern, entry in self._matched(bindings_in(image.acls)):
            matched.setdefault(pattern, set()).add(entry)
        return [_Removal(pattern, frozenset(entries)) for pattern, entries in matched.items()]

    def _matched(self, bindings: Iterable[Binding]) -> list[Binding]:
        return [each for each in bindings if any(one.matches(each) for one in self.filters)]

    def answer(self, results: list[list[Binding]]) -> list[AclRow]:
        return [binding.row() for some in results for binding in some]

    def after_retry(self, result: list[AclRow], before: ClusterImage, now: ClusterImage) -> list[AclRow]:
        """What the first attempt deleted is missing now."""
        left = set(bindings_in(now.acls))
        lost = [each.row() for each in self._matched(bindings_in(before.acls)) if each not in left]
        return list(dict.fromkeys((*result, *lost)))


@dataclass(frozen=True, slots=True)
class _Removal:
    pattern: Pattern
    entries: frozenset[Entry]

    def plan(self, image: ClusterImage) -> Plan:
        now = image.acls.get(self.pattern)
        if now is None or self.entries.isdisjoint(now.entries):
            return Plan()
        left = [entry for entry in now.entries if entry not in self.entries]
        return set_key(ACLS.key(self.pattern), ACLS.encode(Rules(left)) if left else None)

    def result(self, error: RequestError | None) -> list[Binding]:
        if error is not None:
            raise error
        return [Binding(self.pattern, entry) for entry in sorted(self.entries)]


COMMAND = DeleteAcls
