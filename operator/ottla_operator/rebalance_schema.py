"""The schema of a Rebalance. [P]"""

from __future__ import annotations

from ottla_operator.schemas import (
    MOVED_MAX,
    Schema,
    choice,
    cluster_reference,
    conditions,
    flag,
    listed,
    long,
    text,
    thing,
    whole,
)


def rebalance_spec() -> Schema:
    return thing(
        "One proposal of moves that balance a cluster, and its execution.",
        {
            "cluster": cluster_reference(elsewhere=False),
            "drain": listed(
                "Brokers to empty, and to cordon when the moves start.", whole("Broker id.", 0), 99
            ),
            "approved": flag("Start the proposed moves.", default=False),
            "stopped": flag("Start no more moves, and cancel those that began.", default=False),
        },
        required=("cluster",),
        rules=[
            ("!oldSelf.approved || self.approved", "a rebalance that was approved ends with stopped: true"),
            ("!oldSelf.stopped || self.stopped", "a stopped rebalance does not continue; create another one"),
        ],
    )


def rebalance_status() -> Schema:
    broker_ids = whole("Broker id.", 0)
    return thing(
        "The proposal and its progress.",
        {
            "observedGeneration": long("Generation of the spec that this status describes.", 0),
            "conditions": conditions(),
            "state": choice("State of the rebalance.", ("Proposed", "Running", "Done", "Stopped")),
            "moveCount": whole("Number of moves.", 0),
            "movesDone": whole("Moves that are complete.", 0),
            "bytesToCopy": long("Bytes that all moves copy.", 0),
            "brokers": listed(
                "Each broker before and after.",
                thing(
                    "One broker.",
                    {
                        "id": broker_ids,
                        "replicas": whole("Replicas before.", 0),
                        "replicasAfter": whole("Replicas after.", 0),
                        "leaders": whole("Preferred leaderships before.", 0),
                        "leadersAfter": whole("Preferred leaderships after.", 0),
                        "bytes": long("Bytes before.", 0),
                        "bytesAfter": long("Bytes after.", 0),
                    },
                    required=("id",),
                ),
                999,
            ),
            "moves": listed(
                "All moves.",
                thing(
                    "One partition.",
                    {
                        "topic": text("Name of the topic.", maxLength=249),
                        "partition": whole("Partition number.", 0),
                        "from": listed("Replicas before.", broker_ids, 99),
                        "to": listed("Replicas after, the preferred leader first.", broker_ids, 99),
                        "bytes": long("Bytes of one replica.", 0),
                    },
                    required=("topic", "partition", "from", "to"),
                ),
                MOVED_MAX,
            ),
        },
    )
