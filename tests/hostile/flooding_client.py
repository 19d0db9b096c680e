"""A client that pipelines requests as fast as the broker takes them: `python -m hostile.flooding_client …`."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from datetime import timedelta

from kio.static.primitive import i8, i32, i64

from broker.edge.kafka_peer import request_frame

TOPIC = "many"
#: Sent at a time.
BLOCK_BYTES = 1 << 18


def list_offsets(partitions: int) -> bytes:
    from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsTopic

    wanted = tuple(
        ListOffsetsPartition(partition_index=i32(i), current_leader_epoch=i32(-1), timestamp=i64(-1))
        for i in range(partitions)
    )
    topics = (ListOffsetsTopic(name=TOPIC, partitions=wanted),)
    return request_frame(2, 7, 1, {"replica_id": i32(-1), "isolation_level": i8(0), "topics": topics})


def fetch(partitions: int, *, max_bytes: int = 1) -> bytes:
    from kio.schema.fetch.v11.request import FetchPartition, FetchTopic

    wanted = tuple(
        FetchPartition(
            partition=i32(i),
            current_leader_epoch=i32(-1),
            fetch_offset=i64(0),
            log_start_offset=i64(-1),
            partition_max_bytes=i32(max_bytes),
        )
        for i in range(partitions)
    )
    fields = {
        "replica_id": i32(-1),
        "max_wait": timedelta(0),
        "min_bytes": i32(0),
        "max_bytes": i32(max_bytes),
        "isolation_level": i8(0),
        "session_id": i32(0),
        "session_epoch": i32(-1),
        "topics": (FetchTopic(topic=TOPIC, partitions=wanted),),
        "forgotten_topics_data": (),
        "rack_id": "",
    }
    return request_frame(1, 11, 1, fields)


def metadata(_partitions: int) -> bytes:
    return request_frame(3, 1, 1, {"topics": ()})


def main() -> None:
    address, kind, seconds, partitions = sys.argv[1:]
    host, _, port = address.rpartition(":")
    frame = {"list_offsets": list_offsets, "fetch": fetch, "metadata": metadata}[kind](int(partitions))
    block = frame * max(1, BLOCK_BYTES // len(frame))
    peer = socket.create_connection((host, int(port)))

    def drain() -> None:
        with contextlib.suppress(OSError):
            while peer.recv(1 << 20):
                pass

    threading.Thread(target=drain, daemon=True).start()
    print("flooding", flush=True)
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        peer.sendall(block)


if __name__ == "__main__":
    main()
