"""Keeps unused code of libraries out of a process: 150 ms of start-up and 10 MB of memory. [A]

Called once, first thing, by the processes of a broker and of the command line; nothing else may rely on it. Three
libraries run far more code at import than Ottla uses of them, because their package imports everything they have:

* aiokafka: Ottla uses its compiled record codec, it loads its clients;
* aetcd: brokers use its generated stubs, it loads its client;
* crc32c: Ottla uses one function, it loads its command line, argparse, and its own version number from disk;

and structlog loads all of rich, if it is there, to print tracebacks in colour.

A bare package is the real one (its path, its submodules), only its `__init__` has not run. Where that turns
out not to work, the package is imported as usual: slower, never wrong. Tests run with and without it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

_HIDDEN = ("rich", "colorama", "better_exceptions")


def use_bare_packages() -> None:
    for name in ("aetcd", "aiokafka", "aiokafka.record"):
        _bare(name)
    package = _bare("crc32c")
    if package is None:
        return
    try:
        from crc32c._crc32c import crc32c
    except ImportError:
        del sys.modules["crc32c"]  # another layout: let it be imported as usual
        return
    package.crc32c = crc32c  # type: ignore[attr-defined]


def _bare(name: str) -> ModuleType | None:
    """Put the package in place without running it; None if it is loaded already or not there."""
    if name in sys.modules:
        return None
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    return module


@contextmanager
def without_terminal_colours() -> Iterator[None]:
    """While structlog is imported, rich is not to be found."""
    hidden = [name for name in _HIDDEN if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
