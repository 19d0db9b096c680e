"""Compiles the modules of the hot path with mypyc into core/ottla_core/_compiled, where imports prefer them.

Does nothing if they are current. Without a C compiler that can build an extension of Python it says so in one line and
ends well: the sources are all that Ottla needs. An error in the sources is an error. `OTTLA_PURE=1` chooses the sources
later, at import (ottla_core/compiled.py). Wheels get compiled modules from here, too (build_hook.py).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "core"))

from ottla_core import compiled  # noqa: E402

#: Work per record, per batch or per request. What is not listed did not pay (docs/decisions/0015).
MODULES = (
    "core/ottla_core/records/batch.py",
    "core/ottla_core/records/codec.py",
    "core/ottla_core/records/structure.py",
    "core/ottla_core/records/walk.py",
)
FOLDER = Path(compiled.FOLDER)


class ToolFailed(Exception):
    """The command of a compiler or linker that failed, and what it printed."""


def main() -> None:
    if is_current():
        return
    missing = lacking()
    if missing is not None:
        say(f"running as pure Python: compiling needs {missing}")
        return
    build(FOLDER)


def say(sentence: str) -> None:
    print(f"\033[1m==>\033[0m {sentence}", flush=True)


def is_current() -> bool:
    """Whether the compiled modules come from these sources, for this Python."""
    listing = FOLDER / compiled.SOURCES
    return (
        listing.exists()
        and listing.read_text() == _listing()
        and all(os.path.exists(compiled.extension(name)) for name in map(_name, MODULES))
    )


def _listing() -> str:
    return "".join(
        f"{_name(source)} {compiled.checksum(str(ROOT / source))} {os.path.relpath(ROOT / source, FOLDER)}\n"
        for source in MODULES
    )


def _name(source: str) -> str:
    return source.removesuffix(".py").partition("/")[2].replace("/", ".")


def lacking() -> str | None:
    """What compiling needs and this machine does not have."""
    if find_spec("mypyc") is None:
        return "mypyc (pip install 'mypy[mypyc]')"
    return lacking_compiler()


def lacking_compiler() -> str | None:
    compiler = _words("CC")[0]
    if shutil.which(compiler) is None:
        return f"a C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "the headers of Python (Python.h)"
    # A compiler alone is not enough: Debian's gcc comes without the headers of the C library.
    with tempfile.TemporaryDirectory() as scratch:
        source = f"{scratch}/probe.c"
        Path(source).write_text("#include <Python.h>\nint probe(void) { return PY_MAJOR_VERSION; }\n")
        try:
            _link("probe", [_compile([], [], source)], scratch)
        except ToolFailed as failed:
            return f"a C compiler that works ({reason(str(failed))})"
    return None


def reason(output: str) -> str:
    """The first error in a compiler's output."""
    lines = output.splitlines()
    return next((line for line in lines if "error" in line or "cannot find" in line), lines[-1]).strip()


def _words(variable: str) -> list[str]:
    """How this Python itself was compiled and linked."""
    return shlex.split(sysconfig.get_config_var(variable) or "")


def build(target: Path) -> None:
    """Compile into a folder, which then has what `_compiled` needs."""
    from mypyc.build import mypycify

    say(f"compiling {len(MODULES)} modules")
    began = time.monotonic()
    os.chdir(ROOT)
    listing = _listing()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        extensions = mypycify(
            ["--config-file=pyproject.toml", *MODULES],
            target_dir=scratch, group_name=compiled.GROUP, multi_file=True, opt_level="2", debug_level="0",
        )  # fmt: skip
        # Not setuptools, which compiles the files of an extension one after the other.
        objects = [
            [
                pool.submit(_compile, each.include_dirs, each.extra_compile_args, source)
                for source in each.sources
            ]
            for each in extensions
        ]
        made = [
            _link(each.name, [one.result() for one in its], scratch)
            for each, its in zip(extensions, objects, strict=True)
        ]
        # Whoever starts in between finds no list, and takes the sources.
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for file in made:
            shutil.move(file, target)
    (target / compiled.SOURCES).write_text(listing)
    say(f"compiled in {time.monotonic() - began:.0f} s")


def _compile(include: Sequence[str], flags: Sequence[str], source: str) -> str:
    made = source.removesuffix(".c") + ".o"
    folders = [*include, sysconfig.get_path("include")]
    _run(
        *_words("CC"), *_words("CFLAGS"), *_words("CCSHARED"), *flags,
        *(f"-I{folder}" for folder in folders), "-c", source, "-o", made,
    )  # fmt: skip
    return made


def _link(name: str, objects: Sequence[str], scratch: str) -> str:
    made = compiled.extension(name, scratch)
    _run(*_words("LDSHARED"), *objects, "-o", made)
    return made


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolFailed(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    try:
        main()
    except ToolFailed as failed:
        sys.exit(str(failed))
