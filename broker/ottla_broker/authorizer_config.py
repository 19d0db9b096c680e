"""Settings of the authoriser: a part of `config.py`, which has the others. [P]"""

from __future__ import annotations

from dataclasses import dataclass

from ottla_broker.setting import BOOLEAN, Kind, choice, optional, setting

#: Kafka's only authoriser, by its class name; its rules are those of `authorizer.py`.
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _principals(text: str) -> frozenset[str]:
    found = frozenset(part.strip() for part in text.split(";") if part.strip())
    for each in found:
        kind, _, name = each.partition(":")
        if not kind or not name:
            raise ValueError
    return found


@dataclass(frozen=True)
class AuthorizerConfig:
    """Authorisation by ACLs, with Kafka's names; off unless `authorizer.class.name` is set."""

    class_name: str | None = setting(
        "authorizer.class.name",
        "",
        optional(choice(STANDARD)),
        "Authorise requests by ACLs. Empty: every client may do everything.",
    )
    super_users: frozenset[str] = setting(
        "super.users",
        "",
        Kind(
            "string",
            "principals separated by semicolons, like User:admin;User:operator",
            _principals,
            may_be_empty=True,
        ),
        "Principals that may do everything, whatever the ACLs say.",
    )
    allow_if_no_acl: bool = setting(
        "allow.everyone.if.no.acl.found",
        "false",
        BOOLEAN,
        "Whether everybody may use a resource for which there is no ACL at all.",
    )
    audit_level: str = setting(
        "audit.log.level",
        "info",
        choice("debug", "info", "off"),
        "info: denials, administrative changes and logins; debug: also the first allowed use by each client.",
    )
