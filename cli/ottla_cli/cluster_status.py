"""`ottla cluster status`: partitions without a leader, and replicas that are not in sync. [A]

Counts come from the metadata image of one broker, so any broker can answer. The exit code is for
scripts: 0 if every partition is healthy, 1 if one has no leader or is under-replicated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import typer

from ottla_cli.connecting import admin, run
from ottla_cli.quantities import plural
from ottla_cli.screen import note, print_json, show, table
from ottla_client.admin import ClusterDescription, TopicDescription

#: Rows in the table; --json has all of them.
_TROUBLES_SHOWN = 20


class Trouble(NamedTuple):
    partition: str
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def what(self) -> str:
        return "no leader" if self.leader < 0 else "under-replicated"


def status(bootstrap: str, *, as_json: bool) -> None:
    async def work() -> tuple[ClusterDescription, Sequence[TopicDescription]]:
        async with admin(bootstrap) as client:
            return await client.describe_cluster(), await client.describe_topics()

    report = describe(*run(work()))
    if as_json:
        print_json(report)
    else:
        _show(report)
    if report["offline_partitions"] or report["under_replicated_partitions"]:
        raise typer.Exit(1)


def describe(cluster: ClusterDescription, topics: Sequence[TopicDescription]) -> dict[str, Any]:
    brokers = {
        broker.id: {
            "id": broker.id,
            "grpc": f"{broker.host}:{broker.port}",
            "kafka": f"{broker.kafka_host}:{broker.kafka_port}",
            "rack": broker.rack or None,
            "controller": broker.id == cluster.controller_id,
            "leaders": 0,
            "replicas": 0,
            "in_sync": 0,
        }
        for broker in sorted(cluster.brokers, key=lambda broker: broker.id)
    }
    for topic in topics:
        for partition in topic.partitions:
            for column, ids in (
                ("leaders", (partition.leader,)),
                ("replicas", partition.replicas),
                ("in_sync", partition.isr),
            ):
                for broker_id in ids:
                    if broker_id in brokers:
                        brokers[broker_id][column] += 1  # type: ignore[operator]
    troubles = list(_troubles(topics))
    return {
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "topics": len(topics),
        "partitions": sum(len(topic.partitions) for topic in topics),
        "offline_partitions": sum(t.leader < 0 for t in troubles),
        "under_replicated_partitions": sum(t.leader >= 0 for t in troubles),
        "brokers": list(brokers.values()),
        "troubles": [{**t._asdict(), "what": t.what} for t in troubles],
    }


def _troubles(topics: Sequence[TopicDescription]) -> Iterator[Trouble]:
    """Unhealthy partitions, those without a leader first."""
    found = [
        Trouble(f"{topic.name}-{p.partition}", p.leader, p.replicas, p.isr)
        for topic in topics
        for p in topic.partitions
        if p.leader < 0 or len(p.isr) < len(p.replicas)
    ]
    return iter(sorted(found, key=lambda trouble: trouble.leader >= 0))


def _show(report: dict[str, Any]) -> None:
    controller = report["controller_id"]
    facts = [
        ("cluster", report["cluster_id"]),
        ("controller", controller if controller >= 0 else "none at the moment"),
        ("partitions", f"{report['partitions']:,} in {plural(report['topics'], 'topic')}"),
        ("without a leader", report["offline_partitions"]),
        ("under-replicated", report["under_replicated_partitions"]),
    ]
    show(table(("", ""), facts))
    typer.echo()
    columns = ("broker#", "gRPC", "Kafka", "leads#", "replicas#", "in sync#", "")
    rows = (
        (b["id"], b["grpc"], b["kafka"], b["leaders"], b["replicas"], b["in_sync"],
         "controller" if b["controller"] else "")
        for b in report["brokers"]
    )  # fmt: skip
    show(table(columns, rows))
    troubles = report["troubles"]
    if troubles:
        typer.echo()
        shown = troubles[:_TROUBLES_SHOWN]
        show(
            table(
                ("partition", "what", "leader#", "replicas", "in sync"),
                (
                    (t["partition"], t["what"], t["leader"], _ids(t["replicas"]), _ids(t["isr"]))
                    for t in shown
                ),
            )
        )
        if len(troubles) > len(shown):
            note(f"… and {len(troubles) - len(shown):,} more; --json has all of them.")


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "-"
