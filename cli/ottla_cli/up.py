"""`ottla up`: a local cluster until Ctrl-C, or in the background with --detach. [A]

A broker or etcd that exits unexpectedly is restarted, with a message. If one exits three times within a minute,
a restart does not help: the command stops all processes and fails.

With --detach, the same command runs again in a new session as the owner of all processes; the first process
only waits until the owner is ready. `ottla down` stops the owner.

rich is imported late: loading it takes as long as the start of etcd, so both happen in parallel.
"""

from __future__ import annotations

import importlib.util
import shutil
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated

import typer

from ottla_cli.child import Child
from ottla_cli.cluster_state import ClusterFolder, Running
from ottla_cli.failure import Failure
from ottla_cli.free_ports import PORT_MAX
from ottla_cli.local_cluster import QUICK_GROUPS, START_TIMEOUT_S, STOP_TIMEOUT_S, LocalCluster, Ports

if TYPE_CHECKING:
    from rich.console import Console

_LOOK_EVERY_S = 0.5
_CRASHES_MAX = 3
_CRASHES_WITHIN_S = 60.0


def up(
    brokers: Annotated[int, typer.Option(help="Number of brokers.", min=1)] = 1,
    data: Annotated[
        str | None,
        typer.Option(help="The data folder; without it, a temporary one.", envvar="OTTLA_DATA"),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the cluster is ready; stop it with `ottla down`.")
    ] = False,
    kafka_port: Annotated[
        int, typer.Option(help="Kafka port of broker 0; 0 takes a free one.", min=0, max=PORT_MAX)
    ] = 9092,
    grpc_port: Annotated[
        int, typer.Option(help="gRPC port of broker 0; 0 takes a free one.", min=0, max=PORT_MAX)
    ] = 9192,
    http_port: Annotated[
        int,
        typer.Option(help="Metrics and health port of broker 0; 0 takes a free one.", min=0, max=PORT_MAX),
    ] = 9292,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A broker setting; may be repeated."),
    ] = None,
    config: Annotated[str | None, typer.Option(help="A broker configuration file.")] = None,
    temporary: Annotated[bool, typer.Option(hidden=True, help="Remove the folder at the end.")] = False,
) -> None:
    """Run a local cluster (etcd and brokers on 127.0.0.1) until Ctrl-C.

    $ ottla up                                # one broker, in a temporary folder
    $ ottla up --brokers 3 --data ./data      # three brokers; the data is kept
    $ ottla up --detach --data ./data         # in the background
    $ ottla up --set num.partitions=3         # see ottla configs preview

    Broker i uses the given ports plus i. A process that exits unexpectedly is
    restarted.
    """
    if importlib.util.find_spec("uvloop") is None:  # only the broker needs uvloop
        raise Failure("A local cluster needs the broker: pip install 'ottla[broker]'.")
    # A flag overrides the file, so pass none if there is a file.
    settings = {**({} if config else QUICK_GROUPS), **_settings(set_ or [])}
    stop = threading.Event()
    cluster = LocalCluster(
        data,
        brokers=brokers,
        ports=Ports(kafka_port, grpc_port, http_port),
        settings=settings,
        config_file=config,
        temporary=data is None or temporary,
        say=lambda sentence: typer.echo(sentence, err=True),
        give_up=stop.is_set,
    )
    if not detach:
        _run(cluster, stop)
        return
    again = ["--brokers", str(brokers), "--kafka-port", str(kafka_port), "--grpc-port", str(grpc_port)]
    again += ["--http-port", str(http_port), *(part for pair in set_ or [] for part in ("--set", pair))]
    again += ["--config", config] if config else []
    _detach(cluster, again, stop)


def _brokers(count: int) -> str:
    return "1 broker" if count == 1 else f"{count} brokers"


def _settings(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise Failure(f"--set takes name=value, not {pair!r}.", exit_code=2)
        found[name.strip()] = value
    return found


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def _listen(stop: threading.Event) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())


def _run(cluster: LocalCluster, stop: threading.Event) -> None:
    _listen(stop)
    began = time.monotonic()
    cluster.begin()
    console = _console()
    with console.status(f"Starting etcd and {_brokers(len(cluster.brokers))} …"):
        cluster.wait_ready(began + START_TIMEOUT_S)
    try:
        running = cluster.folder.running()
        if running is not None:
            _show(console, cluster.folder, running, f"Ready after {time.monotonic() - began:.1f} s.")
            console.print("[dim]Ctrl-C stops everything.[/dim]")
        _supervise(console, cluster, stop)
    finally:
        with console.status("Stopping …"):
            cluster.stop()
        gone = "; the temporary folder was removed" if cluster.temporary else ""
        console.print(f"Stopped; no process is left running{gone}.")


