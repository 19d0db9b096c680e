"""`ottla acls`: who may do what with which resource. [A]"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from ottla_cli.choices import listed
from ottla_cli.connecting import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, admin, run
from ottla_cli.failure import Failure
from ottla_cli.quantities import plural
from ottla_cli.screen import confirm, note, print_json, say, show, table
from ottla_client.acl_admin import Acl, AclFilter

app = typer.Typer(no_args_is_help=True)

_CLUSTER = "kafka-cluster"


class Operation(StrEnum):
    """Kafka's operations."""

    all = "all"
    read = "read"
    write = "write"
    create = "create"
    delete = "delete"
    alter = "alter"
    describe = "describe"
    cluster_action = "cluster_action"
    describe_configs = "describe_configs"
    alter_configs = "alter_configs"
    idempotent_write = "idempotent_write"


def operation(text: str) -> Operation:
    """Its name is what help shows as the type."""
    try:
        return Operation(text.lower())
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not one of {listed(Operation)}.") from None


_Principal = Annotated[
    str, typer.Argument(metavar="USER", help="A user, such as alice or User:alice; '*' for all.")
]
_Operations = Annotated[
    list[Operation],
    typer.Argument(
        metavar="OPERATION",
        parser=operation,
        help=f"One or more: {listed(Operation)}.",
    ),
]
_Topic = Annotated[
    list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic; may be repeated.")
]
_Group = Annotated[list[str] | None, typer.Option("--group", metavar="NAME", help="A consumer group.")]
_Id = Annotated[
    list[str] | None, typer.Option("--transactional-id", metavar="ID", help="A transactional id.")
]
_Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster.")]
_Prefixed = Annotated[bool, typer.Option("--prefixed", help="Names are the beginnings of names.")]
_Host = Annotated[str, typer.Option("--host", metavar="IP", help="Only from this address.")]


@app.callback()
def _group() -> None:
    """Show and change ACLs. Brokers need authorizer.class.name.

    $ ottla acls allow alice write --topic orders
    $ ottla acls allow bob read --topic orders --group billing
    $ ottla acls list --topic orders
    """


