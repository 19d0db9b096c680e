"""The file with the secret that the brokers of a local cluster share. [A]

Made once per data folder, for its owner's eyes only; the brokers read it by `cluster.secret.file`.
"""

from __future__ import annotations

import os
import secrets


def keep_secret(path: str) -> str:
    """Its path; writes a random secret if there is no file yet."""
    if not os.path.exists(path):
        # Under another name first: a broker never reads half of it, and what a crash leaves is replaced.
        scratch = f"{path}.new"
        with open(
            os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii"
        ) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(secrets.token_hex(32) + "\n")
        os.replace(scratch, path)
    return path
