"""Bearer tokens for the headers of calls: from a file, a token endpoint, or a function; renewed before they expire. [A]

The first token is waited for, by the call that needs it. A later one is fetched on a thread when four fifths of the
token's lifetime have passed; calls go on with the old one meanwhile. Secrets and tokens are part of no error.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ottla_core.errors import SaslAuthenticationFailed

if TYPE_CHECKING:
    from ottla_client.security import Security

_TIMEOUT_S = 5.0
_BYTES_MAX = 64 * 1024
#: For tokens that do not say when they expire, and the bounds for those that do.
_LIFETIME_S = 60.0
_LIFETIME_S_MIN, _LIFETIME_S_MAX = 1.0, 86_400.0
_RENEW_AFTER = 0.8
#: After a renewal that failed.
_PAUSE_S = 5.0


class _Token(NamedTuple):
    text: str
    #: Seconds from now on.
    lifetime_s: float


class TokenSource:
    def __init__(self, fetch: Callable[[], _Token], *, now: Callable[[], float] = time.monotonic) -> None:
        """`fetch` blocks; OSError or ValueError, with a sentence, if there is no token."""
        self._fetch = fetch
        self._now = now
        self._lock = threading.Lock()
        self._text = ""
        self._renew_at = self._expires_at = float("-inf")
        self._is_renewing = False

    def token(self) -> str:
        """A token that is valid, as far as it is known. SaslAuthenticationFailed if there is none."""
        if self._now() >= self._expires_at:
            with self._lock:
                if self._now() >= self._expires_at:
                    self._renew()
        elif self._now() >= self._renew_at and not self._is_renewing:
            self._is_renewing = True
            threading.Thread(target=self._renew_later, name="ottla-token", daemon=True).start()
        return self._text

    def _renew_later(self) -> None:
        try:
            self._renew()
        except SaslAuthenticationFailed:
            # The old one is still valid; when it is not, a call says what is wrong.
            self._renew_at = self._now() + _PAUSE_S
        finally:
            self._is_renewing = False

    def _renew(self) -> None:
        try:
            found = self._fetch()
        except (OSError, ValueError) as failed:
            raise SaslAuthenticationFailed(f"There is no token for the login: {failed}") from None
        now = self._now()
        self._text = found.text
        self._renew_at = now + found.lifetime_s * _RENEW_AFTER
        self._expires_at = now + found.lifetime_s


@lru_cache(maxsize=64)
def source_of(security: Security) -> TokenSource:
    """One for all clients of this process with the same options."""
    provider, path = security.token_provider, security.sasl_oauthbearer_token_file
    if provider is not None:
        return TokenSource(lambda: _from_text(provider(), "The token provider returned no token."))
    if path is not None:
        return TokenSource(lambda: _from_file(path))
    return TokenSource(lambda: _from_endpoint(security))


def _from_text(text: str, otherwise: str) -> _Token:
    text = text.strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(otherwise)
    return _Token(text, _lifetime_s(text))


def _from_file(path: str) -> _Token:
    option = f"sasl.oauthbearer.token.file={path}"
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(_BYTES_MAX)
    except OSError as failed:
        raise ValueError(f"{option} cannot be read: {failed.strerror or failed}.") from None
    found = _from_text(text, f"{option} has no token.")
    # The file is replaced while its token is still valid, as Kubernetes does.
    return _Token(found.text, min(found.lifetime_s, _LIFETIME_S))


def _from_endpoint(security: Security) -> _Token:
    """OAuth's grant of client credentials (RFC 6749, 4.4)."""
    url = security.sasl_oauthbearer_token_endpoint_url or ""
    form = {"grant_type": "client_credentials"}
    if security.sasl_oauthbearer_scope:
        form["scope"] = security.sasl_oauthbearer_scope
    quoted = (
        urllib.parse.quote(each or "", safe="")
        for each in (security.sasl_oauthbearer_client_id, security.sasl_oauthbearer_client_secret)
    )
    basic = base64.b64encode(":".join(quoted).encode()).decode()
    request = urllib.request.Request(
        url,
        urllib.parse.urlencode(form).encode(),
        {"Authorization": f"Basic {basic}", "Accept": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            tree = json.loads(answer.read(_BYTES_MAX))
        text, lifetime = tree["access_token"], tree.get("expires_in")
    except urllib.error.HTTPError as refused:
        refused.close()
        raise ValueError(
            f"{url} answered {refused.code}; check sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret."
        ) from None
    except OSError as failed:
        raise ValueError(
            f"{url} cannot be reached: {getattr(failed, 'reason', failed)}; check "
            "sasl.oauthbearer.token.endpoint.url."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{url} did not answer with an access_token.") from None
    found = _from_text(str(text), f"{url} did not answer with an access_token.")
    return _Token(
        found.text, _bounded(float(lifetime)) if isinstance(lifetime, int | float) else found.lifetime_s
    )


def _lifetime_s(token: str) -> float:
    """By the claim `exp` of a JSON Web Token, which is not checked here."""
    parts = token.split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return _bounded(float(claims["exp"]) - time.time())
    except (IndexError, KeyError, TypeError, ValueError):
        return _LIFETIME_S


def _bounded(seconds: float) -> float:
    return min(max(seconds, _LIFETIME_S_MIN), _LIFETIME_S_MAX)
