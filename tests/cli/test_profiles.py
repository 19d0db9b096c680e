"""Profiles of the command line: options by name, and secrets that only their owner can read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ottla_cli import profiles
from ottla_cli.failure import Failure
from ottla_cli.main import _with_profile


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("OTTLA_BOOTSTRAP", "")
    monkeypatch.delenv("OTTLA_PROFILE", raising=False)
    monkeypatch.setattr(profiles, "_used", {})
    (tmp_path / "ottla").mkdir()
    made = tmp_path / "ottla" / "profiles.toml"
    made.write_text(
        '[open]\nbootstrap.servers = "b:1"\n'
        '[tls]\nsecurity.protocol = "SSL"\nssl.ca.location = "ca.pem"\n'
        '[login]\n"security.protocol" = "SASL_SSL"\nsasl.username = "alice"\nsasl.password.file = "secret"\n'
        '[bad]\nsecurity.protocol = "TLS"\n'
    )
    return made


def test_options_of_a_profile(file: Path) -> None:
    profiles.use("open")
    assert os.environ["OTTLA_BOOTSTRAP"] == "b:1"
    assert profiles.security() is None
    profiles.use("tls")
    found = profiles.security()
    assert found is not None and found.ssl_ca_location == str(file.parent / "ca.pem")
    (file.parent / "secret").write_text("s3cret\n")
    (file.parent / "secret").chmod(0o640)
    with pytest.raises(Failure, match="chmod 600"):
        profiles.use("login")
    (file.parent / "secret").chmod(0o600)
    profiles.use("login")
    found = profiles.security()
    assert found is not None and found.sasl_password == "s3cret"


def test_a_file_with_a_password_is_private(file: Path) -> None:
    file.write_text(file.read_text() + '[other]\nsasl.password = "x"\n')
    file.chmod(0o644)
    with pytest.raises(Failure, match="chmod 600"):
        profiles.use("open")
    file.chmod(0o600)
    profiles.use("open")


def test_profiles_that_cannot_be_used(file: Path) -> None:
    with pytest.raises(Failure, match="choose one of PLAINTEXT"):
        profiles.use("bad")
    with pytest.raises(Failure, match=r"no profile 'nope'; it has: bad, login, open, tls"):
        profiles.use("nope")
    file.write_text("[")
    with pytest.raises(Failure, match="not valid TOML"):
        profiles.use("open")
    file.unlink()
    with pytest.raises(Failure, match="There is no"):
        profiles.use("open")


def test_the_option_may_stand_anywhere(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    monkeypatch.setattr(profiles, "use", used.append)
    assert _with_profile(["--profile", "a", "topics", "list"]) == ["topics", "list"]
    assert _with_profile(["topics", "list", "--profile=b", "-b", "x:1"]) == ["topics", "list", "-b", "x:1"]
    assert _with_profile(["produce", "--", "--profile", "c"]) == ["produce", "--", "--profile", "c"]
    monkeypatch.setenv("OTTLA_PROFILE", "d")
    _with_profile(["topics"])
    assert used == ["a", "b", "d"]
