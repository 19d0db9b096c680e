"""The distinguished name of a client certificate, as principals and `ssl.principal.mapping.rules` have it. [P]

One function for both protocols, because a name that differed between them would be two principals, and an ACL that
denies one of them would not bind the other. TLS libraries write names in forms of their own: gRPC's escapes every
letter beyond ASCII, Python's knows other names of attributes.
"""

from __future__ import annotations

import binascii
import re
from functools import lru_cache

from ottla_broker.der import (
    OBJECT_ID,
    SEQUENCE,
    SET,
    certificates,
    element,
    elements,
    from_validity,
    object_id,
)

#: Short names where RFC 2253 has one, else those of OpenSSL; other attributes have their number.
_NAMES = {
    "2.5.4.3": "CN",
    "2.5.4.4": "surname",
    "2.5.4.5": "serialNumber",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.12": "title",
    "2.5.4.13": "description",
    "2.5.4.15": "businessCategory",
    "2.5.4.17": "postalCode",
    "2.5.4.41": "name",
    "2.5.4.42": "givenName",
    "2.5.4.43": "initials",
    "2.5.4.44": "generationQualifier",
    "2.5.4.45": "x500UniqueIdentifier",
    "2.5.4.46": "dnQualifier",
    "2.5.4.65": "pseudonym",
    "2.5.4.97": "organizationIdentifier",
    "1.2.840.113549.1.9.1": "emailAddress",
    "1.2.840.113549.1.9.2": "unstructuredName",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
#: Text by the tag of its type: UTF8String, BMPString, UniversalString; all others have one byte per letter.
_ENCODINGS = {0x0C: "utf-8", 0x1E: "utf-16-be", 0x1C: "utf-32-be"}
_SPECIAL = re.compile(r'([,+"\\<>;])')


class UnreadableName(Exception):
    """The certificate was accepted, but its subject is not valid DER."""


@lru_cache(maxsize=1_000)
def name_of_pem(pem: bytes) -> str:
    """Of the first certificate. Cached, because gRPC shows the certificate with each call."""
    return name_of(next(certificates(pem), b""))


def name_of(der: bytes) -> str:
    """RFC 2253, as Java prints it: the last part first."""
    try:
        _, rest = element(from_validity(der), SEQUENCE)
        subject, _ = element(rest, SEQUENCE)
        return ",".join(reversed([_part(content) for tag, content in elements(subject) if tag == SET]))
    except (ValueError, IndexError, binascii.Error) as wrong:
        raise UnreadableName(f"The subject of the certificate cannot be read: {wrong}") from None


def _part(attributes: bytes) -> str:
    return "+".join(_attribute(content) for _, content in elements(attributes))


def _attribute(content: bytes) -> str:
    kind, rest = element(content, OBJECT_ID)
    value, _ = element(rest, rest[0])
    number = object_id(kind)
    return f"{_NAMES.get(number, number)}={_escaped(value.decode(_ENCODINGS.get(rest[0], 'latin-1')))}"


def _escaped(value: str) -> str:
    value = _SPECIAL.sub(r"\\\1", value)
    if value[:1] in ("#", " "):
        value = "\\" + value
    return value[:-1] + "\\ " if value.endswith(" ") and len(value) > 1 else value
