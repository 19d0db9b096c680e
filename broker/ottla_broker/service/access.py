"""What one caller may do: decisions of the authoriser, cached per caller, and reported to the audit log. [S]

`guarded/` asks it in front of every service, and handlers that answer from the cluster image ask it themselves. A
decision is kept until the ACLs change; what an append or a fetch costs more is one look-up in a set.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol
from weakref import WeakSet

from ottla_broker.acl import CLUSTER_NAME, EVERY_OPERATION, SUPPORTED, Operation, ResourceType
from ottla_broker.authorizer import Authorizer, AuthorizerSettings
from ottla_broker.caller import Caller
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.service.audit import Audit
from ottla_core.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    RequestError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID

#: Decisions kept per caller beside two for each topic that exists; a client that names more has them decided again.
_KEPT_MAX = 4_096
#: Callers whose decisions are kept: on gRPC each call has its own `Caller`.
_CALLERS_MAX = 1_000

_REFUSALS: dict[ResourceType, type[RequestError]] = {
    TOPIC: TopicAuthorizationFailed,
    GROUP: GroupAuthorizationFailed,
    TRANSACTIONAL_ID: TransactionalIdAuthorizationFailed,
}
_WORDS = {TOPIC: "topic", GROUP: "group", TRANSACTIONAL_ID: "transactional id"}


class Access(Protocol):
    """What guarded services and handlers ask. `may`, `may_by_cluster` and `check` are reported to the audit log,
    `allows` is not."""

    def may(self, operation: Operation, type_: ResourceType, name: str) -> bool: ...

    @property
    def writable(self) -> Container[str]:
        """Topics that the caller has written to and still may: a look-up for the hot path. Call `may_write` for one
        that is not in it."""

    @property
    def readable(self) -> Container[str]: ...

    def may_write(self, topic: str) -> bool: ...

    def may_read(self, topic: str) -> bool: ...

    def may_somewhere(self, operation: Operation, type_: ResourceType) -> bool:
        """On any resource of the type, existing or not."""

    def check(self, operation: Operation, type_: ResourceType, name: str) -> None:
        """Raises the refusal."""

    def check_cluster(self, operation: Operation) -> None: ...

    def refusal(self, operation: Operation, type_: ResourceType, name: str) -> RequestError: ...

    def may_by_cluster(self, operation: Operation, type_: ResourceType, name: str) -> bool:
        """The right on the cluster or on the resource. Reported as a use of the resource, because that is what the
        caller acts on."""

    def allows(self, operation: Operation, type_: ResourceType, name: str) -> bool:
        """For lists, which leave out what the caller may not see."""

    def operations(self, type_: ResourceType, name: str) -> int:
        """The authorized operations of responses, as a bit field."""

    @property
    def rights(self) -> object:
        """Another object whenever ACLs have changed."""

    @property
    def is_full(self) -> bool:
        """Everything is allowed: nothing has to be left out of lists."""


class FullAccess:
    """Of the broker itself, of super users, and of everybody without an authoriser."""

    is_full = True
    rights: object = None
    writable: Container[str] = ()
    readable: Container[str] = ()

    def may(self, operation: Operation, type_: ResourceType, name: str) -> bool:
        return True

    def may_write(self, topic: str) -> bool:
        return True

    def may_read(self, topic: str) -> bool:
        return True

    def may_somewhere(self, operation: Operation, type_: ResourceType) -> bool:
        return True

    def check(self, operation: Operation, type_: ResourceType, name: str) -> None:
        return None

    def check_cluster(self, operation: Operation) -> None:
        return None

    def refusal(self, operation: Operation, type_: ResourceType, name: str) -> RequestError:
        return _REFUSALS.get(type_, ClusterAuthorizationFailed)()

    def may_by_cluster(self, operation: Operation, type_: ResourceType, name: str) -> bool:
        return True

    def allows(self, operation: Operation, type_: ResourceType, name: str) -> bool:
        return True

    def operations(self, type_: ResourceType, name: str) -> int:
        return SUPPORTED[type_]


FULL: Access = FullAccess()


class _Everything:
    def __contains__(self, topic: object) -> bool:
        return True


class AuditedAccess(FullAccess):
    """Of a caller without an authoriser: everything is allowed, and administration is reported to the audit log."""

    writable = readable = _Everything()

    def __init__(self, audit: Audit, caller: Caller) -> None:
        self._audit = audit
        self._caller = caller

    def may(self, operation: Operation, type_: ResourceType, name: str) -> bool:
        if self._audit.reports_each(operation):
            self._audit.note(self._caller, operation, type_, name, allowed=True)
        return True

    may_by_cluster = may

    def check(self, operation: Operation, type_: ResourceType, name: str) -> None:
        self.may(operation, type_, name)

    def check_cluster(self, operation: Operation) -> None:
        self.may(operation, CLUSTER, CLUSTER_NAME)


class Bystander:
    """In the place of an authority where there is no authoriser: allows everything, and sees who administers what."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def of(self, caller: Caller) -> Access:
        return AuditedAccess(self._audit, caller)


