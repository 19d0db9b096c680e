"""The table of topic settings: Kafka's defaults, parsing, refusals that help, and the three levels."""

from __future__ import annotations

import dataclasses

import pytest

from ottla_broker.topic_config import LONG_MAX, TopicConfig, definition, definitions, validate
from ottla_core.errors import InvalidConfig


def test_dataclass_and_table_agree() -> None:
    fields = {f.name: f.default for f in dataclasses.fields(TopicConfig)}
    table = {d.attribute: d.parse(d.default) for d in definitions()}
    assert fields == table
    assert TopicConfig.resolve({}, {}) == TopicConfig()


def test_names_are_unique_sorted_and_documented() -> None:
    names = [d.name for d in definitions()]
    assert names == sorted(set(names))
    assert all(d.documentation.endswith(".") and len(d.documentation) > 20 for d in definitions())
    server_names = [s.name for d in definitions() for s in d.synonyms]
    assert len(server_names) == len(set(server_names))


@pytest.mark.parametrize(
    ("name", "default"),
    [  # as `kafka-configs --describe --all` of Kafka 4 prints them
        ("cleanup.policy", "delete"),
        ("compression.gzip.level", "-1"),
        ("compression.lz4.level", "9"),
        ("compression.type", "producer"),
        ("compression.zstd.level", "3"),
        ("delete.retention.ms", "86400000"),
        ("file.delete.delay.ms", "60000"),
        ("flush.messages", "9223372036854775807"),
        ("flush.ms", "9223372036854775807"),
        ("index.interval.bytes", "4096"),
        ("max.compaction.lag.ms", "9223372036854775807"),
        ("max.message.bytes", "1048588"),
        ("message.timestamp.after.max.ms", "3600000"),
        ("message.timestamp.before.max.ms", "9223372036854775807"),
        ("message.timestamp.type", "CreateTime"),
        ("min.cleanable.dirty.ratio", "0.5"),
        ("min.compaction.lag.ms", "0"),
        ("min.insync.replicas", "1"),
        ("preallocate", "false"),
        ("retention.bytes", "-1"),
        ("retention.ms", "604800000"),
        ("segment.bytes", "1073741824"),
        ("segment.index.bytes", "10485760"),
        ("segment.jitter.ms", "0"),
        ("segment.ms", "604800000"),
        ("unclean.leader.election.enable", "false"),
    ],
)
def test_defaults_are_kafkas(name: str, default: str) -> None:
    assert definition(name).default == default


def test_every_level_counts_in_order() -> None:
    broker = {"log.segment.bytes": "2097152", "log.retention.hours": "2", "message.max.bytes": "99"}
    made = TopicConfig.resolve({"segment.bytes": "1048576"}, broker)
    assert made.segment_bytes == 1 << 20
    assert made.retention_ms == 2 * 3_600_000
    assert made.max_message_bytes == 99
    assert made.index_interval_bytes == 4096


def test_finer_units_of_the_broker_win() -> None:
    broker = {"log.retention.hours": "2", "log.retention.minutes": "3", "log.roll.hours": "1"}
    assert TopicConfig.resolve({}, broker).retention_ms == 180_000
    assert TopicConfig.resolve({}, {**broker, "log.retention.ms": "5"}).retention_ms == 5
    assert TopicConfig.resolve({}, broker).segment_ms == 3_600_000
    assert TopicConfig.resolve({}, {"log.retention.hours": "-1"}).retention_ms == -1
    assert TopicConfig.resolve({}, {"log.retention.hours": str(LONG_MAX)}).retention_ms == LONG_MAX


def test_typed_values() -> None:
    made = TopicConfig.resolve(
        {
            "cleanup.policy": "compact, delete",
            "flush.before.ack": "TRUE",
            "min.cleanable.dirty.ratio": "0.01",
            "message.timestamp.type": "LogAppendTime",
            "compression.gzip.level": "-1",
        },
        {},
    )
    assert made.cleanup_policy == {"compact", "delete"}
    assert made.compacts
    assert made.deletes
    assert made.flush_before_ack is True
    assert made.min_cleanable_dirty_ratio == 0.01
    assert made.uses_append_time
    assert TopicConfig.resolve({"cleanup.policy": ""}, {}).cleanup_policy == frozenset()


