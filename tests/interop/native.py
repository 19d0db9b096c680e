"""The native protocol by hand: raw batches in and out over gRPC, with nothing between the test and the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from interop.clients import TIMEOUT_S
from interop.target import Target
from ottla_core.pb import broker_pb2 as pb
from ottla_core.pb.broker_pb2_grpc import LogStub
from ottla_core.records.batch import complete_batches

MESSAGE_BYTES_MAX = 64 * 1024 * 1024


@contextmanager
def log_service(target: Target) -> Iterator[LogStub]:
    if target.grpc is None:
        pytest.skip("Apache Kafka does not speak the native protocol")
    limit = ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX)
    with grpc.insecure_channel(target.grpc, options=[limit]) as channel:
        yield LogStub(channel)


def fetch_batches(target: Target, topic: str, end_offset: int) -> list[bytes]:
    """Every batch of partition 0 as it comes over the wire, up to an offset."""
    found: list[bytes] = []
    at = 0
    with log_service(target) as log:
        while at < end_offset:
            wanted = pb.FetchPartition(
                topic=topic, partition=0, offset=at, max_bytes=1 << 20, leader_epoch=-1
            )
            request = pb.FetchRequest(partitions=[wanted], max_wait_ms=1000, min_bytes=1, max_bytes=1 << 20)
            response = next(log.Fetch(iter([request]), timeout=TIMEOUT_S))
            assert not response.HasField("error"), response.error
            (part,) = response.partitions
            assert not part.HasField("error"), part.error
            assert part.high_watermark == end_offset
            for position, header in complete_batches(part.records):
                found.append(part.records[position : position + header.size])
                at = header.next_offset
    return found


def produce_batches(target: Target, topic: str, records: bytes) -> int:
    """Write whole batches to partition 0 with acks=all; gives the base offset."""
    with log_service(target) as log:
        part = pb.PartitionRecords(topic=topic, partition=0, records=records)
        request = pb.ProduceRequest(correlation=1, acks=-1, timeout_ms=10_000, partitions=[part])
        response = next(log.Produce(iter([request]), timeout=TIMEOUT_S))
        assert not response.HasField("error"), response.error
        (produced,) = response.partitions
        assert not produced.HasField("error"), produced.error
        return int(produced.base_offset)
