"""Expiry of certificates, compared with what openssl says, and files without a readable one."""

from __future__ import annotations

import ssl
import subprocess
import time
from pathlib import Path

from certificates import Authority
from ottla_broker.certificate_dates import earliest_expiry_s
from ottla_broker.config import BrokerConfig
from ottla_broker.tls_files import TlsFiles, certificate_families
from ottla_core.real.clock import RealClock


def _openssl_says(path: Path) -> float:
    command = ["openssl", "x509", "-enddate", "-noout", "-in", str(path)]
    text = subprocess.run(command, check=True, capture_output=True, timeout=60, text=True).stdout
    return float(ssl.cert_time_to_seconds(text.strip().partition("=")[2]))


def test_the_first_certificate_that_expires_counts(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    soon, late = authority.issue("a", "/CN=a", days=3), authority.issue("b", "/CN=b", days=20_000)
    assert earliest_expiry_s(soon.read_bytes()) == _openssl_says(soon)
    assert earliest_expiry_s(late.read_bytes()) == _openssl_says(late), "a GeneralizedTime, after 2049"
    assert earliest_expiry_s(late.read_bytes() + soon.read_bytes()) == _openssl_says(soon)


def test_files_without_a_readable_certificate_have_no_expiry(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.file.read_bytes()
    assert earliest_expiry_s(b"") is None
    assert earliest_expiry_s(b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----") is None
    body = b"".join(pem.split(b"\n")[1:-2])
    for cut in range(30, 200, 7):
        short = b"-----BEGIN CERTIFICATE-----\n" + body[:cut] + b"\n-----END CERTIFICATE-----"
        assert earliest_expiry_s(short) is None


def test_the_broker_reports_a_replaced_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    file = authority.issue("broker", "/CN=broker", into=tmp_path / "broker.pem")
    config = BrokerConfig.of(
        {"ssl.keystore.location": str(file), "ssl.truststore.location": str(authority.file)}
    ).tls
    files = TlsFiles(config, RealClock())

    def expiries() -> dict[str, float]:
        (family,) = certificate_families([files])
        return {labels[0][1]: value for _, labels, value in family.samples}

    assert expiries() == {str(path): _openssl_says(path) for path in (file, authority.file)}
    authority.issue("broker", "/CN=broker", days=9, into=file)
    files._checked_at -= 10
    assert expiries()[str(file)] == _openssl_says(file) > time.time() + 8 * 86400
