"""Administration of users: their SCRAM credentials. Passwords are salted here, and do not leave this process. [S]

`Admin` has the public methods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ottla_client.connection import exception_of
from ottla_core.pb import broker_pb2 as pb

Call: TypeAlias = Callable[[str, Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class UserDescription:
    name: str
    #: Iterations by mechanism.
    mechanisms: Mapping[str, int]


class UserAdmin:
    def __init__(self, ask: Call, change: Call, timeout_ms: int) -> None:
        self._ask = ask
        self._change = change
        self._timeout_ms = timeout_ms

    async def describe(self, users: Sequence[str]) -> list[UserDescription]:
        request = pb.DescribeUserScramCredentialsRequest(users=users)
        answer = await self._ask("DescribeUserScramCredentials", request)
        for each in answer.users:
            if each.HasField("error"):
                raise exception_of(each.error)
        return [
            UserDescription(each.user, {one.mechanism: one.iterations for one in each.credentials})
            for each in answer.users
        ]

    async def set_password(
        self, user: str, password: str, mechanisms: Iterable[str], iterations: int
    ) -> None:
        # Only where it is used: every command line loads this module.
        import secrets

        from ottla_core.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS, SALT_BYTES, salted_password

        if not password:
            raise ValueError("The password is empty.")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ValueError(f"iterations={iterations}: choose {ITERATIONS_MIN} to {ITERATIONS_MAX}.")
        request = pb.AlterUserScramCredentialsRequest(timeout_ms=self._timeout_ms)
        for name in mechanisms:
            if name not in MECHANISMS:
                raise ValueError(f"{name!r} is not a mechanism; choose {' or '.join(MECHANISMS)}.")
            salt = secrets.token_bytes(SALT_BYTES)
            salted = salted_password(MECHANISMS[name], password, salt, iterations)
            request.upsertions.add(
                user=user, mechanism=name, iterations=iterations, salt=salt, salted_password=salted
            )
        await self._alter(request)

    async def delete(self, user: str, mechanisms: Iterable[str]) -> None:
        request = pb.AlterUserScramCredentialsRequest(timeout_ms=self._timeout_ms)
        for name in mechanisms:
            request.deletions.add(user=user, mechanism=name)
        await self._alter(request)

    async def _alter(self, request: pb.AlterUserScramCredentialsRequest) -> None:
        answer = await self._change("AlterUserScramCredentials", request)
        for each in answer.users:
            if each.HasField("error"):
                raise exception_of(each.error)
