"""`ottla cluster`: brokers, controller; `status`, `recover`, `rebalance`, and the commands of `cluster_moves`. [A]"""

from __future__ import annotations

from typing import Annotated

import typer

from ottla_cli.assignments import Throttle, rate_of
from ottla_cli.cluster_dirs import dirs, move_dir
from ottla_cli.cluster_moves import cordon, drain, elect, moves, uncordon, unregister
from ottla_cli.cluster_rebalance import rebalance as rebalance_cluster
from ottla_cli.cluster_recover import recover as recover_metadata
from ottla_cli.cluster_status import status as show_status
from ottla_cli.cluster_throttle import throttle
from ottla_cli.connecting import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, admin, run
from ottla_cli.quantities import plural, show_size
from ottla_cli.screen import print_json, show, table
from ottla_client.cluster_admin import BrokerLoad, ClusterLoad

app = typer.Typer(invoke_without_command=True)
for _command in (moves, throttle, drain, cordon, uncordon, unregister, elect, dirs, move_dir):
    app.command()(_command)


@app.callback()
def _group(context: typer.Context, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show the cluster: its id, its brokers, and which of them is the controller.

    $ ottla cluster
    $ ottla cluster info --json
    $ ottla cluster status
    $ ottla cluster drain 3
    """
    if context.invoked_subcommand is None:
        _info(bootstrap, as_json=as_json)


@app.command()
def info(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show the cluster: its id, its brokers, and which of them is the controller.

    $ ottla cluster info --bootstrap broker-0.example:9192 --json
    """
    _info(bootstrap, as_json=as_json)


@app.command()
def status(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show brokers with their leaderships, and offline or under-replicated partitions.

    The exit code is 1 if there are such partitions.

    $ ottla cluster status --json
    """
    show_status(bootstrap, as_json=as_json)


@app.command()
def rebalance(
    drain: Annotated[
        list[int] | None,
        typer.Option("--drain", metavar="BROKER", help="Move everything off this broker, and cordon it."),
    ] = None,
    throttle: Throttle = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    cancel: Annotated[
        bool,
        typer.Option("--cancel", help="Cancel all moves; the partitions return to their former brokers."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move replicas so that racks, replicas, bytes and leaders are balanced.

    Shows each broker before and after, and the smallest set of moves that it
    found; then asks, moves the replicas, and shows the progress. Clients keep
    writing and reading meanwhile. A broker copies a bounded number of
    partitions at once (num.concurrent.partition.movements.per.broker); other
    moves wait. Ctrl-C ends the watching only: the brokers go on.

    $ ottla cluster rebalance --dry-run
    $ ottla cluster rebalance --yes --throttle 50MB
    $ ottla cluster rebalance --drain 3
    $ ottla cluster rebalance --cancel
    """
    rebalance_cluster(
        bootstrap,
        drain or [],
        throttle=rate_of(throttle),
        dry_run=dry_run,
        cancel=cancel,
        yes=yes,
        as_json=as_json,
    )


@app.command()
def recover(
    data: Annotated[
        str | None, typer.Option("--data", metavar="DIR", help="The data folder of a stopped local cluster.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(help="A broker's configuration file, for its etcd.* settings.", envvar="OTTLA_CONFIG"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A broker setting, such as etcd.endpoints."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Continue from an old backup of etcd if there is no newer one: the last resort.

    Brokers refuse a metadata store that is behind what they have seen, and
    report it. Restore the newest backup first. If that is still too old, stop
    all brokers, run this command once against etcd itself, and start the
    brokers again. The replica with the longest log then leads each partition,
    once all its replicas are online. Topics created after the backup remain as
    folders on the brokers' disks; topics deleted after it reappear.

    $ ottla cluster recover --set etcd.endpoints=etcd-0.example:2379
    $ ottla cluster recover --config broker.toml --yes
    $ ottla cluster recover --data ./data
    """
    recover_metadata(data, config, set_ or [], yes=yes, as_json=as_json)


def _info(bootstrap: str, *, as_json: bool) -> None:
    async def work() -> tuple[ClusterLoad, list[int]]:
        async with admin(bootstrap) as client:
            found = await client.describe_brokers()
            topics = await client.describe_topics()
            return found, [len(topic.partitions) for topic in topics]

    found, partitions = run(work())
    brokers = sorted(found.brokers, key=lambda broker: broker.id)
    if as_json:
        document = {
            "cluster_id": found.cluster_id,
            "controller_id": found.controller_id,
            "topics": len(partitions),
            "partitions": sum(partitions),
            "brokers": [
                {
                    "id": broker.id,
                    "grpc": f"{broker.host}:{broker.port}" if broker.online else None,
                    "kafka": f"{broker.kafka_host}:{broker.kafka_port}" if broker.online else None,
                    "rack": broker.rack or None,
                    "controller": broker.id == found.controller_id,
                    "online": broker.online,
                    "cordoned": broker.cordoned,
                    "replicas": broker.replicas,
                    "leaders": broker.leaders,
                    "bytes": broker.bytes if broker.bytes >= 0 else None,
                    "usable_bytes": broker.usable_bytes if broker.usable_bytes >= 0 else None,
                }
                for broker in brokers
            ],
        }
        print_json(document)
        return
    facts = [
        ("cluster", found.cluster_id),
        ("controller", found.controller_id if found.controller_id >= 0 else "none at the moment"),
        ("topics", f"{len(partitions):,} with {plural(sum(partitions), 'partition')}"),
    ]
    show(table(("", ""), facts))
    typer.echo()
    show(
        table(
            ("broker#", "gRPC", "Kafka", "rack", ""),
            (
                (
                    broker.id,
                    f"{broker.host}:{broker.port}" if broker.online else "-",
                    f"{broker.kafka_host}:{broker.kafka_port}" if broker.online else "-",
                    broker.rack or "-",
                    _state(broker, found.controller_id),
                )
                for broker in brokers
            ),
        )
    )
    typer.echo()
    show(
        table(
            ("broker#", "replicas#", "leaders#", "size#", "free#"),
            (
                (broker.id, broker.replicas, broker.leaders, _size(broker.bytes), _size(broker.usable_bytes))
                for broker in brokers
            ),
        )
    )


def _state(broker: BrokerLoad, controller_id: int) -> str:
    words = {
        "offline": not broker.online,
        "controller": broker.id == controller_id,
        "cordoned": broker.cordoned,
        "stopping": broker.stopping,
    }
    return ", ".join(word for word, holds in words.items() if holds)


def _size(size_bytes: int) -> str:
    return "-" if size_bytes < 0 else show_size(size_bytes)
