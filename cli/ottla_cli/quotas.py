"""`ottla quotas`: how much users, client ids and addresses may use. [A]"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ottla_cli.connecting import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, admin, run
from ottla_cli.failure import Failure
from ottla_cli.quantities import parse_size
from ottla_cli.screen import confirm, note, print_json, say, show, table
from ottla_client.quota_admin import DEFAULT, Quota, QuotaEntity

app = typer.Typer(no_args_is_help=True)

_BYTE_RATES = ("producer_byte_rate", "consumer_byte_rate")
_NAMES = (*_BYTE_RATES, "request_percentage", "controller_mutation_rate", "connection_creation_rate")

_User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="A user.")]
_ClientId = Annotated[str | None, typer.Option("--client-id", metavar="ID", help="A client id.")]
_Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="An IP address.")]
_DefaultUser = Annotated[bool, typer.Option("--default-user", help="Each user without its own quota.")]
_DefaultClientId = Annotated[
    bool, typer.Option("--default-client-id", help="Each client id without its own.")
]
_DefaultIp = Annotated[bool, typer.Option("--default-ip", help="Each address without its own quota.")]


@app.callback()
def _group() -> None:
    """Show and change quotas. Each is a rate per broker, which all connections of an entity share.

    $ ottla quotas set --user alice producer_byte_rate=10MB consumer_byte_rate=20MB
    $ ottla quotas set --default-client-id request_percentage=25
    $ ottla quotas set --ip 10.0.0.7 connection_creation_rate=20
    $ ottla quotas list
    """


@app.command("list")
def list_(
    user: _User = None,
    client_id: _ClientId = None,
    ip: _Ip = None,
    default_user: _DefaultUser = False,
    default_client_id: _DefaultClientId = False,
    default_ip: _DefaultIp = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List quotas, of all entities or of those with these names.

    $ ottla quotas list
    $ ottla quotas list --user alice --json
    """
    wanted = _entity(user, client_id, ip, default_user, default_client_id, default_ip)

    async def work() -> list[Quota]:
        async with admin(bootstrap) as client:
            return await client.describe_quotas(wanted)

    found = run(work())
    if as_json:
        print_json([_row(quota) for quota in found])
    elif found:
        show(_table(found))
    else:
        note("No quota matches." if wanted != QuotaEntity() else "There are no quotas.")


@app.command("set")
def set_(
    values: Annotated[
        list[str], typer.Argument(metavar="QUOTA=VALUE", help=f"One or more of {', '.join(_NAMES)}.")
    ],
    user: _User = None,
    client_id: _ClientId = None,
    ip: _Ip = None,
    default_user: _DefaultUser = False,
    default_client_id: _DefaultClientId = False,
    default_ip: _DefaultIp = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set quotas of a user, a client id, both, or an address. Other quotas of it stay.

    Byte rates are bytes per second, such as 10MB; request_percentage is of one broker's event loop;
    controller_mutation_rate is in partitions per second; connection_creation_rate is for addresses only.

    $ ottla quotas set --user alice producer_byte_rate=10MB
    $ ottla quotas set --user alice --client-id app request_percentage=10
    $ ottla quotas set --default-user controller_mutation_rate=5
    """
    entity = _chosen(user, client_id, ip, default_user, default_client_id, default_ip)
    rates = dict(_parse(text) for text in values)

    async def work() -> list[Quota]:
        async with admin(bootstrap) as client:
            await client.alter_quotas(entity, rates)
            return [each for each in await client.describe_quotas(entity) if each.entity == entity]

    show(_table(run(work())))


@app.command()
def delete(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[QUOTA]…", help="Only these; all of the entity without any."),
    ] = None,
    user: _User = None,
    client_id: _ClientId = None,
    ip: _Ip = None,
    default_user: _DefaultUser = False,
    default_client_id: _DefaultClientId = False,
    default_ip: _DefaultIp = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete quotas of exactly this entity.

    $ ottla quotas delete --user alice producer_byte_rate
    $ ottla quotas delete --default-client-id --yes
    """
    entity = _chosen(user, client_id, ip, default_user, default_client_id, default_ip)

    async def look() -> list[Quota]:
        async with admin(bootstrap) as client:
            return [each for each in await client.describe_quotas(entity) if each.entity == entity]

    async def work() -> None:
        async with admin(bootstrap) as client:
            await client.alter_quotas(entity, {}, remove=chosen)

    found = run(look())
    chosen = [name for each in found for name in each.values if name in (names or each.values)]
    if not chosen:
        note("No quota matches; nothing was deleted.")
        return
    confirm(f"Delete {', '.join(chosen)} of {_label(entity)}?", yes=yes)
    run(work())
    say(f"Deleted {', '.join(chosen)} of {_label(entity)}.")


def _entity(
    user: str | None,
    client_id: str | None,
    ip: str | None,
    default_user: bool,
    default_client_id: bool,
    default_ip: bool,
) -> QuotaEntity:
    given = (
        ("user", user, default_user),
        ("client-id", client_id, default_client_id),
        ("ip", ip, default_ip),
    )
    for what, name, is_default in given:
        if name is not None and is_default:
            raise Failure(f"Give either --{what} or --default-{what}.", exit_code=2)
        if name == "":
            raise Failure(f"--{what} needs a name; the default is --default-{what}.", exit_code=2)
    return QuotaEntity(*(DEFAULT if is_default else name for _, name, is_default in given))


def _chosen(
    user: str | None,
    client_id: str | None,
    ip: str | None,
    default_user: bool,
    default_client_id: bool,
    default_ip: bool,
) -> QuotaEntity:
    entity = _entity(user, client_id, ip, default_user, default_client_id, default_ip)
    if entity == QuotaEntity():
        raise Failure("Name an entity: --user, --client-id, both, or --ip; or a --default-….", exit_code=2)
    return entity


def _parse(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not equals or name not in _NAMES:
        raise Failure(f"{text!r} is not QUOTA=VALUE; quotas are {', '.join(_NAMES)}.", exit_code=2)
    try:
        return name, float(parse_size(value)) if name in _BYTE_RATES else float(value)
    except ValueError:
        example = "10MB" if name in _BYTE_RATES else "12.5"
        raise Failure(
            f"{value!r} is not a value of {name}; write for example {name}={example}.", exit_code=2
        ) from None


def _label(entity: QuotaEntity) -> str:
    parts = (("user", entity.user), ("client id", entity.client_id), ("address", entity.ip))
    return ", ".join(
        f"{what} {name}" if name else f"the default {what}" for what, name in parts if name is not None
    )


def _row(quota: Quota) -> dict[str, Any]:
    entity = quota.entity
    return {
        **{
            what: None if name is None else (name or "<default>")
            for what, name in (("user", entity.user), ("client_id", entity.client_id), ("ip", entity.ip))
        },
        "quotas": dict(sorted(quota.values.items())),
    }


def _table(quotas: list[Quota]) -> Any:
    """Without the columns that no quota has: names of clients are long."""
    rows = [
        (row["user"], row["client_id"], row["ip"], name, f"{value:,.15g}")
        for row in map(_row, quotas)
        for name, value in row["quotas"].items()
    ]
    names = ("user", "client id~", "ip", "quota", "value#")
    kept = [at for at in range(len(names)) if any(row[at] is not None for row in rows)]
    return table(
        [names[at] for at in kept], [["" if row[at] is None else row[at] for at in kept] for row in rows]
    )
