"""Names of certificates beside what Python's TLS reads from them, and certificates that are damaged."""

from __future__ import annotations

import datetime
import ssl
import warnings
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from hypothesis import given, settings
from hypothesis import strategies as st

import budget
from ottla_broker import certificate_subject
from ottla_broker.certificate_subject import UnreadableName, name_of, name_of_pem

_KEY = ec.generate_private_key(ec.SECP256R1())
#: Names of RFC 2253; Python has the long ones.
_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}


def certificate(*parts: list[x509.NameAttribute]) -> x509.Certificate:
    name = x509.Name([x509.RelativeDistinguishedName(part) for part in parts])
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")]))
        .public_key(_KEY.public_key())
        .serial_number(7)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(_KEY, hashes.SHA256())
    )


def attribute(number: str, value: str, kind: _ASN1Type = _ASN1Type.UTF8String) -> x509.NameAttribute:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of lengths that no broker checks.
        return x509.NameAttribute(x509.ObjectIdentifier(number), value, kind, _validate=False)


def python_says(pem: bytes, folder: Path) -> str:
    """As it was written before: from the subject of `SSLSocket.getpeercert`."""
    path = folder / "certificate.pem"
    path.write_bytes(pem)
    found = cast(Any, ssl)._ssl._test_decode_cert(str(path))
    return ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={certificate_subject._escaped(value)}" for kind, value in part)
        for part in reversed(found["subject"])
    )


_TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00", exclude_categories=("Cs",)),
    min_size=1,
    max_size=20,
)
_PARTS = st.lists(
    st.builds(
        attribute,
        st.sampled_from([*certificate_subject._NAMES, "1.2.3.4.5", "2.999.70000"]),
        _TEXTS,
        st.sampled_from([_ASN1Type.UTF8String, _ASN1Type.BMPString, _ASN1Type.UniversalString]),
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda each: each.oid,
)


@given(st.lists(_PARTS, min_size=1, max_size=4))
@settings(max_examples=budget.examples(200), deadline=None)
def test_a_name_is_what_python_reads(tmp_path_factory: pytest.TempPathFactory, parts: Any) -> None:
    if any(
        each._type is _ASN1Type.BMPString and max(each.value) > "\uffff" for part in parts for each in part
    ):
        return
    made = certificate(*parts)
    pem = made.public_bytes(serialization.Encoding.PEM)
    assert name_of_pem(pem) == name_of(made.public_bytes(serialization.Encoding.DER))
    assert name_of_pem(pem) == python_says(pem, tmp_path_factory.getbasetemp())


def test_a_name_is_written_as_java_writes_it() -> None:
    made = certificate(
        [attribute("2.5.4.6", "DE", _ASN1Type.PrintableString)],
        [attribute("2.5.4.10", "Example, Inc.")],
        [attribute("2.5.4.42", "José")],
        [attribute("2.5.4.3", "#a+b "), attribute("0.9.2342.19200300.100.1.1", "7")],
    )
    name = name_of(made.public_bytes(serialization.Encoding.DER))
    assert name == "CN=\\#a\\+b\\ +UID=7,givenName=José,O=Example\\, Inc.,C=DE"


def test_damaged_certificates_have_no_name() -> None:
    der = certificate([attribute("2.5.4.3", "alice")]).public_bytes(serialization.Encoding.DER)
    for end in range(len(der)):
        try:
            name_of(der[:end])
        except UnreadableName:
            continue
        pytest.fail(f"{end} bytes of {len(der)} have a name")
    for at in range(len(der)):
        for bit in range(8):
            try:
                name_of(der[:at] + bytes([der[at] ^ 1 << bit]) + der[at + 1 :])
            except UnreadableName:
                continue
    with pytest.raises(UnreadableName):
        name_of_pem(b"nothing")
