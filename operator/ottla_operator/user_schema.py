"""The schema of a User. [P]"""

from __future__ import annotations

from ottla_operator.schemas import (
    Schema,
    choice,
    cluster_reference,
    conditions,
    listed,
    long,
    text,
    thing,
    whole,
)
from ottla_operator.user_spec import (
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    SCRAM,
    TLS,
    USER_NAME,
)


def user_spec() -> Schema:
    acl = thing(
        "ACLs for one resource, with Kafka's names.",
        {
            "resourceType": choice("Type of the resource.", RESOURCE_TYPES),
            "name": text(
                "Name of the resource, or a prefix; * for all. Not needed for CLUSTER.", maxLength=249
            ),
            "patternType": choice(
                "PREFIXED: all whose names begin with it.", PATTERN_TYPES, default="LITERAL"
            ),
            "operations": listed(
                "Operations; READ and WRITE imply DESCRIBE.",
                choice("One operation.", OPERATIONS),
                16,
                minItems=1,
            ),
            "permission": choice("DENY beats every ALLOW.", PERMISSIONS, default="ALLOW"),
            "host": text("Address of the client; * for all.", default="*", minLength=1, maxLength=253),
        },
        required=("resourceType", "operations"),
        rules=[("self.resourceType == 'CLUSTER' || has(self.name)", "name is needed; * for all")],
    )
    return thing(
        "A user of a cluster: credentials in a Secret, ACLs, quotas.",
        {
            "cluster": cluster_reference(),
            "userName": text(
                "Name of the user, if it is not a valid resource name. Default: the resource's name.",
                pattern=USER_NAME,
                maxLength=64,
            ),
            "authentication": thing(
                "How the user logs in.",
                {
                    "type": choice(
                        "scram-sha-512: a password, generated unless the Secret has one; tls: a client certificate "
                        "of the Cluster's CA for clients.",
                        (SCRAM, TLS),
                        default=SCRAM,
                    )
                },
                default={},
            ),
            "secretName": text(
                "The Secret with the credentials. Default: the resource's name with -credentials.",
                minLength=1,
                maxLength=253,
            ),
            "acls": listed(
                "All ACLs of the user; others are removed. Without the field, the operator leaves them alone.", acl, 500
            ),
            "quotas": {
                "type": "object",
                "description": "All quotas of the user, with Kafka's names, such as producer_byte_rate; others are "
                "removed. Without the field, the operator leaves them alone.",
                "additionalProperties": {"type": "number", "minimum": 0},
                "maxProperties": 16,
            },
        },
        required=("cluster",),
        rules=[
            (
                "has(self.userName) == has(oldSelf.userName) && "
                "(!has(self.userName) || self.userName == oldSelf.userName)",
                "a user cannot be renamed",
            ),
        ],
    )  # fmt: skip


def user_status() -> Schema:
    return thing(
        "What the operator found on the brokers.",
        {
            "observedGeneration": long("Generation of the spec that this status describes.", 0),
            "conditions": conditions(),
            "userName": text("Name of the user on the brokers."),
            "principal": text("The principal in ACLs."),
            "secretName": text("The Secret with the credentials."),
            "secretVersion": text("Version of the Secret whose password is in force."),
            "aclCount": whole("Number of ACLs of the user.", 0),
        },
    )
