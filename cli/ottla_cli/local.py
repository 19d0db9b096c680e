"""`ottla local`: the commands of a local cluster in one place. [A]"""

from __future__ import annotations

import typer

from ottla_cli.down import down
from ottla_cli.status import status
from ottla_cli.up import up

app = typer.Typer(no_args_is_help=True)
for _command in (up, status, down):
    app.command()(_command)


@app.callback()
def _group() -> None:
    """A local cluster: etcd and brokers as processes of this machine.

    $ ottla local up --data ./data --detach
    $ ottla local status --data ./data
    $ ottla local down --data ./data
    """