@app.command("list")
def list_(
    principal: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="Only ACLs of this user.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="NAME", help="Only those that match it.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Only those that match it.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List ACLs. With a name, also patterns and * that match it.

    $ ottla acls list
    $ ottla acls list --user alice
    $ ottla acls list --topic orders
    """
    who = None if principal is None else _principal(principal)
    wanted = [
        AclFilter(kind, name, who, pattern_type="MATCH")
        for kind, name in (("TOPIC", topic), ("GROUP", group))
        if name is not None
    ] or [AclFilter(principal=who)]

    async def work() -> list[Acl]:
        async with admin(bootstrap) as client:
            return sorted({acl for each in wanted for acl in await client.describe_acls(each)})

    found = run(work())
    if as_json:
        print_json([_row(acl) for acl in found])
    elif found:
        show(_table(found))
    else:
        note("No ACL matches." if principal or topic or group else "There are no ACLs.")


@app.command()
def allow(
    principal: _Principal,
    operations: _Operations,
    topic: _Topic = None,
    group: _Group = None,
    transactional_id: _Id = None,
    cluster: _Cluster = False,
    prefixed: _Prefixed = False,
    host: _Host = "*",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Allow a user operations on resources.

    $ ottla acls allow alice write --topic orders
    $ ottla acls allow bob read --topic orders- --prefixed --group billing
    $ ottla acls allow carol all --cluster
    """
    resources = _resources(topic, group, transactional_id, cluster=cluster, prefixed=prefixed)
    _create(bootstrap, _acls(principal, operations, resources, host, "ALLOW"))


@app.command()
def deny(
    principal: _Principal,
    operations: _Operations,
    topic: _Topic = None,
    group: _Group = None,
    transactional_id: _Id = None,
    cluster: _Cluster = False,
    prefixed: _Prefixed = False,
    host: _Host = "*",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Deny a user operations on resources, whatever else allows them.

    $ ottla acls deny mallory read write --topic '*'
    $ ottla acls deny alice write --topic orders --host 10.0.0.7
    """
    resources = _resources(topic, group, transactional_id, cluster=cluster, prefixed=prefixed)
    _create(bootstrap, _acls(principal, operations, resources, host, "DENY"))


@app.command()
def remove(
    principal: Annotated[
        str, typer.Argument(metavar="USER", help="A user; only ACLs of exactly this principal are removed.")
    ],
    operations: Annotated[
        list[Operation] | None,
        typer.Argument(
            metavar="[OPERATION]…",
            parser=operation,
            help="Only these; all without any.",
        ),
    ] = None,
    topic: _Topic = None,
    group: _Group = None,
    transactional_id: _Id = None,
    cluster: _Cluster = False,
    prefixed: _Prefixed = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove ACLs of a user, allowing and denying ones; all of them if no resource is named.

    $ ottla acls remove alice write --topic orders
    $ ottla acls remove alice --yes
    """
    who = _principal(principal)
    resources = _resources(topic, group, transactional_id, cluster=cluster, prefixed=prefixed, optional=True)
    chosen = [None if not operations else str(each) for each in operations or [Operation.all]]
    filters = [
        AclFilter(kind, name, principal=who, operation=operation, pattern_type=pattern)
        for kind, name, pattern in resources
        for operation in chosen
    ] or [AclFilter(principal=who, operation=operation) for operation in chosen]

    async def look() -> list[Acl]:
        async with admin(bootstrap) as client:
            return sorted({acl for each in filters for acl in await client.describe_acls(each)})

    async def work() -> list[Acl]:
        async with admin(bootstrap) as client:
            return await client.delete_acls(filters)

    found = run(look())
    if not found:
        note("No ACL matches; nothing was removed.")
        return
    show(_table(found))
    confirm(f"Remove {plural(len(found), 'ACL')}?", yes=yes)
    say(f"Removed {plural(len(run(work())), 'ACL')}.")


def _principal(text: str) -> str:
    return text if ":" in text else f"User:{text}"


def _resources(
    topics: list[str] | None,
    groups: list[str] | None,
    ids: list[str] | None,
    *,
    cluster: bool,
    prefixed: bool,
    optional: bool = False,
) -> list[tuple[str, str, str]]:
    """Type, name and pattern of each."""
    pattern = "PREFIXED" if prefixed else "LITERAL"
    found = [
        (kind, name, pattern)
        for kind, names in (("TOPIC", topics), ("GROUP", groups), ("TRANSACTIONAL_ID", ids))
        for name in names or ()
    ]
    if cluster:
        found.append(("CLUSTER", _CLUSTER, "LITERAL"))
    if not found and not optional:
        raise Failure("Name a resource: --topic, --group, --transactional-id or --cluster.", exit_code=2)
    return found


def _acls(
    principal: str,
    operations: list[Operation],
    resources: list[tuple[str, str, str]],
    host: str,
    permission: str,
) -> list[Acl]:
    """Each operation on each resource that knows it: `read write --topic t --group g` gives no Write on the group."""
    made = [
        Acl(kind, name, _principal(principal), operation.upper(), permission, pattern, host)
        for kind, name, pattern in resources
        for operation in operations
        if operation in _KNOWN[kind]
    ]
    for operation in operations:
        if not any(acl.operation == operation.upper() for acl in made):
            raise Failure(f"{operation} is not an operation on any of these resources.", exit_code=2)
    return made


#: Kafka's operations by type of resource.
_KNOWN: dict[str, frozenset[str]] = {
    "TOPIC": frozenset(
        ("all", "read", "write", "create", "delete", "alter", "describe", "describe_configs", "alter_configs")
    ),
    "GROUP": frozenset(("all", "read", "delete", "describe", "describe_configs", "alter_configs")),
    "CLUSTER": frozenset(Operation) - {"read", "write", "delete"},
    "TRANSACTIONAL_ID": frozenset(("all", "write", "describe")),
}


def _create(bootstrap: str, acls: list[Acl]) -> None:
    async def work() -> None:
        async with admin(bootstrap) as client:
            await client.create_acls(acls)

    run(work())
    show(_table(acls))


def _row(acl: Acl) -> dict[str, Any]:
    return {
        "user": acl.principal,
        "permission": acl.permission.lower(),
        "operation": acl.operation.lower(),
        "type": acl.resource_type.lower(),
        "name": acl.name,
        "pattern": acl.pattern_type.lower(),
        "host": acl.host,
    }


def _table(acls: list[Acl]) -> Any:
    rows = [_row(acl) for acl in acls]
    return table(tuple(rows[0]), (list(row.values()) for row in rows))
