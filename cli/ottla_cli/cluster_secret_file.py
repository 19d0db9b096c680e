"""The file with the secret that the brokers of a local cluster share. [A]

Created once per data folder, readable by its owner only; brokers find it by `cluster.secret.file`.
"""

from __future__ import annotations

import os
import secrets


def keep_secret(path: str) -> str:
    """The path of the file; writes a random secret if the file does not exist."""
    if not os.path.exists(path):
        # Write and rename: a broker never reads half a file, and the next run replaces what a crash left.
        scratch = f"{path}.new"
        with open(
            os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii"
        ) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(secrets.token_hex(32) + "\n")
        os.replace(scratch, path)
    return path
