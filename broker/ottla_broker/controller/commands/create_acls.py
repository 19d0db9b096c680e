"""Creates ACLs; one that exists already counts as created. [P]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ottla_broker.acl import AclRow, Entry, Pattern
from ottla_broker.authorizer import Rules
from ottla_broker.controller.command import Change, Command, Tools
from ottla_broker.controller.planner import Plan, set_key
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.sections.acls import ACLS
from ottla_core.errors import PolicyViolation, RequestError

#: Every broker keeps all of them in memory.
PATTERNS_MAX = 10_000
#: One value of the store, which takes 1.5 MiB.
ENTRIES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class CreateAcls(Command[list[RequestError | None]]):
    """Checked rows (`acl_filter.checked`). The result has one error, or none, for each row."""

    rows: tuple[AclRow, ...]

    result_type = list[RequestError | None]

    def changes(self, image: ClusterImage, tools: Tools) -> Sequence[Change]:
        added: dict[Pattern, list[tuple[int, Entry]]] = {}
        for index, row in enumerate(self.rows):
            pattern, entry = row.binding()
            added.setdefault(pattern, []).append((index, entry))
        return [_Addition(pattern, tuple(some)) for pattern, some in added.items()]

    def answer(self, results: list[tuple[tuple[int, ...], RequestError | None]]) -> list[RequestError | None]:
        by_index = {index: error for indexes, error in results for index in indexes}
        return [by_index[index] for index in range(len(self.rows))]


@dataclass(frozen=True, slots=True)
class _Addition:
    pattern: Pattern
    entries: tuple[tuple[int, Entry], ...]

    def plan(self, image: ClusterImage) -> Plan:
        now = image.acls.get(self.pattern)
        if now is None and len(image.acls) >= PATTERNS_MAX:
            raise PolicyViolation(f"{PATTERNS_MAX} resources have ACLs already; use prefixed patterns.")
        made = Rules((*(now.entries if now else ()), *(entry for _, entry in self.entries)))
        if len(made.entries) > ENTRIES_MAX:
            raise PolicyViolation(f"{self.pattern.name!r} would have more than {ENTRIES_MAX} ACLs.")
        return Plan() if made == now else set_key(ACLS.key(self.pattern), ACLS.encode(made))

    def result(self, error: RequestError | None) -> tuple[tuple[int, ...], RequestError | None]:
        return tuple(index for index, _ in self.entries), error


COMMAND = CreateAcls
