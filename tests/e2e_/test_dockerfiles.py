"""The Dockerfiles, read by Docker's own parser: bases are arguments, users are not root, copied files exist."""

from __future__ import annotations

import subprocess
from pathlib import Path

import dockerfile
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = [
    ROOT / name
    for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    if name.lower().endswith("dockerfile") and (ROOT / name).exists()
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_dockerfile(path: Path) -> None:
    steps = [(each.cmd.lower(), each) for each in dockerfile.parse_file(str(path))]
    assert next(each.value[0] for kind, each in steps if kind == "arg").startswith("BASE=")
    assert all(each.value[0] == "${BASE}" for kind, each in steps if kind == "from")
    (user,) = [each.value[0] for kind, each in steps if kind == "user"]
    assert user == "10001:10001", "numeric, for runAsNonRoot"
    last = [kind for kind, _ in steps]
    assert last.index("user") > max(n for n, kind in enumerate(last) if kind in ("run", "copy")), (
        "nothing runs later"
    )
    (build,) = [
        each.value[0] for kind, each in steps if kind == "run" and "OTTLA_COMPILED=1" in each.value[0]
    ]
    assert "pip install" in build, "an image without compiled modules is an error"
    (entrypoint,) = [each for kind, each in steps if kind == "entrypoint"]
    assert entrypoint.json, "exec form, so that SIGTERM arrives"
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied: set[str] = set()
    for kind, each in steps:
        if kind == "copy" and not any(flag.startswith("--from") for flag in each.flags):
            copied.update(each.value[:-1])
            for source in each.value[:-1]:
                assert (ROOT / source).exists(), source
                assert any(source == one or source.startswith(f"{one}/") for one in allowed), source
    assert {"scripts/build_hook.py", "scripts/compile.py", "pyproject.toml"} <= copied, "what a build reads"


def test_the_user_of_spark_has_a_name() -> None:
    """Hadoop's login fails for a user who is not in /etc/passwd: "invalid null input: name"."""
    (path,) = [each for each in FILES if "pyspark" in each.read_text()]
    steps = [(each.cmd.lower(), each) for each in dockerfile.parse_file(str(path))]
    last_stage = max(n for n, (kind, _) in enumerate(steps) if kind == "from")
    added = " ".join(each.value[0] for kind, each in steps[last_stage:] if kind == "run")
    assert "useradd --uid 10001 --gid 10001" in added


def test_there_is_one_for_each_image_of_the_chart() -> None:
    text = "".join(path.read_text() for path in FILES)
    assert (
        [path.parent.name for path in FILES] == ["docker", "docker"]
        and "ROLE=broker" in text
        and "pyspark" in text
    )