class Authority:
    """The ACLs in force, as one authoriser for all callers."""

    def __init__(self, settings: AuthorizerSettings, metadata: Metadata, audit: Audit) -> None:
        self.metadata = metadata
        self.audit = audit
        self._settings = settings
        self._acls = metadata.image.acls
        self._authorizer = Authorizer(self._acls, settings)
        #: The last one used at the end.
        self._callers: dict[Caller, CallerAccess] = {}
        #: Also those that connections still hold.
        self._all: WeakSet[CallerAccess] = WeakSet()
        metadata.subscribe(self._on_image)

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.acls is not new.acls:
            for access in self._all:
                access.renew()

    def of(self, caller: Caller) -> CallerAccess:
        access = self._callers.pop(caller, None)
        if access is None:
            if len(self._callers) >= _CALLERS_MAX:
                del self._callers[next(iter(self._callers))]
            access = CallerAccess(self, caller)
            self._all.add(access)
        self._callers[caller] = access
        return access

    def is_super(self, caller: Caller) -> bool:
        return caller.principal in self._settings.super_users

    def current(self) -> Authorizer:
        acls = self.metadata.image.acls
        if acls is not self._acls:
            self._acls, self._authorizer = acls, Authorizer(acls, self._settings)
        return self._authorizer


class CallerAccess:
    def __init__(self, authority: Authority, caller: Caller) -> None:
        self._authority = authority
        self._metadata = authority.metadata
        self._audit = authority.audit
        self._caller = caller
        self.is_full = authority.is_super(caller)
        # Guards hold on to them.
        self.writable: set[str] = set()
        self.readable: set[str] = set()
        self.renew()

    @property
    def rights(self) -> object:
        return self._metadata.image.acls

    def renew(self) -> None:
        """The ACLs have changed: all is decided again, and reported as a first use."""
        self._acls = self._metadata.image.acls
        self._authorizer = self._authority.current()
        self._kept: dict[tuple[ResourceType, str], int] = {}
        #: Decisions about any resource of a type: each looks at all patterns.
        self._somewhere: dict[tuple[Operation, ResourceType], bool] = {}
        self.writable.clear()
        self.readable.clear()
        #: Allowed uses that were reported.
        self._reported: set[tuple[Operation, ResourceType, str]] = set()

    def _follow_acls(self) -> None:
        if self._metadata.image.acls is not self._acls:
            self.renew()

    def _allowed(self, type_: ResourceType, name: str) -> int:
        if self.is_full:
            return EVERY_OPERATION
        self._follow_acls()
        found = self._kept.get((type_, name))
        if found is None:
            if len(self._kept) > _KEPT_MAX + 2 * len(self._metadata.image.topics):
                self.renew()
            caller = self._caller
            found = self._authorizer.allowed(caller.principal, caller.address, type_, name)
            self._kept[type_, name] = found
        return found

    def may(self, operation: Operation, type_: ResourceType, name: str) -> bool:
        allowed = bool(self._allowed(type_, name) >> operation & 1)
        self._report(operation, type_, name, allowed=allowed)
        return allowed

    def may_write(self, topic: str) -> bool:
        if not self.may(Operation.WRITE, TOPIC, topic):
            return False
        self.writable.add(topic)
        return True

    def may_read(self, topic: str) -> bool:
        if not self.may(Operation.READ, TOPIC, topic):
            return False
        self.readable.add(topic)
        return True

    def may_somewhere(self, operation: Operation, type_: ResourceType) -> bool:
        if self.is_full:
            return True
        self._follow_acls()
        found = self._somewhere.get((operation, type_))
        if found is None:
            caller = self._caller
            found = self._authorizer.allowed_somewhere(caller.principal, caller.address, operation, type_)
            self._somewhere[operation, type_] = found
        return found

    def check(self, operation: Operation, type_: ResourceType, name: str) -> None:
        if not self.may(operation, type_, name):
            raise self.refusal(operation, type_, name)

    def check_cluster(self, operation: Operation) -> None:
        self.check(operation, CLUSTER, CLUSTER_NAME)

    def refusal(self, operation: Operation, type_: ResourceType, name: str) -> RequestError:
        what = f"{_WORDS[type_]} {name!r}" if type_ in _WORDS else "the cluster"
        return _REFUSALS.get(type_, ClusterAuthorizationFailed)(
            f"{self._caller.principal} needs an ACL that allows {operation.name} on {what}."
        )

    def may_by_cluster(self, operation: Operation, type_: ResourceType, name: str) -> bool:
        allowed = self.allows(operation, CLUSTER, CLUSTER_NAME) or self.allows(operation, type_, name)
        self._report(operation, type_, name, allowed=allowed)
        return allowed

    def allows(self, operation: Operation, type_: ResourceType, name: str) -> bool:
        return bool(self._allowed(type_, name) >> operation & 1)

    def operations(self, type_: ResourceType, name: str) -> int:
        return self._allowed(type_, name) & SUPPORTED[type_]

    def _report(self, operation: Operation, type_: ResourceType, name: str, *, allowed: bool) -> None:
        use = (operation, type_, name)
        if allowed and not self._audit.reports_each(operation):
            if use in self._reported:
                return
            if len(self._reported) > _KEPT_MAX:
                self._reported.clear()
            self._reported.add(use)
        self._audit.note(self._caller, operation, type_, name, allowed=allowed)