def test_a_compacted_segment_does_not_stay_active_beyond_the_lag() -> None:
    values = {"cleanup.policy": "compact", "max.compaction.lag.ms": "1000"}
    assert TopicConfig.resolve(values, {}).roll_after_ms == 1000
    assert TopicConfig.resolve({**values, "cleanup.policy": "delete"}, {}).roll_after_ms == 604_800_000


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("segment.bytes", "1048575", "from 1048576 to 2147483647"),
        ("segment.bytes", "2147483648", "from 1048576 to 2147483647"),
        ("segment.bytes", "1e6", "a whole number"),
        ("segment.bytes", "1_048_576", "a whole number"),
        ("segment.bytes", "٣٣٣٣٣٣٣٣", "a whole number"),
        ("segment.bytes", "9" * 100_000, "a whole number"),
        ("segment.bytes", "", "a whole number"),
        ("retention.ms", "-2", "from -1"),
        ("retention.ms", "9223372036854775808", "to 9223372036854775807"),
        ("segment.ms", "0", "from 1"),
        ("min.cleanable.dirty.ratio", "1.1", "from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "from 0 to 1"),
        ("cleanup.policy", "compress", "compact and delete"),
        ("cleanup.policy", "delete,", "compact and delete"),
        ("flush.before.ack", "yes", "true or false"),
        ("message.timestamp.type", "createtime", "CreateTime, LogAppendTime"),
        ("compression.type", "none", "uncompressed"),
        ("compression.gzip.level", "0", "from 1 to 9 or -1"),
        ("compression.zstd.level", "23", "to 22"),
        ("preallocate", "true", "must be false"),
        ("min.insync.replicas", "0", "from 1"),
    ],
)
def test_bad_values_name_key_value_and_what_is_allowed(name: str, value: str, said: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        validate({name: value})
    message = str(caught.value)
    assert message.startswith(f"{name} cannot be {value!r}")
    assert said in message


def test_a_bad_broker_value_is_named_as_the_broker_names_it() -> None:
    with pytest.raises(InvalidConfig, match=r"^log\.retention\.hours cannot be 'x'"):
        TopicConfig.resolve({}, {"log.retention.hours": "x"})
    with pytest.raises(InvalidConfig, match=r"^message\.max\.bytes cannot be '-7'"):
        TopicConfig.resolve({}, {"message.max.bytes": "-7"})


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(InvalidConfig, match=r"Did you mean retention\.ms"):
        validate({"retention.mss": "1"})
    with pytest.raises(InvalidConfig, match=r"There is no topic setting zzz\.$"):
        TopicConfig.validate({"zzz": "1"})
    with pytest.raises(InvalidConfig, match="no topic setting"):
        TopicConfig.resolve({"log.segment.bytes": "1048576"}, {})


@pytest.mark.parametrize("name", ["remote.storage.enable", "message.format.version", "local.retention.ms"])
def test_what_kafka_has_and_we_do_not_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(InvalidConfig, match="is not supported: "):
        validate({name: "true"})


def test_null_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"segment\.ms has no value"):
        validate({"segment.ms": None})


def test_values_that_contradict_each_other() -> None:
    with pytest.raises(
        InvalidConfig, match=r"min\.compaction\.lag\.ms \(2\).*max\.compaction\.lag\.ms \(1\)"
    ):
        validate({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"})
    with pytest.raises(InvalidConfig, match=r"max\.compaction\.lag\.ms \(5\)"):
        validate({"min.compaction.lag.ms": "9"}, {"log.cleaner.max.compaction.lag.ms": "5"})
    validate({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "2"})
