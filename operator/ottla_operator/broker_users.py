"""Reads and changes one user on the brokers, through Ottla's client. [A] Used by `brokers.py`."""

from __future__ import annotations

from ottla_client import Admin
from ottla_client.acl_admin import Acl, AclFilter
from ottla_client.quota_admin import QuotaEntity
from ottla_core.errors import ResourceNotFound, SecurityDisabled
from ottla_operator.metrics import ACTIONS
from ottla_operator.user_plan import (
    ITERATIONS,
    MECHANISM,
    Action,
    AddAcls,
    DropPasswords,
    RemoveAcls,
    SeenUser,
    SetPassword,
    SetQuotas,
)
from ottla_operator.user_spec import AclRule


async def read_user(admin: Admin, user: str) -> SeenUser:
    try:
        (found,) = await admin.describe_users([user])
        mechanisms = dict(found.mechanisms)
    except ResourceNotFound:
        mechanisms = {}
    try:
        acls = await admin.describe_acls(AclFilter(principal=f"User:{user}"))
    except SecurityDisabled:  # no authoriser, so no ACLs; to add one is refused with a reason
        acls = []
    rules = (
        AclRule(each.resource_type, each.name, each.operation, each.pattern_type, each.permission, each.host)
        for each in acls
    )
    own = QuotaEntity(user=user)
    quotas = [each.values for each in await admin.describe_quotas(own) if each.entity == own]
    return SeenUser(mechanisms, frozenset(rules), dict(quotas[0]) if quotas else {})


async def change_user(admin: Admin, action: Action) -> None:
    ACTIONS.labels("User", type(action).__name__).inc()
    match action:
        case SetPassword(user, password):
            await admin.set_password(user, password, mechanisms=[MECHANISM], iterations=ITERATIONS)
        case DropPasswords(user, mechanisms):
            try:
                await admin.delete_user(user, mechanisms)
            except ResourceNotFound:
                return
        case AddAcls(user, rules):
            await admin.create_acls([_acl(user, rule) for rule in rules])
        case RemoveAcls(user, rules):
            await admin.delete_acls([_filter(_acl(user, rule)) for rule in rules])
        case SetQuotas(user, values, remove):
            await admin.alter_quotas(QuotaEntity(user=user), values, remove=remove)


def _acl(user: str, rule: AclRule) -> Acl:
    return Acl(
        rule.resource_type,
        rule.name,
        f"User:{user}",
        rule.operation,
        rule.permission,
        rule.pattern_type,
        rule.host,
    )


def _filter(acl: Acl) -> AclFilter:
    return AclFilter(
        acl.resource_type,
        acl.name,
        acl.principal,
        acl.operation,
        acl.permission,
        acl.pattern_type,
        acl.host,
    )
