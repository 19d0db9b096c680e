"""Compiled modules are used if they come from the sources at hand, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla_core import compiled
from ottla_core.compiled import SOURCES, checksum, extension, usable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two modules, as if compiled."""
    made = tmp_path / "_compiled"
    made.mkdir()
    lines = []
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(f"{name} = 1\n")
        lines.append(f"package.{name} {checksum(str(tmp_path / name) + '.py')} ../{name}.py\n")
    (made / SOURCES).write_text("".join(lines))
    Path(extension("ottla__mypyc", str(made))).touch()
    return made


def test_modules_of_the_same_sources_are_used(folder: Path) -> None:
    assert usable(str(folder), {}) == {"package.one", "package.two"}


def test_one_changed_source_is_enough_to_use_none(folder: Path) -> None:
    (folder.parent / "two.py").write_text("two = 2\n")
    assert usable(str(folder), {}) == "two.py has changed since it was compiled"


def test_a_source_that_is_gone_is_enough_to_use_none(folder: Path) -> None:
    (folder.parent / "one.py").unlink()
    assert usable(str(folder), {}) == "not compiled"


def test_modules_for_another_python_are_not_used(folder: Path) -> None:
    os.unlink(extension("ottla__mypyc", str(folder)))
    assert usable(str(folder), {}) == "compiled for another Python"


def test_a_variable_chooses_the_sources(folder: Path) -> None:
    assert usable(str(folder), {"OTTLA_PURE": "1"}) == "OTTLA_PURE is set"


@pytest.mark.parametrize("first", ["ottla_core", "ottla_broker", "ottla_client", "ottla_cli"])
def test_whatever_is_imported_first_prefers_compiled_modules(first: str) -> None:
    """Native code reaches into other modules of its library: one that came from its source would not be found."""
    found = usable(compiled.FOLDER, {})
    if isinstance(found, str):
        pytest.skip(found)
    program = (
        f"import importlib, sys, {first}\n"
        f"for name in {sorted(found)}: importlib.import_module(name)\n"
        f"print(all(sys.modules[name].__file__.endswith('.so') for name in {sorted(found)}))"
    )
    environ = {name: value for name, value in os.environ.items() if name != "OTTLA_PURE"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, env=environ
    )
    assert done.stdout == "True\n"
