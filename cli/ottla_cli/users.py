"""`ottla users`: users that log in with a password. [A]

Passwords come from a prompt, a file or standard input, never from the command line, which other users of the machine
can read.
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from ottla_cli.connecting import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, admin, run, usage
from ottla_cli.failure import Failure
from ottla_cli.screen import confirm, print_json, say, show, table
from ottla_client import Admin
from ottla_core.errors import ResourceNotFound
from ottla_core.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS

app = typer.Typer(no_args_is_help=True)
_PASSWORD_BYTES_MAX = 4096

Name = Annotated[str, typer.Argument(metavar="USER")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file", metavar="FILE", help="Take the password from the first line; - is standard input."
    ),
]
Mechanisms = Annotated[
    list[str] | None,
    typer.Option(
        "--mechanism", metavar="NAME", help=f"{' or '.join(MECHANISMS)}; repeatable. Both by default."
    ),
]
Iterations = Annotated[
    int, typer.Option(help="More make it slower to guess the password from a stolen backup, and to log in.",
                      min=ITERATIONS_MIN, max=ITERATIONS_MAX),
]  # fmt: skip


@app.callback()
def _group() -> None:
    """Users that log in with a password.

    $ ottla users create alice
    $ ottla users list
    """


@app.command("list")
def list_users(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List users with their mechanisms. Those of a broker's sasl.users.file are not listed.

    $ ottla users list
    """

    async def work() -> list[tuple[str, dict[str, int]]]:
        async with admin(bootstrap) as client:
            return [(each.name, dict(each.mechanisms)) for each in await client.describe_users()]

    found = run(work())
    if as_json:
        print_json([{"user": name, "mechanisms": mechanisms} for name, mechanisms in found])
        return
    if not found:
        say("There are no users; `ottla users create NAME` creates one.")
        return
    show(table(("user", "mechanisms~"), [(name, ", ".join(mechanisms)) for name, mechanisms in found]))


@app.command()
def create(
    user: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    password_file: PasswordFile = None,
    mechanism: Mechanisms = None,
    iterations: Iterations = ITERATIONS_MIN,
) -> None:
    """Create a user.

    $ ottla users create alice
    $ openssl rand -hex 16 | tee alice.password | ottla users create alice --password-file -
    """
    password = _password(user, password_file)

    async def work() -> None:
        async with admin(bootstrap) as client:
            if await _exists(client, user):
                raise Failure(
                    f"There is a user {user!r} already; `ottla users passwd {user}` changes the password."
                )
            await client.set_password(user, password, mechanisms=_named(mechanism), iterations=iterations)

    run(work())
    say(f"Created user {user}.")


@app.command()
def passwd(
    user: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    password_file: PasswordFile = None,
    mechanism: Mechanisms = None,
    iterations: Iterations = ITERATIONS_MIN,
) -> None:
    """Change the password of a user.

    $ ottla users passwd alice
    """
    password = _password(user, password_file)

    async def work() -> None:
        async with admin(bootstrap) as client:
            if not await _exists(client, user):
                raise Failure(f"There is no user {user!r}; `ottla users create {user}` creates it.")
            await client.set_password(user, password, mechanisms=_named(mechanism), iterations=iterations)

    run(work())
    say(f"Changed the password of {user}. Open connections stay until they log in again.")


@app.command()
def delete(
    user: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a user. Open connections stay until they log in again.

    $ ottla users delete alice
    """

    async def look() -> None:
        async with admin(bootstrap) as client:
            if not await _exists(client, user):
                raise Failure(f"There is no user {user!r}; `ottla users list` lists all.")

    async def work() -> None:
        async with admin(bootstrap) as client:
            await client.delete_user(user)

    run(look())
    confirm(f"Delete user {user}?", yes=yes)
    run(work())
    say(f"Deleted user {user}.")


async def _exists(client: Admin, user: str) -> bool:
    try:
        await client.describe_users([user])
    except ResourceNotFound:
        return False
    return True


def _named(mechanisms: list[str] | None) -> list[str]:
    for name in mechanisms or ():
        if name not in MECHANISMS:
            raise Failure(f"--mechanism takes {' or '.join(MECHANISMS)}, not {name!r}.", exit_code=2)
    return mechanisms or list(MECHANISMS)


def _password(user: str, file: Path | None) -> str:
    """From the file, else from a prompt that does not show it."""
    if file is None:
        if not sys.stdin.isatty():
            raise Failure("Give the password by --password-file FILE, or - for standard input.", exit_code=2)
        password = getpass.getpass(f"Password of {user}: ")
        if password != getpass.getpass("The same again: "):
            raise Failure("The two passwords differ; nothing was changed.", exit_code=2)
    elif str(file) == "-":
        password = usage(_line, sys.stdin.buffer.readline(_PASSWORD_BYTES_MAX))
    else:
        with open(file, "rb") as opened:
            password = usage(_line, opened.readline(_PASSWORD_BYTES_MAX))
    if not password:
        raise Failure("The password is empty; nothing was changed.", exit_code=2)
    return password


def _line(content: bytes) -> str:
    try:
        return content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError("The password is not UTF-8.") from None
