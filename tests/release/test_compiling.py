"""Set-up compiles where it can, else falls back; wheels have compiled modules, and a tag that says so."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import build_hook
import compile as compiling
from ottla_core import compiled

ROOT = Path(__file__).resolve().parent.parent.parent
#: What gcc prints where the headers of the C library are not installed.
NO_HEADERS = "/usr/include/python3.11/Python.h:12:10: fatal error: stdio.h: No such file or directory"


def compiler(folder: Path, program: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def nothing_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "_compiled"
    monkeypatch.setattr(compiling, "FOLDER", folder)
    return folder


def use(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = compiling._words
    monkeypatch.setattr(
        compiling, "_words", lambda name: [command] if name in ("CC", "LDSHARED") else words(name)
    )


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (f"echo '{NO_HEADERS}' >&2; echo 'compilation terminated.' >&2; exit 1", NO_HEADERS),
        (
            "echo \"gcc: fatal error: cannot execute 'as'\" >&2; exit 1",
            "gcc: fatal error: cannot execute 'as'",
        ),
        ("exit 1", "-o"),
    ],
)
def test_a_compiler_that_does_not_work_is_a_notice(
    program: str,
    why: str,
    nothing_compiled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use(compiler(tmp_path, program), monkeypatch)
    compiling.main()
    said = capsys.readouterr().out
    assert "running as pure Python: compiling needs a C compiler that works (" in said and why in said
    assert said.count("\n") == 1 and not nothing_compiled.exists()


def test_no_compiler_is_a_notice(
    nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use("no-such-compiler", monkeypatch)
    compiling.main()
    assert "pure Python: compiling needs a C compiler (no-such-compiler)\n" in capsys.readouterr().out
    assert not nothing_compiled.exists()


def test_the_tag_names_the_oldest_glibc_that_works() -> None:
    tag = "cp311-cp311-linux_x86_64"
    libraries = [b"..GLIBC_2.2.5\0GLIBC_2.34\0..", b"GLIBC_2.14"]
    assert build_hook.portable_tag(tag, libraries) == "cp311-cp311-manylinux_2_34_x86_64"
    assert build_hook.portable_tag(tag, [b"GLIBC_2.2.5"]) == "cp311-cp311-manylinux_2_17_x86_64"
    assert build_hook.portable_tag(tag, [b"musl"]) == tag
    assert build_hook.portable_tag("cp312-cp312-macosx_14_0_arm64", [b"x"]) == "cp312-cp312-macosx_14_0_arm64"


@pytest.mark.integration
@pytest.mark.parametrize("pure", [True, False])
def test_an_installed_wheel_runs_what_it_was_built_as(pure: bool, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OTTLA_", "PYTHON"))}
    can_compile = compiling.lacking() is None
    chosen = {"OTTLA_PURE": "1"} if pure else {"OTTLA_COMPILED": "1"} if can_compile else {}
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True, timeout=300, env=environ | chosen,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    files = zipfile.ZipFile(wheel).namelist()
    expected = can_compile and not pure
    assert wheel.name.endswith("-py3-none-any.whl") is not expected
    assert any(name.endswith(".so") for name in files) is expected
    assert {"ottla_core/records/codec.py", "ottla_broker/process.py"} <= set(files), "the sources in any case"
    target = tmp_path / "installed"
    subprocess.run(
        [*pip, "install", "--no-index", "--no-deps", "--target", str(target), str(wheel)],
        check=True,
        timeout=120,
    )
    program = (
        f"import sys; sys.path.insert(0, {str(target)!r}); from ottla_core import compiled;"
        f"from ottla_core.records import walk; print(compiled.is_in_use(), walk.__file__)"
    )
    said = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60, env=environ)
    is_in_use, path = said.split()
    assert (is_in_use, path.startswith(str(target)), path.endswith(".so")) == (str(expected), True, expected)


def test_images_cannot_be_built_without_compiled_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_COMPILED", "1")
    monkeypatch.setattr(compiling, "is_current", lambda: False)
    use("no-such-compiler", monkeypatch)
    hook = build_hook.CompiledModules.__new__(build_hook.CompiledModules)
    with pytest.raises(SystemExit, match=r"compiling needs a C compiler \(no-such-compiler\)"):
        hook.initialize("standard", {"force_include": {}})


def test_the_compiled_modules_are_in_one_folder() -> None:
    """Which wheels exclude, and the hook adds."""
    assert Path(compiled.FOLDER) == ROOT / "core/ottla_core/_compiled"
