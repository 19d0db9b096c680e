"""The table of all sections, derived from the fields of `ClusterImage`. [P]

`section_of(key)` is what loading, watching and recovering the store need to know of its kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from typing import Any, NamedTuple

from ottla_broker.metadata.image import PART, SECTIONS, ClusterImage
from ottla_broker.metadata.section import Section
from ottla_broker.metadata.sections.producer_ids import PRODUCER_BLOCK


class Shown(NamedTuple):
    """A field of the image that shows a section."""

    name: str
    #: For a Single: the field's part of the value, and its value without one.
    part: Callable[[Any], object] | None = None
    default: object = None


def _derived() -> Iterator[tuple[Section, Shown]]:
    for field in fields(ClusterImage):
        default = None if field.default is MISSING else field.default
        for section in field.metadata.get(SECTIONS, ()):
            yield section, Shown(field.name, field.metadata.get(PART), default)


#: Every section with the fields that show it. Producer ids are allocated in the store itself, and not shown.
TABLE: dict[Section, list[Shown]] = {PRODUCER_BLOCK: []}
for _section, _shown in _derived():
    TABLE.setdefault(_section, []).append(_shown)

#: By the first part of their keys, because a look-up must not become slower with each section.
_BY_FIRST: dict[str, list[Section]] = {}
for _section in TABLE:
    _BY_FIRST.setdefault(_section.prefix.partition("/")[0], []).append(_section)


def section_of(key: str) -> Section | None:
    """The section of a key; None if this version does not know it."""
    for section in _BY_FIRST.get(key.partition("/")[0], ()):
        if section.owns(key):
            return section
    return None
