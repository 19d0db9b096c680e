"""The keys that tokens are signed with: a JSON Web Key Set from a file or URL, cached and refreshed. [A]

Only one read is under way at a time, on another thread, and none begins within `_PAUSE_S` of the last: tokens with
unknown keys, which anybody can make up, cannot be turned into requests to the identity provider. If a refresh fails,
the keys that are known stay in use.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import structlog

from ottla_broker.authn.failure import LoginFailed
from ottla_core.ports.clock import Clock
from ottla_core.ports.offload import Offload

_log = structlog.get_logger("ottla.logins")

_TIMEOUT_S = 5.0
#: Providers have a handful of keys.
_BYTES_MAX = 256 * 1024
_KEYS_MAX = 100
#: A key that a provider has just begun to sign with is found after at most this.
_PAUSE_S = 5.0


def read(url: str) -> bytes:
    """Blocks. OSError if it cannot be read."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        with open(url2pathname(parts.path), "rb") as file:
            content = file.read(_BYTES_MAX + 1)
    else:
        request = urllib.request.Request(url, headers={"Accept": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                content = answer.read(_BYTES_MAX + 1)
        except urllib.error.HTTPError as refused:
            refused.close()
            raise OSError(f"it answered {refused.code}") from None
    if len(content) > _BYTES_MAX:
        raise OSError(f"it has more than {_BYTES_MAX} bytes")
    return bytes(content)


def parse(content: bytes) -> list[dict[str, Any]]:
    """The keys for signatures. ValueError if it is not a key set."""
    tree = json.loads(content)
    keys = tree.get("keys") if isinstance(tree, dict) else None
    if not isinstance(keys, list):
        raise ValueError("it is not a JSON Web Key Set")
    return [key for key in keys[:_KEYS_MAX] if isinstance(key, dict) and key.get("use", "sig") == "sig"]


class Jwks:
    def __init__(
        self,
        url: str,
        clock: Clock,
        offload: Offload,
        *,
        refresh_s: float,
        read: Callable[[str], bytes] = read,
    ) -> None:
        #: Called when the keys are others than before.
        self.on_change: Callable[[], None] = lambda: None
        self._url = url
        self._clock = clock
        self._offload = offload
        self._refresh_s = refresh_s
        self._read = read
        self._keys: list[dict[str, Any]] | None = None
        self._due = self._free_at = float("-inf")
        self._loading: asyncio.Future[None] | None = None
        self._trouble = ""

    async def find(self, key_id: str | None) -> dict[str, Any]:
        """The key with this id; without an id the only one. LoginFailed if there is none."""
        now = self._clock.monotonic()
        if self._keys is None:
            await self._load()
        elif now >= self._due:
            self._begin()  # Meanwhile the known keys count.
        found = self._known(key_id)
        if found is None:
            await self._load()
            found = self._known(key_id)
        if found is not None:
            return found
        if self._keys is None:
            raise LoginFailed(
                f"the keys at {self._url} cannot be read: {self._trouble}",
                client_reason="the broker cannot read the keys of the identity provider; its log has the reason",
            )
        reason = "the token names no key" if key_id is None else f"no key has the id {key_id[:100]!r}"
        raise LoginFailed(reason, client_reason=reason)

    def _known(self, key_id: str | None) -> dict[str, Any] | None:
        keys = self._keys or []
        if key_id is None:
            return keys[0] if len(keys) == 1 else None
        return next((key for key in keys if key.get("kid") == key_id), None)

    def _begin(self) -> asyncio.Future[None] | None:
        """The read that is under way or begins now; None if it is too early for another one."""
        if self._loading is None and self._clock.monotonic() >= self._free_at:
            self._free_at = self._clock.monotonic() + _PAUSE_S
            self._loading = asyncio.ensure_future(self._refresh())
        return self._loading

    async def _load(self) -> None:
        loading = self._begin()
        if loading is not None:
            await asyncio.wait((loading,))

    async def _refresh(self) -> None:
        try:
            keys = parse(await self._offload.run(lambda: self._read(self._url)))
            if keys != self._keys:
                self._keys = keys
                self.on_change()
                _log.info("keys for tokens loaded", url=self._url, keys=len(keys))
            self._due = self._clock.monotonic() + self._refresh_s
        except (OSError, ValueError) as failed:
            # A URLError is an OSError; the address may have no user and password (see sasl_config).
            self._trouble = str(failed)
            _log.warning("keys for tokens cannot be read", url=self._url, reason=self._trouble)
        finally:
            self._loading = None
