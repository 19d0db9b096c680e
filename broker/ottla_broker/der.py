"""The few steps through DER (X.690) that certificates need, instead of a library of ten megabytes. [P]

Every step raises ValueError or IndexError for bytes that are not what the caller expects.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

SEQUENCE, SET, OBJECT_ID = 0x30, 0x31, 0x06
_VERSION = 0xA0
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)


def certificates(pem: bytes) -> Iterator[bytes]:
    """Those of a PEM file, as DER."""
    return (base64.b64decode(encoded) for encoded in _PEM.findall(pem))


def element(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """Content of the first element, which has this tag, and what follows it."""
    if data[0] != tag:
        raise ValueError(f"tag {data[0]}, not {tag}")
    size, at = data[1], 2
    if size & 0x80:
        at += size & 0x7F
        size = int.from_bytes(data[2:at])
    if at + size > len(data):
        raise ValueError("cut off")
    return data[at : at + size], data[at + size :]


def elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of all elements."""
    while data:
        tag = data[0]
        content, data = element(data, tag)
        yield tag, content


def from_validity(der: bytes) -> bytes:
    """The fields of a certificate from its validity on; its subject follows (RFC 5280, 4.1)."""
    certificate, _ = element(der, SEQUENCE)
    rest, _ = element(certificate, SEQUENCE)
    if rest[0] == _VERSION:
        _, rest = element(rest, _VERSION)
    for _ in range(3):  # serial number, signature algorithm, issuer
        _, rest = element(rest, rest[0])
    return rest


def object_id(content: bytes) -> str:
    """In dotted form."""
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
