"""DescribeLogDirs (35), versions 1-5: contents of this broker's log directories. Used by `kafka-log-dirs`. [S]

Null topics ask for everything. Every directory is in the answer, also one without any of the partitions asked for; one
that is offline has an error and nothing else. The lag of a replica counts committed records that it lacks. Copies on
the way to another directory have `is_future_key`. There are no cordoned directories.

Versions: 2 is flexible; 3 has an error of its own; 4 adds the free space of the volume (KIP-827); 5 knows cordoned
ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from typing import Any

from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.service.log_dirs import DescribedDir
from ottla_core.errors import RequestError

READ_ONLY = True


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    asked = request.fields()["topics"]
    wanted = None if asked is None else {topic["topic"]: frozenset(topic["partitions"]) for topic in asked}
    return _describe(context, wanted)


async def _describe(context: Context, wanted: Mapping[str, Collection[int]] | None) -> Reply:
    try:
        described = await context.services.log_dirs.describe(wanted)
    except RequestError as error:
        return {"error_code": context.failed(error), "results": []}
    return {"results": [_result(context, log_dir) for log_dir in described]}


def _result(context: Context, log_dir: DescribedDir) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for replica in log_dir.replicas:
        topics.setdefault(replica.tp.topic, []).append(
            {
                "partition_index": replica.tp.partition,
                "partition_size": replica.size_bytes,
                "offset_lag": replica.offset_lag,
                "is_future_key": replica.is_future,
            }
        )
    return {
        "error_code": 0 if log_dir.error is None else context.failed(log_dir.error),
        "log_dir": log_dir.path,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        "total_bytes": log_dir.total_bytes,
        "usable_bytes": log_dir.usable_bytes,
    }
