"""Typed spec of a User. [P]"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ottla_operator.access_spec import OPERATOR_USER
from ottla_operator.specs import ClusterRef, InvalidSpec

SCRAM, TLS = "scram-sha-512", "tls"
RESOURCE_TYPES = ("TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "USER")
PATTERN_TYPES = ("LITERAL", "PREFIXED")
PERMISSIONS = ("ALLOW", "DENY")
OPERATIONS = (
    "ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS",
    "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "CREATE_TOKENS", "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT",
)  # fmt: skip
#: Kafka's name of the only resource of type CLUSTER.
CLUSTER_RESOURCE = "kafka-cluster"
#: Names that are the same as a user, in a certificate and in a principal.
USER_NAME = r"^[a-zA-Z0-9._-]{1,64}$"
_USER_NAME = re.compile(USER_NAME)


@dataclass(frozen=True, slots=True, order=True)
class AclRule:
    resource_type: str
    name: str
    operation: str
    pattern_type: str = "LITERAL"
    permission: str = "ALLOW"
    host: str = "*"


@dataclass(frozen=True, slots=True)
class UserSpec:
    cluster: ClusterRef
    user: str
    authentication: str = SCRAM
    #: The Secret with the credentials, in the namespace of the resource.
    secret: str = ""
    #: None: the operator leaves the ACLs of the user alone.
    acls: frozenset[AclRule] | None = None
    #: None: the operator leaves the quotas of the user alone.
    quotas: Mapping[str, float] | None = None

    @property
    def principal(self) -> str:
        return f"User:{self.user}"

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> UserSpec:
        spec, name = body.get("spec") or {}, body["metadata"]["name"]
        user = spec.get("userName") or name
        if not _USER_NAME.fullmatch(user):
            raise InvalidSpec(f"{user!r} is not a user name; use up to 64 of a-z A-Z 0-9 . _ -")
        if user == OPERATOR_USER:
            raise InvalidSpec(f"{user} is the operator's own user; choose another name.")
        acls, quotas = spec.get("acls"), spec.get("quotas")
        return cls(
            ClusterRef.of(spec),
            user,
            (spec.get("authentication") or {}).get("type", SCRAM),
            spec.get("secretName") or f"{name}-credentials",
            None if acls is None else frozenset(rule for row in acls for rule in _rules(row)),
            None if quotas is None else {name: float(value) for name, value in quotas.items()},
        )


def _rules(row: Mapping[str, Any]) -> list[AclRule]:
    kind = row["resourceType"]
    name = row.get("name") or (CLUSTER_RESOURCE if kind == "CLUSTER" else "")
    if not name:
        raise InvalidSpec(f"An ACL for the resource type {kind} needs a name; * for all.")
    return [
        AclRule(
            kind,
            name,
            operation,
            row.get("patternType", "LITERAL"),
            row.get("permission", "ALLOW"),
            row.get("host", "*"),
        )
        for operation in row["operations"]
    ]
