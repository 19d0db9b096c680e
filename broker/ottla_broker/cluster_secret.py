"""The secret that all brokers of a cluster share: read from its file, or generated for a single broker. [A]

Read by a broker's process at its start. The text is never logged nor part of an error.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from ottla_broker.setting import ConfigError

#: Shorter ones can be guessed by trying.
SECRET_BYTES_MIN = 16
#: The one that signs, and those that it replaces.
SECRETS_MAX = 4
_FILE_BYTES_MAX = 64 * 1024


class ClusterSecret(NamedTuple):
    #: The first signs, all are accepted.
    values: tuple[bytes, ...]
    #: False if this process made it up: then no other broker can know it, and this one must be alone.
    is_shared: bool = True

    def __repr__(self) -> str:
        return f"<{len(self.values)} secrets>"


class SecretMissing(Exception):
    """A broker without the cluster's secret would join others."""


def cluster_secret(path: str | None) -> ClusterSecret:
    """ConfigError if the file cannot be used. Without one a random secret that only this process knows."""
    if path is None:
        return ClusterSecret((secrets.token_bytes(32),), is_shared=False)
    try:
        with open(path, "rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as failed:
        raise ConfigError(
            f"cluster.secret.file = {path} cannot be read: {failed.strerror or failed}."
        ) from None
    return ClusterSecret(parse_secrets(data, path))


def parse_secrets(data: bytes, path: str) -> tuple[bytes, ...]:
    """One secret per line, without the space around it; empty lines do not count."""
    found = tuple(dict.fromkeys(line.strip() for line in data.splitlines() if line.strip()))
    if not found:
        raise ConfigError(f"cluster.secret.file = {path} is empty; write a random secret into it.")
    if len(found) > SECRETS_MAX or len(data) > _FILE_BYTES_MAX:
        raise ConfigError(
            f"cluster.secret.file = {path} may have at most {SECRETS_MAX} lines, one secret each."
        )
    if any(len(secret) < SECRET_BYTES_MIN for secret in found):
        raise ConfigError(
            f"Each secret in cluster.secret.file = {path} needs at least {SECRET_BYTES_MIN} characters; "
            "make one with: openssl rand -hex 32"
        )
    return found
