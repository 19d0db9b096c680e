"""DescribeAcls (29), versions 1-3: the ACLs that a filter matches, by resource. Used by `kafka-acls --list`. [S]

Versions: 2 is flexible; 3 adds users as resources.
"""

from __future__ import annotations

from itertools import groupby

from ottla_broker.acl_filter import AclFilter
from ottla_broker.edge.kafka.request import Context, Reply, Request, error_fields
from ottla_core.errors import RequestError


def handle(context: Context, request: Request) -> Reply:
    fields = request.fields()
    wanted = AclFilter(
        fields["resource_type_filter"],
        fields["pattern_type_filter"],
        fields["resource_name_filter"],
        fields["principal_filter"],
        fields["host_filter"],
        fields["operation"],
        fields["permission_type"],
    )
    try:
        found = context.services.acls.describe(wanted)
    except RequestError as error:
        context.failed(error)
        return error_fields(error) | {"resources": []}
    return error_fields(None) | {
        "resources": [
            {
                "resource_type": int(pattern.type),
                "resource_name": pattern.name,
                "pattern_type": int(pattern.pattern_type),
                "acls": [
                    {
                        "principal": entry.principal,
                        "host": entry.host,
                        "operation": int(entry.operation),
                        "permission_type": int(entry.permission),
                    }
                    for _, entry in same
                ],
            }
            for pattern, same in groupby(found, lambda each: each.pattern)
        ]
    }
