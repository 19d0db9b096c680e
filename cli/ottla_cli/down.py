"""`ottla down`: stop the local cluster of a data folder, and no other process. [A]"""

from __future__ import annotations

import shutil
import signal
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ottla_cli.cluster_state import ClusterFolder
from ottla_cli.failure import Failure
from ottla_cli.local_cluster import STOP_TIMEOUT_S


def down(
    data: Annotated[str, typer.Option(help="The data folder of the cluster.", envvar="OTTLA_DATA")],
) -> None:
    """Stop the local cluster of a data folder. Succeeds if none runs.

    $ ottla down --data ./data
    """
    console = Console(stderr=True, highlight=False)
    folder = ClusterFolder(data)
    running = folder.running()
    if running is None or not any(process.alive for process in running.processes):
        console.print(f"No cluster runs in {escape(folder.path)}.")
        if running is not None:
            folder.clear_running()
        return
    with console.status("Stopping …"):
        # The owner stops its children in order; if the owner has died, the children exit by themselves.
        asked = running.processes[:1] if running.owner.alive else running.processes[1:]
        try:
            for process in asked:
                process.send(signal.SIGTERM)
        except PermissionError:
            raise Failure(
                f"The cluster in {folder.path} belongs to another user; stop it as that user, or as root."
            ) from None
        for process in running.processes:
            if not process.wait(STOP_TIMEOUT_S + 15):
                process.send(signal.SIGKILL)
                if not process.wait(5):
                    raise Failure(f"Process {process.pid} cannot be stopped.")
    if running.temporary:
        # The owner does this too, unless it was killed.
        shutil.rmtree(folder.path, ignore_errors=True)
    else:
        folder.clear_running()
    console.print("Stopped; no process is left running.")
