"""Service for both edges: describes and changes the SCRAM credentials of users. [S]

A salted password that arrives is turned into keys here, and leaves this broker only as those.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ottla_broker.authn.scram import USER_CHARS_MAX
from ottla_broker.controller.commands.alter_scram_credentials import (
    AlterScramCredentials,
    SetCredential,
    UserChange,
)
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.requests import UserResult
from ottla_broker.service.controller_calls import ControllerCalls
from ottla_core.errors import (
    DuplicateResource,
    RequestError,
    ResourceNotFound,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
)
from ottla_core.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISMS_BY_NUMBER,
    SALT_BYTES_MAX,
    Mechanism,
    credential_of,
)

#: A hash, at most of SHA-512.
_SALTED_BYTES_MAX = 64


class Upsertion(NamedTuple):
    user: str
    #: Kafka's number of the mechanism.
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"<credential of {self.user!r}>"


class Deletion(NamedTuple):
    user: str
    mechanism: int


class UserCredentials(NamedTuple):
    user: str
    #: Mechanism and iterations of each credential.
    credentials: tuple[tuple[Mechanism, int], ...] = ()
    error: RequestError | None = None


class UserService:
    def __init__(self, metadata: Metadata, controller: ControllerCalls) -> None:
        self._metadata = metadata
        self._controller = controller

    def describe(self, users: Sequence[str] | None) -> list[UserCredentials]:
        """These users, or all that have credentials in the metadata store; never the credentials themselves."""
        found: dict[str, list[tuple[Mechanism, int]]] = {}
        by_name = {each.name: each for each in MECHANISMS_BY_NUMBER.values()}
        for id_, credential in self._metadata.image.scram_credentials.items():
            if id_.mechanism in by_name:
                found.setdefault(id_.user, []).append((by_name[id_.mechanism], credential.iterations))
        if not users:
            return [UserCredentials(user, tuple(sorted(some))) for user, some in sorted(found.items())]
        counts = Counter(users)
        return [self._described(user, count, found) for user, count in counts.items()]

    def _described(
        self, user: str, count: int, found: dict[str, list[tuple[Mechanism, int]]]
    ) -> UserCredentials:
        if count > 1:
            sentence = (
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            )
            return UserCredentials(user, error=DuplicateResource(sentence))
        if user not in found:
            # Kafka's sentence: kafka-configs recognises the error by its code.
            sentence = f"Attempt to describe a user credential that does not exist: {user}"
            return UserCredentials(user, error=ResourceNotFound(sentence))
        return UserCredentials(user, tuple(sorted(found[user])))

    async def alter(
        self, upsertions: Sequence[Upsertion], deletions: Sequence[Deletion], *, timeout_s: float
    ) -> list[UserResult]:
        """One result per user, in the order of their first mention. All changes of a user are made, or none."""
        changes: dict[str, UserChange] = {}
        refused: dict[str, RequestError] = {}
        counts = Counter(
            [(u.user, u.mechanism) for u in upsertions] + [(d.user, d.mechanism) for d in deletions]
        )
        wishes: list[Deletion | Upsertion] = [*deletions, *upsertions]
        for each in wishes:
            change = changes.setdefault(each.user, UserChange(each.user))
            try:
                if counts[each.user, each.mechanism] > 1:
                    raise DuplicateResource("A user credential cannot be altered twice in the same request")
                changes[each.user] = _with(change, each)
            except RequestError as error:
                refused.setdefault(each.user, error)
        wanted = tuple(change for user, change in changes.items() if user not in refused)
        made: dict[str, UserResult] = {}
        if wanted:
            results = await self._controller.execute(AlterScramCredentials(wanted), timeout_s=timeout_s)
            made = {result.user: result for result in results}
        return [made.get(user) or UserResult(user, refused.get(user)) for user in changes]


def _with(change: UserChange, each: Upsertion | Deletion) -> UserChange:
    mechanism = MECHANISMS_BY_NUMBER.get(each.mechanism)
    if mechanism is None:
        raise UnsupportedSaslMechanism("Unknown SCRAM mechanism")
    if not 0 < len(each.user) <= USER_CHARS_MAX:
        raise UnacceptableCredential(f"The name of a user has 1 to {USER_CHARS_MAX} characters.")
    if isinstance(each, Deletion):
        return UserChange(change.user, change.set, (*change.delete, mechanism.name))
    if not ITERATIONS_MIN <= each.iterations <= ITERATIONS_MAX:
        raise UnacceptableCredential(f"Iterations must be {ITERATIONS_MIN} to {ITERATIONS_MAX}.")
    if not 0 < len(each.salt) <= SALT_BYTES_MAX or not 0 < len(each.salted_password) <= _SALTED_BYTES_MAX:
        raise UnacceptableCredential("Salt or salted password is empty or too long.")
    made = credential_of(mechanism, each.salted_password, each.salt, each.iterations)
    texts = (b64encode(part).decode() for part in (made.salt, made.stored_key, made.server_key))
    salt, stored, server = texts
    new = SetCredential(mechanism.name, salt, each.iterations, stored, server)
    return UserChange(change.user, (*change.set, new), change.delete)
