"""Sets and deletes SCRAM credentials of users; each user's changes are made together. [P]"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass

from ottla_broker.controller.command import Command, Tools
from ottla_broker.controller.planner import Plan, Stage
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.sections.scram_credentials import SCRAM_CREDENTIALS, CredentialId
from ottla_broker.requests import UserResult
from ottla_core.errors import PolicyViolation, RequestError, ResourceNotFound
from ottla_core.ports.store import Branch, Delete, Put
from ottla_core.scram import Credential

#: Every broker keeps all of them in memory.
CREDENTIALS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class SetCredential:
    """Keys only: the salted password does not leave the broker that received it. Bytes are base64."""

    mechanism: str
    salt: str
    iterations: int
    stored_key: str
    server_key: str

    @property
    def credential(self) -> Credential:
        salt, stored, server = (b64decode(each) for each in (self.salt, self.stored_key, self.server_key))
        return Credential(salt, self.iterations, stored, server)


@dataclass(frozen=True, slots=True)
class UserChange:
    user: str
    set: tuple[SetCredential, ...] = ()
    #: Mechanisms.
    delete: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterScramCredentials(Command[list[UserResult]]):
    users: tuple[UserChange, ...]

    result_type = list[UserResult]

    def changes(self, image: ClusterImage, tools: Tools) -> Sequence[_UserPlan]:
        return [_UserPlan(each) for each in self.users]

    def answer(self, results: list[UserResult]) -> list[UserResult]:
        return results

    def after_retry(
        self, result: list[UserResult], before: ClusterImage, now: ClusterImage
    ) -> list[UserResult]:
        deleted = {each.user: each.delete for each in self.users}
        return [
            each._replace(error=None)
            if isinstance(each.error, ResourceNotFound)
            and all(CredentialId(name, each.user) in before.scram_credentials for name in deleted[each.user])
            else each
            for each in result
        ]


@dataclass(slots=True)
class _UserPlan:
    change: UserChange
    has_begun: bool = False

    def plan(self, image: ClusterImage) -> Plan:
        found, user = image.scram_credentials, self.change.user
        doomed = [CredentialId(name, user) for name in self.change.delete]
        if not self.has_begun and any(each not in found for each in doomed):
            raise ResourceNotFound(f"User {user!r} has no such credential.")
        wanted = {CredentialId(each.mechanism, user): each.credential for each in self.change.set}
        more = sum(each not in found for each in wanted)
        if more and len(found) + more > CREDENTIALS_MAX:
            raise PolicyViolation(f"There are {CREDENTIALS_MAX} credentials already; delete some.")
        self.has_begun = True
        key, encode = SCRAM_CREDENTIALS.key, SCRAM_CREDENTIALS.encode
        puts = [Put(key(id_), encode(each)) for id_, each in wanted.items() if found.get(id_) != each]
        deletes = [Delete(key(id_)) for id_ in doomed if id_ in found]
        # Nothing is compared: see `set_key`.
        return Plan((Stage((Branch((), (*puts, *deletes)),)),)) if puts or deletes else Plan()

    def result(self, error: RequestError | None) -> UserResult:
        return UserResult(self.change.user, error)


COMMAND = AlterScramCredentials
