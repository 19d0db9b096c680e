"""Options: understood as Spark's Kafka connector does, refused with a sentence."""

from __future__ import annotations

import pytest

from ottla_core.ids import TopicPartition
from pyspark_ottla.options import OptionProblem, read_options, write_options

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
        ({"kafka.group.id": "g"}, "no option kafka.group.id for reading"),
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
    with pytest.raises(OptionProblem, match=r"kafka\.acks takes all or -1; got '1'"):
        write_options({"bootstrap.servers": "h:1", "kafka.acks": "1"})
