"""Profiles: addresses, TLS and logins of clusters by name, from `profiles.toml`. [A]

    [prod]
    bootstrap.servers = "broker-0.example.com:9192"
    security.protocol = "SASL_SSL"
    ssl.ca.location = "ca.pem"                     # relative to the folder of profiles.toml
    sasl.username = "alice"
    sasl.password.file = "alice.password"          # or sasl.password

Instead of a user: `sasl.mechanism = "OAUTHBEARER"` with `sasl.oauthbearer.token.file`, or with
`sasl.oauthbearer.token.endpoint.url`, `sasl.oauthbearer.client.id` and `sasl.oauthbearer.client.secret.file`.

A file with a password or secret that others may read is refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla_cli.failure import Failure

if TYPE_CHECKING:
    from ottla_client.security import Security

_BOOTSTRAP = "bootstrap.servers"
#: Options whose value may be in a file of its own: the option's name and `.file`.
_SECRETS = ("sasl.password", "sasl.oauthbearer.client.secret")
_FILES = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "sasl.oauthbearer.token.file",
    *(f"{each}.file" for each in _SECRETS),
)
_FILE_BYTES_MAX = 64 * 1024

#: Options of the profile in use, by Kafka's names.
_used: dict[str, str] = {}


def folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "ottla"


def use(name: str) -> None:
    """Make it the profile of this process. Failure if there is no such profile, or it cannot be used."""
    path = folder() / "profiles.toml"
    options = _read(path, name)
    bootstrap = options.pop(_BOOTSTRAP, None)
    if bootstrap is not None:
        # The option --bootstrap, which wins, reads it.
        os.environ["OTTLA_BOOTSTRAP"] = bootstrap
    for option in _FILES:
        if option in options:
            options[option] = str(path.parent / Path(options[option]).expanduser())
    for option in _SECRETS:
        if f"{option}.file" in options:
            options[option] = _secret(Path(options.pop(f"{option}.file")))
    _used.clear()
    _used.update(options)
    security()


def security() -> Security | None:
    """Of the profile in use; None without one. Failure if its options contradict each other."""
    if not _used:
        return None
    from ottla_client.security import Security

    try:
        return Security.of(_used)
    except ValueError as wrong:
        raise Failure(f"The profile cannot be used: {wrong}", exit_code=2) from None


def _read(path: Path, name: str) -> dict[str, str]:
    import tomllib

    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Failure(
            f"There is no {path}; create it with a table [{name}] (docs/cli.md).", exit_code=2
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise Failure(f"{path} is not valid TOML: {wrong}.", exit_code=2) from None
    found = tree.get(name)
    if not isinstance(found, dict):
        there = ", ".join(sorted(tree)) or "none"
        raise Failure(f"{path} has no profile {name!r}; it has: {there}.", exit_code=2)
    options = dict(_flat(found, ""))
    tables = [dict(_flat(each, "")) for each in tree.values() if isinstance(each, dict)]
    if any(option in each for each in tables for option in _SECRETS):
        _check_private(path)
    return options


def _flat(table: Mapping[str, Any], prefix: str) -> list[tuple[str, str]]:
    """`security.protocol = "SSL"` is a table in a table to TOML."""
    found: list[tuple[str, str]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((prefix + key, str(value)))
    return found


def _secret(path: Path) -> str:
    _check_private(path)
    with open(path, encoding="utf-8") as file:
        return file.read(_FILE_BYTES_MAX).rstrip("\r\n")


def _check_private(path: Path) -> None:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise Failure(
            f"{path} has a password or secret, and others may read it: run `chmod 600 {path}`.", exit_code=2
        )
