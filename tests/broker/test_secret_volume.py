"""A certificate in a Secret, as cert-manager writes it and the kubelet mounts it, is renewed under a running broker."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

from certificates import Authority
from ottla_broker.config import BrokerConfig
from ottla_broker.tls_files import TlsFiles


class SecretVolume:
    """tls.crt, tls.key and ca.crt behind `..data`, a link that the kubelet replaces when the Secret changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._versions = 0

    def write(self, pem: Path, authority: Authority) -> None:
        version = self.folder / f"..2026_{self._versions}"
        self._versions += 1
        version.mkdir()
        key, _, certificate = pem.read_text().partition("-----BEGIN CERTIFICATE-----")
        (version / "tls.key").write_text(key)
        (version / "tls.crt").write_text(f"-----BEGIN CERTIFICATE-----{certificate}")
        shutil.copy(authority.file, version / "ca.crt")
        data = self.folder / "..data"
        former = data.resolve() if data.exists() else None
        fresh = self.folder / "..data_tmp"
        fresh.symlink_to(version.name)
        fresh.rename(data)
        for name in ("tls.key", "tls.crt", "ca.crt"):
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        if former is not None:
            shutil.rmtree(former)

    def settings(self) -> dict[str, str]:
        return {
            "ssl.keystore.location": str(self.folder / "tls.crt"),
            "ssl.key.location": str(self.folder / "tls.key"),
        }


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def served(files: TlsFiles, trusted: Path) -> str:
    """The common name that a client sees, or the reason why it refuses."""
    client = ssl.create_default_context(cafile=str(trusted))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_side = files.context().wrap_bio(to_server, to_client, server_side=True)
    client_side = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(10):
        done = True
        for side in (client_side, server_side):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                done = False
            except ssl.SSLCertVerificationError as refused:
                return refused.verify_message
        if done:
            break
    found = client_side.getpeercert()
    assert found is not None
    return str(dict(part[0] for part in found["subject"])["commonName"])  # type: ignore[index,misc]


def test_a_renewed_secret_is_served_to_the_next_client(tmp_path: Path) -> None:
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second", "second-ca")
    volume, clock = SecretVolume(tmp_path / "volume"), Clock()
    volume.write(first.issue("a", "/CN=issued"), first)
    files = TlsFiles(BrokerConfig.of(volume.settings()).tls, clock)  # type: ignore[arg-type]
    assert served(files, first.file) == "issued"

    volume.write(first.issue("b", "/CN=renewed"), first)
    clock.now += 2
    assert served(files, first.file) == "renewed"

    volume.write(second.issue("c", "/CN=reissued"), second)
    clock.now += 2
    assert served(files, second.file) == "reissued"
    assert "unable to get local issuer" in served(files, first.file), "of the former CA nothing is left"
    version, (key, certificate), _ = files.pem()
    assert version >= 2 and b"PRIVATE KEY" in key and b"CERTIFICATE" in certificate, "gRPC serves the same"
