"""Metrics of producers and consumers, and OpenTelemetry's traces through record headers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from client.fake_services import FakeCluster
from ottla_client import Consumer, Producer, RequestError, TopicPartition
from ottla_client.telemetry import Tracing, export_metrics
from ottla_core.errors import MessageTooLarge

T0 = TopicPartition("t", 0)


async def test_producers_count_what_they_sent_and_what_failed() -> None:
    async with FakeCluster() as cluster, Producer(cluster.address, retry_backoff_ms=1) as producer:
        cluster.add_topic("t")
        await producer.send_many("t", [b"12345"] * 10)
        await producer.flush()
        found = producer.metrics()
        assert (found["records_sent_total"], found["records_failed_total"]) == (10, 0)
        assert found["bytes_sent_total"] >= 50 and found["batches_sent_total"] >= 1
        assert found["buffer_used_bytes"] == found["unsettled_batches"] == 0
        cluster.refusals.append(MessageTooLarge("on purpose"))
        with pytest.raises(RequestError):
            await producer.send_and_wait("t", b"large")
        assert producer.metrics()["records_failed_total"] == 1
        assert producer.metrics()["records_sent_total"] == 10


async def test_consumers_know_their_lag() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        async with Producer(cluster.address) as producer:
            await producer.send_many("t", [b"x"] * 10)
        async with Consumer(cluster.address, auto_offset_reset="earliest") as consumer:
            consumer.assign([T0])
            assert consumer.metrics()["records_lag"] == 0
            assert len(await consumer.poll(5000, max_records=4)) == 4
            found = consumer.metrics()
            assert (found["records_read_total"], found["records_lag"], found["records_lag_max"]) == (4, 6, 6)
            assert found["assigned_partitions"] == 1 and found["bytes_read_total"] > 10


async def test_a_trace_goes_from_sender_to_processing() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(provider.get_tracer("test"))
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        async with Producer(cluster.address, interceptors=[tracing.producer]) as producer:
            await producer.send_and_wait("t", b"x", headers=[("mine", b"1")])
        async with Consumer(
            cluster.address, auto_offset_reset="earliest", interceptors=[tracing.consumer]
        ) as consumer:
            consumer.assign([T0])
            (record,) = await consumer.poll(5000)
            with tracing.processing(record):
                pass
    sent, polled, processed = exporter.get_finished_spans()
    assert [each.name for each in (sent, polled, processed)] == ["send t", "poll t", "process t"]
    assert dict(record.headers)["mine"] == b"1" and "traceparent" in dict(record.headers)
    assert processed.parent is not None and processed.parent.span_id == sent.context.span_id
    assert processed.context.trace_id == sent.context.trace_id
    assert [link.context.span_id for link in polled.links] == [sent.context.span_id]
    provider.shutdown()


async def test_metrics_reach_an_opentelemetry_reader() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    async with FakeCluster() as cluster, Producer(cluster.address) as producer:
        cluster.add_topic("t")
        export_metrics(producer, provider.get_meter("test"), service="billing")
        await producer.send_and_wait("t", b"x")
        data = reader.get_metrics_data()
        assert data is not None
        (points,) = [
            metric.data.data_points
            for metric in data.resource_metrics[0].scope_metrics[0].metrics
            if metric.name == "ottla.client.records_sent"
        ]
        assert [(point.value, dict(point.attributes or {})) for point in points] == [
            (1, {"service": "billing"})
        ]
    provider.shutdown()


def test_the_client_does_not_need_opentelemetry() -> None:
    program = "import sys; sys.modules['opentelemetry'] = None; import ottla_client.sync"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
