"""Certificates for tests, made with the openssl command: a CA, and what it signs. Keys are EC: made in milliseconds."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    def __init__(self, folder: Path, name: str = "test-ca", *, days: int = 2) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key, self.file = folder / f"{name}.key", folder / f"{name}.pem"
        _openssl(
            *(
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                str(days),
            ),
            *("-subj", f"/CN={name}", "-keyout", str(self._key), "-out", str(self.file)),
        )

    def issue(self, name: str, subject: str, *, days: int = 2, into: Path | None = None) -> Path:
        """A PEM file with a certificate for localhost and its key."""
        key, request, signed = (self._folder / f"{name}.{end}" for end in ("key", "csr", "crt"))
        extensions = self._folder / f"{name}.ext"
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        _openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-utf8", "-subj", subject, "-keyout", str(key), "-out", str(request)),
        )
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.file), "-CAkey", str(self._key)),
            *("-CAcreateserial", "-days", str(days), "-extfile", str(extensions), "-out", str(signed)),
        )
        both = into or self._folder / f"{name}.pem"
        fresh = both.with_suffix(".new")
        fresh.write_text(key.read_text() + signed.read_text())
        fresh.replace(both)
        return both


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
