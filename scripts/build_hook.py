"""Puts compiled modules into a wheel that is built where there is a C compiler; without one, a wheel of the sources.

A hook of hatchling (pyproject.toml), so `pip install .` has it, too. A wheel has the compiled modules or the sources
only, and its tag says which. Two variables choose:

* `OTTLA_PURE=1`: the sources only.
* `OTTLA_COMPILED=1`: an error instead of the sources only; for images, which should never be slow by accident.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))

import compile as compiling

_PURE, _COMPILED = "OTTLA_PURE", "OTTLA_COMPILED"
#: PyPI and pip know no older tag for current Pythons.
_OLDEST_GLIBC = 17


class CompiledModules(BuildHookInterface[Any]):
    def dependencies(self) -> list[str]:
        """What pip installs to build: the compiler of Python, if there is one of C for its output."""
        if os.environ.get(_PURE) or compiling.lacking_compiler() is not None:
            return []
        return ["mypy[mypyc]>=1.18", "crc32c>=2.7,<3"]  # the latter for its types

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # An editable install runs the checkout, whose modules scripts/setup.sh compiles.
        if version == "editable" or os.environ.get(_PURE):
            return
        folder = self._folder()
        if folder is None:
            return
        build_data["force_include"][str(folder)] = "ottla_core/_compiled"
        build_data["pure_python"] = False
        tag = self.build_config.builder.get_best_matching_tag()
        build_data["tag"] = portable_tag(tag, (file.read_bytes() for file in folder.glob("*.so")))

    def _folder(self) -> Path | None:
        """Those of the checkout if they are current: other Pythons may build wheels here, too."""
        if compiling.is_current():
            return compiling.FOLDER
        why = compiling.lacking()
        if why is None:
            self._scratch = tempfile.TemporaryDirectory()  # until the end of the process that builds
            folder = Path(self._scratch.name, "_compiled")
            try:
                compiling.build(folder)
                return folder
            except compiling.ToolFailed as failed:
                why = f"a C compiler that works ({compiling.reason(str(failed))})"
            except SystemExit:
                why = "sources that this mypy accepts; its errors are above"
        if os.environ.get(_COMPILED):
            raise SystemExit(f"{_COMPILED} is set, and compiling needs {why}.")
        compiling.say(f"a wheel of pure Python: compiling needs {why}")
        return None


def portable_tag(tag: str, libraries: Iterable[bytes]) -> str:
    """The tag of a wheel with these libraries: on Linux, the oldest glibc that has every function that they use.

    pip then takes the wheel of the sources on an older system, where loading the libraries would fail (PEP 600).
    """
    minors = [int(found) for each in libraries for found in re.findall(rb"GLIBC_2\.(\d+)", each)]
    python, abi, platform = tag.split("-")
    if minors:
        platform = platform.replace("linux", f"manylinux_2_{max(_OLDEST_GLIBC, *minors)}")
    return f"{python}-{abi}-{platform}"
