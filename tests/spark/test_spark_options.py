"""Options: understood as Spark's Kafka connector does, refused with a sentence."""

from __future__ import annotations

import pytest

from ottla_core.ids import TopicPartition
from pyspark_ottla.given import OptionProblem
from pyspark_ottla.options import read_options, write_options
from pyspark_ottla.source import schema_of

BASE = {"bootstrap.servers": "h:1", "subscribe": "t"}


def test_defaults_differ_between_batch_and_streaming() -> None:
    batch, stream = read_options(BASE, streaming=False), read_options(BASE, streaming=True)
    assert (batch.start.everywhere, batch.end.everywhere) == ("earliest", "latest")
    assert stream.start.everywhere == "latest"
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert not batch.read_committed


def test_names_are_found_in_any_case() -> None:
    options = read_options(
        {
            "KAFKA.bootstrap.Servers": "h:1",
            "ASSIGN": '{"t": [1]}',
            "maxoffsetspertrigger": "10",
            "FAILonDATAloss": "FALSE",
        },
        streaming=True,
    )
    assert options.bootstrap == "h:1"
    assert options.topics.assigned == (TopicPartition("t", 1),)
    assert options.max_offsets_per_trigger == 10
    assert not options.fail_on_data_loss


@pytest.mark.parametrize("name", ["client.rack", "kafka.client.rack"])
def test_the_rack_has_both_names(name: str) -> None:
    assert read_options({**BASE, name: "b"}, streaming=False).client_rack == "b"
    assert read_options(BASE, streaming=False).client_rack == ""


