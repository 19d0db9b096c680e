"""`ottla.v1.Admin`, third part: SCRAM credentials of users. Translates to the users service. [S]"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from ottla_broker.edge.grpc.native_service import NativeService
from ottla_broker.edge.grpc.refusal import guarded
from ottla_broker.edge.grpc.translation import error_message, timeout_s
from ottla_broker.requests import UserResult
from ottla_broker.service.users import Deletion, Upsertion, UserCredentials
from ottla_core.pb import broker_pb2 as pb
from ottla_core.scram import MECHANISMS

#: The method in the proto, the method here, and its request.
USERS_CALLS: dict[str, tuple[str, Any]] = {
    "DescribeUserScramCredentials": (
        "describe_user_scram_credentials",
        pb.DescribeUserScramCredentialsRequest,
    ),
    "AlterUserScramCredentials": ("alter_user_scram_credentials", pb.AlterUserScramCredentialsRequest),
}
#: Kafka's number of no mechanism, which the service refuses.
_UNKNOWN = 0


class Users(Protocol):
    def describe(self, users: Sequence[str] | None) -> list[UserCredentials]: ...

    def alter(
        self, upsertions: Sequence[Upsertion], deletions: Sequence[Deletion], *, timeout_s: float
    ) -> Awaitable[list[UserResult]]: ...


class UsersServices(Protocol):
    """What this edge needs of the services object."""

    @property
    def users(self) -> Users: ...


class UsersService(NativeService[UsersServices]):
    @guarded
    async def describe_user_scram_credentials(
        self, request: pb.DescribeUserScramCredentialsRequest, context: Any
    ) -> pb.DescribeUserScramCredentialsResponse:
        found = self._enter(context).users.describe(list(request.users) or None)
        return pb.DescribeUserScramCredentialsResponse(
            users=[
                pb.UserScramCredentials(
                    user=each.user,
                    credentials=[
                        pb.ScramCredentialInfo(mechanism=mechanism.name, iterations=iterations)
                        for mechanism, iterations in each.credentials
                    ],
                    error=None if each.error is None else error_message(each.error),
                )
                for each in found
            ]
        )

    @guarded
    async def alter_user_scram_credentials(
        self, request: pb.AlterUserScramCredentialsRequest, context: Any
    ) -> pb.AlterUserScramCredentialsResponse:
        upsertions = [
            Upsertion(each.user, _number(each.mechanism), each.iterations, each.salt, each.salted_password)
            for each in request.upsertions
        ]
        deletions = [Deletion(each.user, _number(each.mechanism)) for each in request.deletions]
        users = self._enter(context).users
        results = await users.alter(upsertions, deletions, timeout_s=timeout_s(request.timeout_ms))
        return pb.AlterUserScramCredentialsResponse(
            users=[
                pb.UserOutcome(
                    user=each.user, error=None if each.error is None else error_message(each.error)
                )
                for each in results
            ]
        )


def _number(mechanism: str) -> int:
    found = MECHANISMS.get(mechanism)
    return _UNKNOWN if found is None else found.number
