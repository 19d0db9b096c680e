"""When a certificate is made or renewed, and who may sign it: decisions only. [P]

A CA is renewed long before it ends. Both the old and the new one are trusted from then on, and certificates are signed
by the new one once everybody had the time to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_DAY_S = 86_400.0
CA_DAYS, LEAF_DAYS = 3650, 365
#: Part of a certificate's life that is left when it is renewed.
_RENEW_AT = 1 / 3
#: Pods see a changed Secret after a minute or two, clients that copy the CA much later.
_SPREAD_S = 7 * _DAY_S


@dataclass(frozen=True, slots=True)
class Held:
    """A certificate as it is in a Secret. Times in seconds since 1970."""

    not_before_s: float
    not_after_s: float
    #: Of the key that signed it, and of its own.
    authority: str
    key: str
    common_name: str
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    common_name: str
    hosts: tuple[str, ...] = ()


def why_new_ca(held: Held | None, now_s: float) -> str | None:
    """Why a CA has to be made; None to keep it."""
    if held is None:
        return "There is none."
    return _why_old(held, now_s)


def replaces(held: Held, now_s: float) -> bool:
    """Whether certificates of the CA before this one are replaced now."""
    return now_s >= held.not_before_s + _SPREAD_S


def why_renew(held: Held | None, wanted: Wanted, authorities: Sequence[str], now_s: float) -> str | None:
    """Why a certificate has to be made; `authorities` are the keys whose signature is fine."""
    if held is None:
        return "There is none."
    if held.authority not in authorities:
        return "Its CA was replaced."
    if held.common_name != wanted.common_name or not set(wanted.hosts) <= set(held.hosts):
        return "Its names changed."
    return _why_old(held, now_s)


def _why_old(held: Held, now_s: float) -> str | None:
    left = held.not_after_s - now_s
    if left > _RENEW_AT * (held.not_after_s - held.not_before_s):
        return None
    return f"It ends in {max(0, int(left / _DAY_S))} days."
