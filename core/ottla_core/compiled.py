"""Prefers compiled modules over their Python sources, as long as the two agree. [A]

`scripts/compile.py` compiles the modules of the hot path with mypyc into `_compiled/`, beside this file: one
extension per module, one library with all of their code, and `sources.txt` with the checksum of every source.
Importing `ottla_core` looks at that list once. If one source differs, all modules come from their sources: native
code reaches into other modules of its library, so half of it cannot be used. That way nobody ever runs
code that is not in the sources, whatever was edited or checked out since. A wheel for one platform has `_compiled/`,
too, and the sources beside it (scripts/build_hook.py).

`OTTLA_PURE=1` in the environment chooses the sources.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from zlib import crc32

FOLDER = os.path.join(os.path.dirname(__file__), "_compiled")
SOURCES = "sources.txt"
PURE = "OTTLA_PURE"
#: The shared code of all modules; mypyc derives the name from the name of the group.
GROUP = "ottla"
_LIBRARY = f"{GROUP}__mypyc"


def checksum(path: str) -> str:
    with open(path, "rb") as file:
        return f"{crc32(file.read()):08x}"


def extension(module: str, folder: str = FOLDER) -> str:
    """The file of a compiled module, for this Python only."""
    return os.path.join(folder, module + EXTENSION_SUFFIXES[0])


class CompiledFinder:
    """Finds compiled modules by their full names."""

    def __init__(self, modules: frozenset[str]) -> None:
        self.modules = modules

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in self.modules or name == _LIBRARY:
            return spec_from_file_location(name, extension(name))
        return None


def usable(folder: str, environ: Mapping[str, str]) -> frozenset[str] | str:
    """The compiled modules in a folder, or why they are not used."""
    if environ.get(PURE):
        return f"{PURE} is set"
    try:
        with open(os.path.join(folder, SOURCES)) as file:
            listed = [line.split() for line in file]
        changed = [path for _, was, path in listed if checksum(os.path.join(folder, path)) != was]
    except OSError:
        return "not compiled"
    if changed:
        return f"{os.path.basename(changed[0])} has changed since it was compiled"
    if not os.path.exists(extension(_LIBRARY, folder)):
        return "compiled for another Python"
    return frozenset(module for module, _, _ in listed)


def prefer_compiled() -> None:
    found = usable(FOLDER, os.environ)
    if not isinstance(found, str):
        sys.meta_path.insert(0, CompiledFinder(found))


def is_in_use() -> bool:
    """Whether this process runs compiled modules."""
    return _finder() is not None


def in_use() -> str:
    """What this process runs, for people: compiled modules, or plain Python and why."""
    finder = _finder()
    if finder is not None:
        return f"{len(finder.modules)} modules compiled"
    return f"pure Python: {usable(FOLDER, os.environ)}"


def _finder() -> CompiledFinder | None:
    return next((each for each in sys.meta_path if isinstance(each, CompiledFinder)), None)
