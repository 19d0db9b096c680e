"""`ottla local status`: show the processes of a local cluster. [A]"""

from __future__ import annotations

import http.client
import json
import os
from typing import Annotated, Any

import typer

from ottla_cli.cluster_state import BrokerState, ClusterFolder, Running
from ottla_cli.screen import print_json, say, show, table

_HEALTH_TIMEOUT_S = 2.0


def status(
    data: Annotated[str, typer.Option(help="The data folder of the cluster.", envvar="OTTLA_DATA")],
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output, for scripts.")] = False,
) -> None:
    """Show the local cluster of a data folder. Exit code 1 if it does not run.

    $ ottla local status --data ./data
    $ ottla local status --data ./data --json | jq '.brokers[].kafka'
    """
    folder = ClusterFolder(data)
    running = folder.running() if os.path.isdir(folder.path) else None
    report = describe(folder, running)
    if as_json:
        print_json(report)
    else:
        _print(report)
    if not report["running"]:
        raise typer.Exit(1)


def describe(folder: ClusterFolder, running: Running | None) -> dict[str, Any]:
    if running is None or not running.owner.alive:
        return {"data": folder.path, "running": False, "brokers": []}
    etcd = running.etcd
    return {
        "data": folder.path,
        "running": True,
        "ready": running.ready,
        "temporary": running.temporary,
        "pid": running.owner.pid,
        "etcd": {
            "pid": etcd.pid if etcd else None,
            "alive": bool(etcd and etcd.alive),
            "endpoint": running.etcd_endpoint,
        },
        "brokers": [_broker(state) for state in running.brokers],
    }


def _broker(state: BrokerState) -> dict[str, Any]:
    alive = state.process.alive
    reasons = _not_ready(state.http) if alive else ["The process has exited."]
    return {
        "id": state.id,
        "pid": state.process.pid,
        "kafka": state.kafka,
        "grpc": state.grpc,
        "http": state.http,
        "alive": alive,
        "ready": not reasons,
        "reasons": reasons,
    }


def _not_ready(address: str) -> list[str]:
    """The reasons why the broker is not ready; empty if it is."""
    host, _, port = address.rpartition(":")
    # Not urllib: it would use a proxy for 127.0.0.1.
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return [] if answer.status == 200 else [str(reason) for reason in json.load(answer)["reasons"]]
    except (OSError, http.client.HTTPException) as failed:
        return [f"The health endpoint does not answer: {failed}."]
    except (ValueError, KeyError, TypeError):
        return [f"The health endpoint answers {answer.status}."]
    finally:
        connection.close()


def _print(report: dict[str, Any]) -> None:
    if not report["running"]:
        say(f"No cluster runs in {report['data']}.")
        return
    rows = (
        [*(row[key] for key in ("id", "pid", "kafka", "grpc", "http")),
         "ready" if row["ready"] else " ".join(row["reasons"])]
        for row in report["brokers"]
    )  # fmt: skip
    show(table(("broker#", "pid#", "Kafka", "gRPC", "HTTP", "state~"), rows))
    say(f"etcd {report['etcd']['endpoint']} (pid {report['etcd']['pid']}), data {report['data']}")