def _supervise(console: Console, cluster: LocalCluster, stop: threading.Event) -> None:
    crashes: list[float] = []
    while not stop.wait(_LOOK_EVERY_S):
        for child in cluster.dead:
            now = time.monotonic()
            crashes = [at for at in crashes if now - at < _CRASHES_WITHIN_S] + [now]
            console.print(
                f"[bold red]{child.name} ended with code {child.exit_code}[/]; see {child.log_path}"
            )
            if len(crashes) >= _CRASHES_MAX:
                raise Failure(
                    f"{child.name} keeps exiting. The end of its log:\n" + "\n".join(child.log_lines())
                )
            _restart(cluster, child)
            console.print(f"{child.name} was restarted.")


def _restart(cluster: LocalCluster, child: Child) -> None:
    for broker in cluster.brokers.values():
        if broker.child is child:
            cluster.restart(broker.id)
            return
    cluster.restart_etcd()


def _detach(cluster: LocalCluster, again: list[str], stop: threading.Event) -> None:
    """Run the command `again` in the background, without --detach, and wait until the cluster is ready."""
    folder = cluster.folder
    folder.lock()  # fails if a cluster runs there, and names its owner
    folder.unlock()
    again += ["--data", folder.path, *(["--temporary"] if cluster.temporary else [])]
    owner = Child("the local cluster", folder.file("up.log"))
    _listen(stop)
    owner.start_detached([sys.executable, "-P", "-m", "ottla_cli", "up", *again])
    console = _console()
    with console.status("Starting etcd and brokers …"):
        running = _wait_for_owner(cluster, owner, stop)
    _show(console, folder, running, "Running in the background.")
    console.print("[dim]Stop it with:[/dim]", f"ottla down --data {folder.path}", soft_wrap=True)


def _wait_for_owner(cluster: LocalCluster, owner: Child, stop: threading.Event) -> Running:
    """Wait until the owner is ready. On failure stop it, so that no unknown process remains."""
    folder = cluster.folder
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        running = folder.running()
        if running is not None and running.ready and running.owner.pid == owner.pid:
            return running
        if stop.is_set() or not owner.running or time.monotonic() > deadline:
            # The owner has its own session and gets no Ctrl-C; its children stop with it.
            owner.stop(2 * STOP_TIMEOUT_S)
            lines = [line.removeprefix("ottla: ") for line in owner.log_lines()]
            if cluster.temporary:
                shutil.rmtree(folder.path, ignore_errors=True)
            if stop.is_set():
                raise Failure(
                    "Stopped before the cluster was ready; no process is left running.", exit_code=130
                )
            raise Failure("\n".join(lines) or "The cluster did not start.")
        time.sleep(0.02)


def _show(console: Console, folder: ClusterFolder, running: Running, headline: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    kept = "temporary, removed when stopped" if running.temporary else "kept"
    console.print(f"[bold green]Ottla is up.[/] {headline}")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("", "Kafka", "gRPC", "metrics, health"):
        table.add_column(heading, no_wrap=True)
    for broker in running.brokers:
        table.add_row(f"broker {broker.id}", broker.kafka, broker.grpc, f"http://{broker.http}/metrics")
    console.print(table)
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_row("etcd    ", running.etcd_endpoint)
    facts.add_row("data", f"{escape(folder.path)} [dim]({kept})[/dim]")
    console.print(facts)
    kafka, grpc = running.brokers[0].kafka, running.brokers[0].grpc
    server = "" if grpc == "127.0.0.1:9192" else f" --bootstrap {grpc}"
    console.print("\nTry:")
    copies = min(3, len(running.brokers))
    replicated = f" --replication-factor {copies}" if copies > 1 else ""
    for line in (
        f"ottla topics create greetings --partitions 3{replicated}{server}",
        f"echo hello | kcat -b {kafka} -P -t greetings",
        f"ottla consume greetings --from earliest{server}",
    ):
        console.print(f"  [cyan]{escape(line)}[/cyan]", soft_wrap=True)
