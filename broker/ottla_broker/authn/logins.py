"""Checks logins for both edges: finds credentials, bounds the work, delays and counts what fails. [S]

Credentials come from the metadata image and, before that, from `sasl.users.file`. A password costs a PBKDF2 of some
milliseconds, so one thread of its own checks them, at most two at a time for one client address: a client that tries
passwords delays others by no more than that. A password that was right is remembered as a keyed digest, because gRPC
clients send it with each call.

Unknown users are checked against a decoy, whose salt is always the same: neither the answer nor its time tells that
the user does not exist.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import structlog

from ottla_broker.authn.bearer import Asked, is_bearer, parse_bearer
from ottla_broker.authn.failure import LoginFailed
from ottla_broker.authn.plain import UserPassword, parse_basic
from ottla_broker.authn.scram import ScramLogin
from ottla_broker.metadata.sections.scram_credentials import CredentialId
from ottla_broker.metrics import LoginsProbe
from ottla_core.ports.clock import Clock
from ottla_core.ports.offload import Offload
from ottla_core.scram import (
    ITERATIONS_MIN,
    MECHANISMS,
    SALT_BYTES,
    Credential,
    Mechanism,
    credential_of,
    is_password,
    salted_password,
)

if TYPE_CHECKING:
    from ottla_broker.authn.tokens import Tokens

_log = structlog.get_logger("ottla.logins")

#: Passwords of one address that are checked at a time, and that wait for it.
_CHECKED_PER_ADDRESS = 2
_WAITING_PER_ADDRESS = 256
#: Digests of 32 bytes.
_REMEMBERED_MAX = 10_000
#: Failed logins that are logged one by one in each period; the others are counted.
_LOGGED_MAX = 10
_LOG_PERIOD_S = 10.0


class TooManyLogins(Exception):
    """Not a failed login: the client may try again."""


class LoginAudit(Protocol):
    def logged_in(self, user: str, *, mechanism: str, address: str, listener: str) -> None: ...

    def login_failed(
        self, user: str, reason: str, *, mechanism: str, address: str, listener: str
    ) -> None: ...


class Logins:
    def __init__(
        self,
        stored: Callable[[], Mapping[CredentialId, Credential]],
        secret: bytes,
        clock: Clock,
        offload: Offload,
        probe: LoginsProbe,
        *,
        delay_s: float,
        nonce: Callable[[], str] = secrets.token_urlsafe,
        tokens: Tokens | None = None,
        audit: LoginAudit | None = None,
    ) -> None:
        """`secret` is the cluster's, so that all brokers have the same decoys; `offload` runs one call at a time.
        Without `tokens`, bearer tokens are refused."""
        self._tokens = tokens
        self._audit = audit
        self._stored = stored
        self._decoy_key = hmac.digest(secret, b"decoys of unknown users", "sha256")
        self._clock = clock
        self._offload = offload
        self._probe = probe
        self._delay_s = delay_s
        self._nonce = nonce
        self._fixed: dict[CredentialId, Credential] = {}
        self._lanes: dict[str, _Lane] = {}
        self._remember_key = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, None] = OrderedDict()
        self._log_until = float("-inf")
        self._unlogged = self._logged = 0

    async def add_users(self, passwords: Mapping[str, str]) -> None:
        """Users of `sasl.users.file`; they replace those of the same name in the metadata store."""

        def derive() -> dict[CredentialId, Credential]:
            made = {}
            for user, password in passwords.items():
                for mechanism in MECHANISMS.values():
                    salt = self._decoy(mechanism, user).salt
                    salted = salted_password(mechanism, password, salt, ITERATIONS_MIN)
                    made[CredentialId(mechanism.name, user)] = credential_of(
                        mechanism, salted, salt, ITERATIONS_MIN
                    )
            return made

        self._fixed |= await self._offload.run(derive)

    # ------------------------------------------------------------------ checks

    def scram(self, mechanism: Mechanism) -> ScramLogin:
        def find(user: str) -> Credential:
            return self._credential(mechanism, user) or self._decoy(mechanism, user)

        return ScramLogin(mechanism, find, self._nonce())

    def is_remembered(self, given: UserPassword) -> bool:
        """Whether this password of this user was checked before, and is still the user's."""
        mechanism, credential = self._of(given.user)
        digest = self._digest(given, mechanism, credential)
        if digest not in self._remembered:
            return False
        self._remembered.move_to_end(digest)
        return True

    async def check(self, given: UserPassword, address: str) -> None:
        """LoginFailed if it is not the user's password, TooManyLogins if too many of this address wait."""
        if self.is_remembered(given):
            return
        mechanism, credential = self._of(given.user)
        lane = self._lanes.setdefault(address, _Lane())
        if lane.waiting >= _WAITING_PER_ADDRESS:
            self._probe.refused += 1
            raise TooManyLogins("Too many logins of this address are waiting; try again.")
        lane.waiting += 1
        try:
            async with lane.turn:
                is_right = await self._offload.run(lambda: is_password(mechanism, credential, given.password))
        finally:
            lane.waiting -= 1
            if not lane.waiting:
                self._lanes.pop(address, None)
        if not is_right or self._credential(mechanism, given.user) is None:
            raise LoginFailed("unknown user or wrong password", given.user)
        self._remembered[self._digest(given, mechanism, credential)] = None
        while len(self._remembered) > _REMEMBERED_MAX:
            self._remembered.popitem(last=False)

    # ------------------------------------------------------------------ bearer tokens

    async def check_token(self, asked: Asked) -> tuple[str, int]:
        """The user, and for how many milliseconds the token is valid. LoginFailed if it is not."""
        if self._tokens is None:
            raise LoginFailed(
                "bearer tokens are not enabled", client_reason="the broker takes no bearer tokens"
            )
        found = await self._tokens.check(asked.token)
        if asked.user not in ("", found.user):
            raise LoginFailed("the authorization id is another user", found.user)
        return found.user, self._tokens.lifetime_ms(found)

    def is_remembered_token(self, token: str) -> bool:
        return self._tokens is not None and self._tokens.remembered(token) is not None

    def user_of(self, header: str) -> str:
        """Of an authorization that was checked before. LoginFailed if a token has expired since."""
        if not is_bearer(header):
            return parse_basic(header).user
        found = None if self._tokens is None else self._tokens.remembered(parse_bearer(header))
        if found is None:
            raise LoginFailed("the token has expired")
        return found.user

    # ------------------------------------------------------------------ credentials

    def _of(self, user: str) -> tuple[Mechanism, Credential]:
        for mechanism in MECHANISMS.values():
            credential = self._credential(mechanism, user)
            if credential is not None:
                return mechanism, credential
        mechanism = next(iter(MECHANISMS.values()))
        return mechanism, self._decoy(mechanism, user)

    def _credential(self, mechanism: Mechanism, user: str) -> Credential | None:
        id_ = CredentialId(mechanism.name, user)
        return self._fixed.get(id_) or self._stored().get(id_)

    def _decoy(self, mechanism: Mechanism, user: str) -> Credential:
        def derived(purpose: str) -> bytes:
            return hmac.digest(self._decoy_key, f"{purpose} {mechanism.name} {user}".encode(), mechanism.hash)

        # As long as the salts of Kafka's tools and ours, which also use the minimum of iterations by default.
        return Credential(derived("salt")[:SALT_BYTES], ITERATIONS_MIN, derived("stored"), derived("server"))

    def _digest(self, given: UserPassword, mechanism: Mechanism, credential: Credential) -> bytes:
        text = f"{mechanism.name}\0{given.user}\0{given.password}".encode()
        return hashlib.blake2b(credential.stored_key + text, key=self._remember_key, digest_size=32).digest()

    # ------------------------------------------------------------------ outcomes

    def succeeded(self, user: str, *, mechanism: str, listener: str, address: str) -> None:
        self._probe.logins.add(mechanism)
        if self._audit is not None:
            self._audit.logged_in(user, mechanism=mechanism, address=address, listener=listener)

    async def failed(
        self, failure: LoginFailed, *, mechanism: str, listener: str, peer: str, address: str
    ) -> None:
        """Count and log a failed login; returns after the delay that its answer should have."""
        self._probe.failed.add(mechanism)
        if self._audit is not None:
            self._audit.login_failed(
                failure.user, failure.reason, mechanism=mechanism, address=address, listener=listener
            )
        now = self._clock.monotonic()
        if now >= self._log_until:
            if self._unlogged:
                _log.warning("more logins failed", count=self._unlogged)
            self._log_until, self._logged, self._unlogged = now + _LOG_PERIOD_S, 0, 0
        if self._logged < _LOGGED_MAX:
            self._logged += 1
            _log.warning(
                "login failed",
                reason=failure.reason,
                user=failure.user,
                mechanism=mechanism,
                listener=listener,
                peer=peer,
            )
        else:
            self._unlogged += 1
        await self._clock.sleep(self._delay_s)

    def expired(self) -> None:
        self._probe.expired += 1


class _Lane:
    """The logins of one address."""

    __slots__ = ("turn", "waiting")

    def __init__(self) -> None:
        self.turn = asyncio.Semaphore(_CHECKED_PER_ADDRESS)
        self.waiting = 0
