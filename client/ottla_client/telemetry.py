"""OpenTelemetry for clients: traces through record headers, and metrics. Needs `opentelemetry-api`. [A]

    tracing = Tracing()
    producer = Producer(address, interceptors=[tracing.producer])
    consumer = Consumer(address, interceptors=[tracing.consumer])
    for record in await consumer.poll():
        with tracing.processing(record):
            ...
    export_metrics(consumer, group="billing")

A span and its headers follow the semantic conventions for messaging. The client itself does not import this module,
and without an SDK that the program configures, OpenTelemetry does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.trace import Link, SpanKind, Tracer

from ottla_client.interceptors import ConsumerInterceptor, ProducerInterceptor
from ottla_client.record import ConsumerRecord, Headers, ProducerRecord

_SCOPE = "ottla_client"
_SYSTEM = {"messaging.system": "kafka"}
#: Spans of records that one poll returns name at most so many senders.
_LINKS_MAX = 128


class _HeaderGetter:
    """Reads a context from record headers; the last header of a name counts, as for Kafka's instrumentations."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        found = [value for name, value in carrier if name.lower() == key and value is not None]
        return [found[-1].decode("utf-8", "replace")] if found else None

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


class _HeaderSetter:
    def set(self, carrier: list[tuple[str, bytes | None]], key: str, value: str) -> None:
        carrier.append((key, value.encode()))


_GETTER: Any = _HeaderGetter()
_SETTER: Any = _HeaderSetter()


def context_of(record: ConsumerRecord[Any, Any]) -> Context:
    """The trace context that the producer of the record has put into its headers."""
    return propagate.extract(record.headers, getter=_GETTER)


class _Sending(ProducerInterceptor):
    """A span for each record, whose context goes into the record's headers."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        attributes: dict[str, Any] = {
            **_SYSTEM,
            "messaging.operation.type": "send",
            "messaging.destination.name": record.topic,
        }
        span = self._tracer.start_span(f"send {record.topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        headers = [*record.headers]
        propagate.inject(headers, context=trace.set_span_in_context(span), setter=_SETTER)
        span.end()
        return replace(record, headers=headers)


class _Receiving(ConsumerInterceptor):
    """A span for each poll that returns records, linked to the spans of their senders."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        contexts = (
            trace.get_current_span(context_of(each)).get_span_context() for each in records[:_LINKS_MAX]
        )
        topics = sorted({record.topic for record in records})
        attributes: dict[str, Any] = {
            **_SYSTEM,
            "messaging.operation.type": "receive",
            "messaging.destination.name": ",".join(topics),
            "messaging.batch.message_count": len(records),
        }
        self._tracer.start_span(
            f"poll {','.join(topics)}",
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(context) for context in contexts if context.is_valid],
        ).end()
        return records


class Tracing:
    """Interceptors for producers and consumers, and spans around the processing of records."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = trace.get_tracer(_SCOPE) if tracer is None else tracer
        self.producer: ProducerInterceptor = _Sending(self._tracer)
        self.consumer: ConsumerInterceptor = _Receiving(self._tracer)

    @contextmanager
    def processing(self, record: ConsumerRecord[Any, Any]) -> Iterator[trace.Span]:
        """A span around the processing of one record, as a child of its sender's. An exception is recorded."""
        attributes: dict[str, Any] = {
            **_SYSTEM,
            "messaging.operation.type": "process",
            "messaging.destination.name": record.topic,
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
        }
        with self._tracer.start_as_current_span(
            f"process {record.topic}",
            context=context_of(record),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
        ) as span:
            yield span


class Measured(Protocol):
    """A producer or consumer, async or blocking."""

    def metrics(self) -> dict[str, float]: ...


def export_metrics(client: Measured, meter: Meter | None = None, **attributes: str) -> None:
    """Export the client's metrics as `ottla.client.*`: counters for what ends in `_total`, gauges for the rest.

    Call it after the start. `attributes` tell several clients of a process apart.
    """
    meter = metrics.get_meter(_SCOPE) if meter is None else meter
    for name in client.metrics():
        is_counter = name.endswith("_total")
        create: Callable[..., Any] = (
            meter.create_observable_counter if is_counter else meter.create_observable_gauge
        )
        create(f"ottla.client.{name.removesuffix('_total')}", callbacks=_callbacks(client, name, attributes))


def _callbacks(
    client: Measured, name: str, attributes: dict[str, str]
) -> Sequence[Callable[[CallbackOptions], Iterable[Observation]]]:
    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        yield Observation(client.metrics()[name], attributes)

    return [observe]
