"""Users from `sasl.users.file`: those that exist before the first login, such as the first administrator. [A]

Read by a broker's process at its start. No part of a line is ever logged or part of an error.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla_broker.authn.scram import USER_CHARS_MAX
from ottla_broker.setting import ConfigError

#: Each costs 10 ms of the start. It is for administrators; others belong into the metadata store.
USERS_MAX = 50
_FILE_BYTES_MAX = 64 * 1024


def read_users(path: str | None) -> Mapping[str, str]:
    """Password by user. ConfigError if the file cannot be used."""
    if path is None:
        return {}
    try:
        with open(path, "rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as failed:
        raise ConfigError(f"sasl.users.file = {path} cannot be read: {failed.strerror or failed}.") from None
    return parse_users(data, path)


def parse_users(data: bytes, path: str) -> Mapping[str, str]:
    """`user:password` per line; empty lines and those that begin with # do not count."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"sasl.users.file = {path} is not UTF-8.") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, _, password = line.strip().partition(":")
        if not user or not password or user in found or len(user) > USER_CHARS_MAX:
            raise ConfigError(
                f"sasl.users.file = {path}: line {number} must be user:password, each user once."
            )
        found[user] = password
    if len(found) > USERS_MAX or len(data) > _FILE_BYTES_MAX:
        raise ConfigError(
            f"sasl.users.file = {path} may have at most {USERS_MAX} users; create others with `ottla users create`."
        )
    return found
