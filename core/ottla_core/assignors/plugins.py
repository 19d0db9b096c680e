"""Custom assignors, from Python entry points of the group `ottla.assignors`. [A]

A package declares `[project.entry-points."ottla.assignors"]` with `name = "module:Class"`; the class takes no
arguments and implements `model.Assignor`. It runs in the event loop of the broker, so it has to be fast and pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points

from ottla_core.assignors.model import Assignor
from ottla_core.assignors.registry import BUILT_IN

ENTRY_POINTS = "ottla.assignors"


def load_assignors(found: Iterable[EntryPoint] | None = None) -> Mapping[str, Assignor]:
    """Built-in and custom assignors by name. ValueError if one cannot be loaded or takes a built-in name."""
    made: dict[str, Assignor] = dict(BUILT_IN)
    for entry in entry_points(group=ENTRY_POINTS) if found is None else found:
        if entry.name in BUILT_IN:
            raise ValueError(f"Assignor {entry.name!r} of {entry.value} has the name of a built-in assignor.")
        try:
            assignor: Assignor = entry.load()()
            usable = callable(assignor.assign) and isinstance(assignor.shares_partitions, bool)
        except Exception as error:
            raise ValueError(
                f"Assignor {entry.name!r} of {entry.value} cannot be loaded: {error!r}"
            ) from error
        if not usable or assignor.name != entry.name:
            raise ValueError(f"Assignor {entry.name!r} of {entry.value} does not implement Assignor.")
        made[entry.name] = assignor
    return made
