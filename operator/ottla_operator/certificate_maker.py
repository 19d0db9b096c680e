"""Makes and reads certificates, with the `cryptography` library; `certificate_plan.py` decides when. [A]

EC keys on P-256: made in a millisecond, accepted by every TLS library. Loaded only when a Cluster needs certificates.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ottla_operator.certificate_plan import CA_DAYS, LEAF_DAYS, Held, Wanted

#: Clocks of nodes differ.
_BEFORE = timedelta(minutes=5)


class Pair(NamedTuple):
    """PEM of a certificate and of its key."""

    certificate: bytes
    key: bytes


def make_ca(name: str, now_s: float) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, name, key.public_key(), now_s, CA_DAYS)
    usage = _usage(key_cert_sign=True, crl_sign=True)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    return _pair(builder.sign(key, hashes.SHA256()), key)


def issue(ca: Pair, wanted: Wanted, now_s: float, *, server: bool) -> Pair:
    """A certificate of this CA. `server`: for brokers, which are clients of each other too; else for clients only."""
    authority = x509.load_pem_x509_certificate(ca.certificate)
    signer = _private(ca.key)
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = str(authority.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    # Never longer than its CA.
    days = min(LEAF_DAYS, max(1, int((authority.not_valid_after_utc.timestamp() - now_s) / 86_400)))
    builder = _builder(wanted.common_name, issuer, key.public_key(), now_s, days)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if server else [])]
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(digital_signature=True), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
    )
    if wanted.hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_name(h) for h in wanted.hosts]), critical=False
        )
    return _pair(builder.sign(signer, hashes.SHA256()), key)


def read(certificate: bytes | None) -> Held | None:
    """The first certificate of a PEM file; None if there is none that can be read."""
    if not certificate:
        return None
    try:
        found = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        return None
    names = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    try:
        hosts = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        listed = tuple(str(each.value) for each in hosts)
    except x509.ExtensionNotFound:
        listed = ()
    try:
        authority = found.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    except x509.ExtensionNotFound:
        authority = None
    own = x509.SubjectKeyIdentifier.from_public_key(found.public_key()).digest
    return Held(
        found.not_valid_before_utc.timestamp(),
        found.not_valid_after_utc.timestamp(),
        (authority or own).hex(),
        own.hex(),
        str(names[0].value) if names else "",
        listed,
    )


def common_name(name: str) -> str:
    """X.509 has 64 characters for it; a hash keeps shortened names distinct."""
    return name if len(name) <= 64 else f"{name[:47]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _builder(
    name: str, issuer: str, key: ec.EllipticCurvePublicKey, now_s: float, days: int
) -> x509.CertificateBuilder:
    now = datetime.fromtimestamp(now_s, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(_subject(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _private(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an EC key")
    return key


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
