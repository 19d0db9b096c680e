"""DescribeUserScramCredentials (50), version 0: mechanisms and iterations of users, never their keys. [S]"""

from __future__ import annotations

from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request, error_fields


def handle(context: Context, request: Request) -> Reply:
    users = request.fields()["users"]
    names = [each["name"] for each in users] if users else None
    results = [
        {
            "user": each.user,
            **admin.outcome(context, each.error),
            "credential_infos": [
                {"mechanism": mechanism.number, "iterations": iterations}
                for mechanism, iterations in each.credentials
            ],
        }
        for each in context.services.users.describe(names)
    ]
    return error_fields(None) | {"results": results}
