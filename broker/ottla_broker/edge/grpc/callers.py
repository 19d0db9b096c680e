"""From a gRPC call to its caller: once per stream, and once per unary call. [S]"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote

from ottla_broker.authn.failure import LoginFailed
from ottla_broker.caller import ANONYMOUS, Caller
from ottla_broker.certificate_subject import UnreadableName, name_of_pem
from ottla_core.errors import ClusterAuthorizationFailed, SaslAuthenticationFailed

S = TypeVar("S")

#: From the context of a call to the services, as its caller may use them.
Enter: TypeAlias = Callable[[Any], S]

#: Metadata key with which a client gives its client id.
CLIENT_ID_KEY = "ottla-client-id"
#: As in HTTP: `Basic <base64 of user:password>` or `Bearer <token>`.
AUTHORIZATION_KEY = "authorization"
#: A verified client certificate. gRPC also has its subject, in a form of its own.
_CERTIFICATE_KEY = "x509_pem_cert"
#: Longer client ids are cut: this one goes into quotas, metrics and logs.
_CLIENT_ID_CHARS_MAX = 256


class Principals(Protocol):
    """Rules for client certificates; see `principal_rules`."""

    def principal(self, name: str) -> str | None: ...


def caller_of(
    context: Any,
    listener: str,
    rules: Principals | None = None,
    *,
    user_of: Callable[[str], str] | None = None,
) -> Caller:
    """`rules` are those of a TLS listener. Raises if they have no principal for the client's certificate.

    With `user_of`, the call's authorization was checked before (`login_first`), and it names its user."""
    if user_of is not None:
        try:
            principal = f"User:{user_of(authorization_of(context))}"
        except LoginFailed as failed:
            raise SaslAuthenticationFailed(f"The login ended: {failed.reason}.") from None
    else:
        principal = ANONYMOUS if rules is None else _principal(context, rules)
    return Caller(principal, client_id_of(context), address_of(context.peer()), listener)


def _principal(context: Any, rules: Principals) -> str:
    given = context.auth_context().get(_CERTIFICATE_KEY)
    if not given:
        return ANONYMOUS
    try:
        name = name_of_pem(bytes(given[0]))
    except UnreadableName as unreadable:
        raise ClusterAuthorizationFailed(str(unreadable)) from None
    principal = rules.principal(name)
    if principal is None:
        raise ClusterAuthorizationFailed(f"No rule of ssl.principal.mapping.rules matches {name!r}.")
    return principal


def authorization_of(context: Any) -> str:
    """The header with user and password; empty if there is none."""
    for key, value in context.invocation_metadata() or ():
        if key == AUTHORIZATION_KEY:
            return str(value)
    return ""


def client_id_of(context: Any) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == CLIENT_ID_KEY:
            return str(value)[:_CLIENT_ID_CHARS_MAX]
    return ""


def address_of(peer: str) -> str:
    """`127.0.0.1` from gRPC's `ipv4:127.0.0.1:50000`, `::1` from `ipv6:%5B::1%5D:50000`."""
    address = peer.partition(":")[2].rpartition(":")[0]
    return unquote(address).strip("[]")
