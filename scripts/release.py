"""Builds what a release consists of into dist/: wheels, the chart, the archive of images, and checksums.

`make release`. The version is that of pyproject.toml; the CHANGELOG needs a section for it. From one source tree, two
distributions that share no file:

* `ottla-client`: the client and the formats it needs, for programs. No code of the broker, operator or Spark. Two
  wheels: one with compiled modules for this Python and platform (build_hook.py), one of the sources for all others.
* `ottla`: the rest, which depends on `ottla-client` of the same version. Its extras choose the role.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import compile as compiling

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
#: The packages of each wheel, and the extras that belong to it.
CLIENT = ("core/ottla_core", "client/ottla_client")
REST = ("broker/ottla_broker", "cli/ottla_cli", "operator/ottla_operator", "spark/pyspark_ottla")
_CLIENT_EXTRAS = ("telemetry",)
_REST_EXTRAS = ("client", "decode", "broker", "operator", "spark")
#: Added by build_hook.py.
COMPILED = "core/ottla_core/_compiled"
_SHARED = ("version", "requires-python", "license", "license-files", "urls", "classifiers")


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def notes(version: str, changelog: str) -> str:
    """The section of a version; ValueError if there is none, or if it has no date."""
    found = re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)",
        changelog,
        re.DOTALL | re.MULTILINE,
    )
    if found is None or not found[1].strip():
        raise ValueError(
            f"CHANGELOG.md has no section `## [{version}] - YYYY-MM-DD`: "
            "move the lines of [Unreleased] there, as CONTRIBUTING.md says."
        )
    return found[1].strip() + "\n"


def wheels(target: Path) -> list[Path]:
    """Build the client from its sources, the rest, and the compiled client if there is a compiler."""
    whole = project()
    version = whole["version"]
    extras = whole["optional-dependencies"]
    shared = {name: whole[name] for name in _SHARED if name in whole}
    client = {
        "name": "ottla-client",
        "description": "The Python client of Ottla, a replicated commit log that speaks Kafka's protocol",
        **shared,
        "dependencies": whole["dependencies"],
        "optional-dependencies": {name: extras[name] for name in _CLIENT_EXTRAS},
    }
    rest = {
        "name": "ottla",
        "description": whole["description"],
        **shared,
        "dependencies": [f"ottla-client=={version}"],
        "optional-dependencies": {name: extras[name] for name in _REST_EXTRAS},
        "scripts": whole["scripts"],
    }
    made = [_wheel(client, CLIENT, target), _wheel(rest, REST, target)]
    compiling.main()
    if compiling.is_current():
        made.append(_wheel(client, CLIENT, target, is_compiled=True))
    return made


def _wheel(
    metadata: Mapping[str, Any], packages: Sequence[str], target: Path, *, is_compiled: bool = False
) -> Path:
    table = "tool.hatch.build.targets.wheel"
    with tempfile.TemporaryDirectory() as folder:
        for package in packages:
            ignored = shutil.ignore_patterns("__pycache__", *(() if is_compiled else ("_compiled",)))
            shutil.copytree(ROOT / package, Path(folder, package), ignore=ignored)
        for file in ("LICENSE", "README.md"):
            shutil.copy(ROOT / file, folder)
        project_file = (
            '[build-system]\nrequires = ["hatchling>=1.25"]\nbuild-backend = "hatchling.build"\n'
            + _toml("project", {**metadata, "readme": "README.md"})
            + _toml(table, {"packages": packages, "exclude": [COMPILED]})
        )
        if is_compiled:
            shutil.copytree(ROOT / "scripts", Path(folder, "scripts"), ignore=ignored)
            project_file += _toml(f"{table}.hooks.custom", {"path": "scripts/build_hook.py"})
        Path(folder, "pyproject.toml").write_text(project_file)
        made = Path(folder, "made")
        _run(
            [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(made)],
            folder,
            env={"OTTLA_COMPILED": "1"} if is_compiled else {},
        )
        (wheel,) = made.glob("*.whl")
        return Path(shutil.copy(wheel, target))


def _toml(table: str, values: Mapping[str, Any]) -> str:
    """A table of texts, lists of texts and tables of them, in TOML, whose strings are written as in JSON."""
    own = "".join(
        f"{json.dumps(name)} = {json.dumps(value)}\n"
        for name, value in values.items()
        if not _is_table(value)
    )
    subs = "".join(_toml(f"{table}.{name}", value) for name, value in values.items() if _is_table(value))
    return f"[{table}]\n{own}{subs}"


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def chart(target: Path) -> None:
    _run(
        [
            str(Path(sys.executable).with_name("helm")),
            "package",
            str(ROOT / "charts/ottla"),
            "-d",
            str(target),
        ]
    )


def images(target: Path, version: str) -> None:
    """The archive of `make images`, under the tag of the release."""
    _run(
        [sys.executable, "-m", "ottla_e2e", "images"],
        env={
            "PYTHONPATH": str(ROOT / "e2e"),
            "E2E_TAG": version,
            "E2E_ARCHIVE": str(target / f"ottla-images-{version}.tar"),
        },
    )


def _run(command: Sequence[str], folder: str | Path = ROOT, env: Mapping[str, str] | None = None) -> None:
    subprocess.run(command, check=True, cwd=folder, env={**os.environ, **(env or {})}, stdout=sys.stderr)


def checksums(target: Path) -> None:
    files = sorted(path for path in target.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (target / "SHA256SUMS").write_text("".join(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without-images", action="store_true", help="wheels and chart only")
    parser.add_argument(
        "--try", action="store_true", dest="trial", help="do not ask for a section of the CHANGELOG"
    )
    chosen = parser.parse_args()
    version = project()["version"]
    # The checksums are of everything in it, so nothing of an earlier version may stay.
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    if not chosen.trial:
        try:
            (DIST / "NOTES.md").write_text(notes(version, (ROOT / "CHANGELOG.md").read_text()))
        except ValueError as missing:
            print(missing, file=sys.stderr)
            return 1
    made = wheels(DIST)
    for each in made:
        print(each.relative_to(ROOT))
    if not chosen.trial and all(each.name.endswith("-any.whl") for each in made):
        print("A release needs a wheel with compiled modules, and so a C compiler.", file=sys.stderr)
        return 1
    chart(DIST)
    if not chosen.without_images:
        images(DIST, version)
    checksums(DIST)
    print((DIST / "SHA256SUMS").read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
