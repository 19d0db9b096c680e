"""The login of one Kafka connection: which requests it may send when, and who it is. [S]

Until the login is done, only ApiVersions, SaslHandshake and SaslAuthenticate are handled, in this order, a few small
ones, within a few seconds; anything else closes the connection. With `connections.max.reauth.ms` the client logs in
again on the same connection, as the same user, or is disconnected with the first request that comes too late. The same
holds when its bearer token expires.

The connection asks `admit` for each request; the handlers of the two SASL APIs call the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from ottla_broker.authn.bearer import parse_oauthbearer
from ottla_broker.authn.failure import LoginFailed
from ottla_broker.authn.logins import Logins, TooManyLogins
from ottla_broker.authn.plain import parse_plain
from ottla_broker.authn.scram import ScramLogin
from ottla_broker.edge.kafka.request import Disconnect
from ottla_broker.edge.kafka.versions import API_VERSIONS_KEY
from ottla_broker.sasl_config import OAUTHBEARER, SaslConfig
from ottla_core.errors import IllegalSaslState, SaslAuthenticationFailed, UnsupportedSaslMechanism
from ottla_core.scram import MECHANISMS

_HANDSHAKE_KEY = 17
_AUTHENTICATE_KEY = 36
#: SCRAM needs five requests, of which ApiVersions may come twice.
_REQUESTS_MAX = 10
#: From the connection to the end of the login; clients need some round trips.
LOGIN_S = 10.0
#: As in Kafka: a client that logs in more often only costs.
_REAUTH_INTERVAL_S = 1.0


class Sasl(NamedTuple):
    """What all connections of a listener with logins share."""

    logins: Logins
    config: SaslConfig
    mechanisms: tuple[str, ...]
    listener: str


class Logged(Protocol):
    """The connection, as its login uses it."""

    def authenticated(self, principal: str) -> None: ...

    def drop(self, reason: str, detail: str) -> None: ...


class _State(Enum):
    START = "before SaslHandshake"
    MESSAGES = "during the login"
    DONE = "after the login"


_ALLOWED = {
    _State.START: (API_VERSIONS_KEY, _HANDSHAKE_KEY),
    _State.MESSAGES: (_AUTHENTICATE_KEY,),
}


class Answer(NamedTuple):
    token: bytes
    #: 0: the session does not end.
    lifetime_ms: int = 0


class SaslGate:
    def __init__(
        self, sasl: Sasl, connection: Logged, now: Callable[[], float], peer: Callable[[], str]
    ) -> None:
        self._sasl = sasl
        self._connection = connection
        self._now = now
        self._peer = peer
        self._opened_at = now()
        self._state = _State.START
        self._requests = 0
        self._mechanism = ""
        self._scram: ScramLogin | None = None
        self._principal = ""
        self._done_at = 0.0
        self._expires_at = float("inf")

    # ------------------------------------------------------------------ the connection

    def admit(self, key: int, name: str) -> None:
        """Disconnect if a request is not allowed now."""
        if self._state is _State.DONE:
            if key != _HANDSHAKE_KEY and self._now() >= self._expires_at:
                self._sasl.logins.expired()
                raise Disconnect("the client did not log in again before its session ended")
            return
        self._requests += 1
        if key not in _ALLOWED[self._state]:
            raise Disconnect(f"{name} {self._state.value}: the client has to log in first")
        if self._requests > _REQUESTS_MAX:
            raise Disconnect("too many requests before the end of the login")

    def is_late(self) -> bool:
        """Whether a client that is not logged in has had enough time."""
        return self._state is not _State.DONE and self._now() - self._opened_at > LOGIN_S

    # ------------------------------------------------------------------ the handlers

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return self._sasl.mechanisms

    def handshake(self, mechanism: str) -> tuple[str, ...]:
        """The enabled mechanisms. IllegalSaslState or UnsupportedSaslMechanism if the login cannot begin."""
        if self._state is _State.DONE:
            if self._expires_at == float("inf") or self._now() - self._done_at < _REAUTH_INTERVAL_S:
                raise IllegalSaslState("The connection is logged in, and need not log in again yet.")
            self._opened_at, self._requests = self._now(), 0
        enabled = self._sasl.mechanisms
        if mechanism not in enabled or (self._mechanism and mechanism != self._mechanism):
            self._connection.drop("refused", f"SASL mechanism {mechanism[:40]!r} is not enabled")
            raise UnsupportedSaslMechanism
        self._mechanism = mechanism
        self._scram = self._sasl.logins.scram(MECHANISMS[mechanism]) if mechanism in MECHANISMS else None
        self._state = _State.MESSAGES
        return enabled

    async def authenticate(self, token: bytes) -> Answer:
        """The answer to one message. IllegalSaslState or SaslAuthenticationFailed if it is refused."""
        if self._state is not _State.MESSAGES:
            raise IllegalSaslState("SaslAuthenticate needs SaslHandshake before it.")
        logins = self._sasl.logins
        lifetime_ms, listener = 0, self._sasl.listener
        address = self._peer().rpartition(":")[0]
        try:
            if self._mechanism == OAUTHBEARER:
                user, lifetime_ms = await logins.check_token(parse_oauthbearer(token))
                answer = b""
            elif self._scram is None:
                given = parse_plain(token)
                user, answer = given.user, b""
                await logins.check(given, address)
            else:
                answer = self._scram.step(token)
                if not self._scram.is_done:
                    return Answer(answer)
                user = self._scram.user
            principal = f"User:{user}"
            if self._principal and principal != self._principal:
                raise LoginFailed(f"the connection belongs to {self._principal}", user)
        except LoginFailed as failure:
            await logins.failed(
                failure, mechanism=self._mechanism, listener=listener, peer=self._peer(), address=address
            )
            # Logged above, at a bounded rate.
            self._connection.drop("failed login", "")
            # The sentence of Kafka, whatever the reason; what is wrong with a token is no secret.
            raise SaslAuthenticationFailed(
                "Authentication failed during authentication due to invalid credentials with SASL mechanism "
                f"{self._mechanism}{': ' if failure.client_reason else ''}{failure.client_reason}"
            ) from None
        except TooManyLogins as busy:
            raise Disconnect(str(busy)) from None
        logins.succeeded(user, mechanism=self._mechanism, listener=listener, address=address)
        return Answer(answer, self._enter(principal, lifetime_ms))

    def _enter(self, principal: str, token_ms: int) -> int:
        """The login is done; return how long it lasts: as long as its token, and not beyond the setting."""
        limits = [limit for limit in (token_ms, self._sasl.config.reauth_max_ms) if limit]
        lifetime_ms = min(limits, default=0)
        self._done_at = self._now()
        if lifetime_ms:
            self._expires_at = self._done_at + lifetime_ms / 1000
        self._state, self._scram = _State.DONE, None
        if not self._principal:
            self._principal = principal
            self._connection.authenticated(principal)
        return lifetime_ms