def test_times_go_before_offsets() -> None:
    given = {**BASE, "startingOffsets": "earliest", "startingTimestamp": "1700000000000"}
    assert read_options(given, streaming=True).start.timestamp_ms == 1_700_000_000_000
    by_partition = {**BASE, "startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"t": {"0": 5}}'}
    assert read_options(by_partition, streaming=True).start.timestamps_ms == {TopicPartition("t", 0): 5}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"startingOfsets": "earliest"}, "no option startingofsets .*did you mean startingOffsets?"),
        ({"kafka.linger.ms": "5"}, "no option kafka.linger.ms for reading"),
        ({"kafka.auto.offset.reset": "latest"}, "kafka.auto.offset.reset is refused .*: set startingOffsets"),
        ({"kafka.value.deserializer": "x"}, "keys and values are binary"),
        ({"kafka.SSL.truststore.location": "x"}, "to PEM files"),
        ({"minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger is for streaming reads"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay takes a time such as 90s, 15m or 1h; got 'soon'"),
        ({"bootstrap.servers": ""}, "Set the brokers' addresses"),
        ({"kafka.bootstrap.servers": "other:1"}, "name different brokers"),
        ({"subscribe": ""}, "one of subscribe, subscribePattern and assign; none was given"),
        ({"subscribePattern": "t.*"}, "subscribe and subscribePattern were given"),
        ({"subscribe": " , "}, "subscribe takes comma-separated topic names"),
        ({"startingOffsets": "latest"}, "cannot be latest"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "cannot be latest"),
        ({"endingOffsets": "earliest"}, "cannot be earliest"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "startingOffsets takes offsets from 0 on, .*; t-0 has -3"),
        ({"endingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "takes milliseconds since 1970; t-0 has -1"),
        ({"endingOffsets": "tomorrow"}, "endingOffsets takes earliest, latest, or JSON"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp takes milliseconds"),
        ({"minPartitions": "0"}, "minPartitions takes a whole number above 0; got '0'"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streaming reads"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss takes true or false; got 'perhaps'"),
        ({"path": "t"}, "takes no path"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionProblem, match=sentence):
        read_options({**BASE, **changes}, streaming=False)


def test_a_pattern_must_be_one() -> None:
    with pytest.raises(OptionProblem, match="is not a regular expression"):
        read_options({"bootstrap.servers": "h:1", "subscribePattern": "a("}, streaming=True)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(OptionProblem, match="a streaming query has no end"):
        read_options({**BASE, "endingOffsets": "latest"}, streaming=True)


def test_writing_knows_its_own_options() -> None:
    made = write_options(
        {"bootstrap.servers": "h:1", "topic": "t", "compression": "ZSTD", "checkpointLocation": "x"}
    )
    assert (made.topic, made.compression) == ("t", "zstd")
    assert made.max_request_bytes is None
    sized = write_options({"bootstrap.servers": "h:1", "kafka.max.request.size": "5000000"})
    assert sized.max_request_bytes == 5_000_000
    with pytest.raises(OptionProblem, match=r"no option subscribe for writing"):
        write_options(BASE)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kafka.acks": "1"}, r"kafka\.acks takes all"),
        ({"kafka.enable.idempotence": "false"}, "takes true: retries must not write rows twice"),
        ({"kafka.transactional.id": "t"}, "each task has a transaction of its own"),
        ({"kafka.partitioner.class": "t"}, "fill the column partition instead"),
        ({"kafka.partitioner.ignore.keys": "true"}, "takes false: fill the column partition instead"),
        ({"kafka.compression.zstd.level": "9"}, "is refused: set compression; its level is fixed"),
        ({"kafka.max.in.flight.requests.per.connection": "6"}, "takes 1 to 5"),
    ],
)
def test_writing_refuses_with_a_reason(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionProblem, match=sentence):
        write_options({"bootstrap.servers": "h:1", **changes})


def test_settings_of_kafkas_producer_are_understood() -> None:
    made = write_options(
        {
            "bootstrap.servers": "h:1",
            "kafka.acks": "ALL",
            "kafka.linger.ms": "5",
            "kafka.batch.size": "1000",
            "kafka.buffer.memory": "2000",
            "kafka.delivery.timeout.ms": "3000",
            "kafka.max.in.flight.requests.per.connection": "1",
            "kafka.reconnect.backoff.ms": "50",
        }
    )
    assert made.max_in_flight == 1
    assert (made.batch_bytes, made.buffer_bytes, made.delivery_timeout_ms) == (1000, 2000, 3000)


def test_common_settings_of_kafkas_consumer_are_understood() -> None:
    without_effect = {
        "kafka.max.poll.records": "500",
        "kafka.session.timeout.ms": "45000",
        "kafka.heartbeat.interval.ms": "3000",
        "kafka.fetch.min.bytes": "1",
        "kafka.retry.backoff.ms": "100",
        "kafka.check.crcs": "true",
        "kafka.exclude.internal.topics": "TRUE",
        "kafka.allow.auto.create.topics": "false",
        "kafka.ssl.endpoint.identification.algorithm": "https",
    }
    plain = read_options(BASE, streaming=True)
    assert read_options({**BASE, **without_effect}, streaming=True) == plain
    assert (plain.fetch_bytes, plain.request_timeout_ms) == (4 * 1024 * 1024, 30_000)
    both = {"kafka.fetch.max.bytes": "52428800", "kafka.max.partition.fetch.bytes": "1048576"}
    made = read_options({**BASE, **both, "kafka.request.timeout.ms": "5000"}, streaming=True)
    assert (made.fetch_bytes, made.request_timeout_ms) == (1_048_576, 5000)
    huge = read_options({**BASE, "kafka.fetch.max.bytes": str(1 << 31)}, streaming=True)
    assert huge.fetch_bytes == 64 * 1024 * 1024, "a task must hold two of them"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kafka.exclude.internal.topics": "false"}, "takes true: patterns name no internal topics"),
        ({"kafka.check.crcs": "false"}, "takes true: the CRC of every batch is checked"),
        ({"kafka.allow.auto.create.topics": "true"}, "takes false: a query creates no topics"),
        (
            {"kafka.ssl.endpoint.identification.algorithm": ""},
            "takes https: the name in a broker's certificate",
        ),
        ({"kafka.default.api.timeout.ms": "1"}, "set kafka.request.timeout.ms"),
        ({"kafka.metric.reporters": "x"}, "names Java classes"),
        ({"kafka.sasl.jaas.config": "x"}, "set kafka.sasl.mechanism with kafka.sasl.username"),
        ({"kafka.ssl.keystore.location": "x"}, "to PEM files"),
    ],
)
def test_other_settings_of_kafkas_consumer_are_refused_with_a_reason(
    changes: dict[str, str], sentence: str
) -> None:
    with pytest.raises(OptionProblem, match=sentence):
        read_options({**BASE, **changes}, streaming=True)


def test_the_connectors_options_for_reading_are_accepted() -> None:
    made = read_options(
        {
            **BASE,
            "minOffsetsPerTrigger": "7",
            "maxOffsetsPerTrigger": "9",
            "maxTriggerDelay": "90s",
            "groupIdPrefix": "spark",
            "kafka.group.id": "g",
            "kafka.client.rack": "r",
            "fetchOffset.numRetries": "3",
            "fetchOffset.retryIntervalMs": "10",
            "kafkaConsumer.pollTimeoutMs": "5000",
        },
        streaming=True,
    )
    assert (made.min_offsets_per_trigger, made.max_trigger_delay_s, made.fetch_timeout_s) == (7, 90, 5)
    assert read_options(BASE, streaming=True).max_trigger_delay_s == 15 * 60
    with pytest.raises(OptionProblem, match="minOffsetsPerTrigger, 9, is above maxOffsetsPerTrigger, 7"):
        read_options({**BASE, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "7"}, streaming=True)


def test_the_columns_are_those_of_sparks_connector() -> None:
    plain = "key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int"
    assert schema_of(with_headers=False).simpleString() == f"struct<{plain}>"
    headers = "headers:array<struct<key:string,value:binary>>"
    assert schema_of(with_headers=True).simpleString() == f"struct<{plain},{headers}>"


def test_a_batch_write_may_name_its_sink_and_batch() -> None:
    base = {"bootstrap.servers": "h:1", "topic": "t"}
    assert write_options(base).place is None
    assert write_options({**base, "sinkId": "counts", "batchId": "0"}).place == ("counts", 0)


@pytest.mark.parametrize(
    ("given", "streaming", "sentence"),
    [
        ({"sinkId": "a"}, False, "sinkId and batchId go together"),
        ({"batchId": "1"}, False, "sinkId and batchId go together"),
        ({"sinkId": "a", "batchId": "1"}, True, "are for batch writes"),
        ({"sinkId": "a b", "batchId": "1"}, False, "takes up to 100 letters"),
        ({"sinkId": "a", "batchId": "-1"}, False, "batchId takes a whole number"),
        (
            {"sinkId": "a", "batchId": "1", "deliveryGuarantee": "at-least-once"},
            False,
            "need deliveryGuarantee",
        ),
    ],
)
def test_a_wrong_sink_is_refused(given: dict[str, str], streaming: bool, sentence: str) -> None:
    with pytest.raises(OptionProblem, match=sentence):
        write_options({"bootstrap.servers": "h:1", "topic": "t", **given}, streaming=streaming)
