"""The Dockerfiles, read by Docker's own parser: bases are arguments, users are not root, copied files exist."""

from __future__ import annotations

from pathlib import Path

import dockerfile
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


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
    (entrypoint,) = [each for kind, each in steps if kind == "entrypoint"]
    assert entrypoint.json, "exec form, so that SIGTERM arrives"
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for kind, each in steps:
        if kind == "copy" and not any(flag.startswith("--from") for flag in each.flags):
            for source in each.value[:-1]:
                assert (ROOT / source).exists(), source
                assert any(source == one or source.startswith(f"{one}/") for one in allowed), source


def test_there_is_one_for_each_image_of_the_chart() -> None:
    text = "".join(path.read_text() for path in FILES)
    assert len(FILES) == 2 and "ROLE=broker" in text and "pyspark" in text
