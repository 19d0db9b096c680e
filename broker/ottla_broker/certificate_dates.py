"""When the certificates of a PEM file expire. [P]

A few steps through DER (X.690) instead of a library: validity is the fifth field of a certificate (RFC 5280, 4.1).
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


def earliest_expiry_s(pem: bytes) -> float | None:
    """Seconds since 1970 at which the first of the certificates expires; None if none can be read."""
    found = []
    for encoded in _PEM.findall(pem):
        try:
            found.append(_not_after(base64.b64decode(encoded)).timestamp())
        except (ValueError, IndexError, binascii.Error):
            return None
    return min(found, default=None)


def _not_after(der: bytes) -> datetime:
    certificate, _ = _element(der, _SEQUENCE)
    rest, _ = _element(certificate, _SEQUENCE)
    if rest[0] == _VERSION:
        _, rest = _element(rest, _VERSION)
    for _ in range(3):  # serial number, signature algorithm, issuer
        _, rest = _element(rest, rest[0])
    validity, _ = _element(rest, _SEQUENCE)
    _, after = _element(validity, validity[0])
    text, _ = _element(after, after[0])
    form = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}.get(after[0])
    if form is None:
        raise ValueError("not a time")
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)


def _element(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """Content of the first element, and what follows it."""
    if data[0] != tag:
        raise ValueError(f"tag {data[0]}, not {tag}")
    size, at = data[1], 2
    if size & 0x80:
        at += size & 0x7F
        size = int.from_bytes(data[2:at])
    if at + size > len(data):
        raise ValueError("cut off")
    return data[at : at + size], data[at + size :]
