"""When the certificates of a PEM file expire. [P]"""

from __future__ import annotations

import binascii
from datetime import UTC, datetime

from ottla_broker.der import SEQUENCE, certificates, element, from_validity

_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18


def earliest_expiry_s(pem: bytes) -> float | None:
    """Seconds since 1970 at which the first of the certificates expires; None if none can be read."""
    try:
        return min((_not_after(der).timestamp() for der in certificates(pem)), default=None)
    except (ValueError, IndexError, binascii.Error):
        return None


def _not_after(der: bytes) -> datetime:
    validity, _ = element(from_validity(der), SEQUENCE)
    _, after = element(validity, validity[0])
    text, _ = element(after, after[0])
    form = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}.get(after[0])
    if form is None:
        raise ValueError("not a time")
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)
