"""Topic configuration under Kafka's names: one table for parsing, defaults and DescribeConfigs. [P]

Three levels: what a topic sets, what the broker sets under its own older names (`log.retention.hours`), and
Kafka's defaults. `TopicConfig.resolve` folds them into one typed value, which the log and the partition read.

Every accepted setting has an effect. Other settings that Kafka has and Ottla
does not have is refused with the reason, and a misspelt name with the nearest ones: a setting that is silently ignored
is worse than an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from ottla_broker.throttled_replicas import NONE, ThrottledReplicas, throttled_replicas
from ottla_core.errors import InvalidConfig

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_MIB = 1 << 20

DELETE = "delete"
COMPACT = "compact"
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
#: "Keep what the producer chose", in compression.type.
PRODUCER = "producer"


class Synonym(NamedTuple):
    """A broker setting that gives a topic setting its default; `scale` turns its unit into the topic's."""

    name: str
    scale: int = 1


@dataclass(frozen=True, slots=True)
class Definition:
    name: str
    #: Kafka's word for the type: "boolean", "string", "int", "long", "double" or "list".
    type: str
    #: As text, as a client sees it.
    default: str
    documentation: str
    #: Broker settings that fill in, the strongest first.
    synonyms: tuple[Synonym, ...]
    at_least: float | None = None
    at_most: float | None = None
    allowed: tuple[str, ...] = ()
    #: Single values that are fine although out of range (gzip's -1).
    also: tuple[int, ...] = ()

    @property
    def server_default_name(self) -> str | None:
        return self.synonyms[0].name if self.synonyms else None

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_")

    def parse(self, text: str) -> Any:
        """The typed value, or `InvalidConfig` that says what is allowed."""
        return _parse(self, self.name, text)

    def from_server(self, server: Mapping[str, str]) -> tuple[str, str] | None:
        """Which broker setting gives the value, and the value in the topic's unit; None if there is none."""
        for name, scale in self.synonyms:
            text = server.get(name)
            if text is not None:
                return name, text if scale == 1 else _scaled(self, name, text, scale)
        return None


def _log(suffix: str, scale: int = 1) -> Synonym:
    return Synonym("log." + suffix, scale)


def _same(name: str) -> tuple[Synonym, ...]:
    return (Synonym(name),)


def _define(
    name: str,
    kind: str,
    default: str | int | float,
    documentation: str,
    synonyms: Sequence[Synonym] | None = None,
    **limits: Any,
) -> Definition:
    if synonyms is None:
        synonyms = (_log(name),)
    return Definition(name, kind, str(default), documentation, tuple(synonyms), **limits)


_DEFINITIONS: tuple[Definition, ...] = (
    _define(
        "cleanup.policy", "list", DELETE,
        "How old data is removed: 'delete' drops whole segments by time and size, 'compact' keeps the newest "
        "record of each key; both together do both, and an empty list keeps everything.",
        allowed=(COMPACT, DELETE),
    ),
    _define(
        "compression.gzip.level", "int", -1, "Level for compression.type=gzip; -1 is gzip's own default.",
        _same("compression.gzip.level"), at_least=1, at_most=9, also=(-1,),
    ),
    _define(
        "compression.lz4.level", "int", 9, "Level for compression.type=lz4.",
        _same("compression.lz4.level"), at_least=1, at_most=17,
    ),
    _define(
        "compression.type", "string", PRODUCER,
        "The codec batches are stored in. 'producer' keeps each batch as it came, which costs the broker "
        "nothing; any other value makes the broker repack batches that came in another codec.",
        _same("compression.type"),
        allowed=("uncompressed", "zstd", "lz4", "snappy", "gzip", PRODUCER),
    ),
    _define(
        "compression.zstd.level", "int", 3, "Level for compression.type=zstd.",
        _same("compression.zstd.level"), at_least=-131072, at_most=22,
    ),
    _define(
        "delete.retention.ms", "long", _DAY_MS,
        "How long compaction keeps a tombstone (a record without a value) after it has removed what the "
        "tombstone deletes. A reader that starts at the beginning has this long to see it.",
        (_log("cleaner.delete.retention.ms"),), at_least=0,
    ),
    _define(
        "file.delete.delay.ms", "long", 60_000, "How long files of removed segments stay on disk, renamed.",
        (_log("segment.delete.delay.ms"),), at_least=0,
    ),
    _define(
        "flush.before.ack", "boolean", "false",
        "Specific to Ottla: acknowledge a write only after fsync. Writers that wait at the same time share one "
        "fsync. See docs/durability.md for what each flush setting survives.",
    ),
    _define(
        "flush.messages", "long", LONG_MAX,
        "fsync the log after this many records; 1 means after every write. The default leaves it to the "
        "operating system and to replication.",
        (_log("flush.interval.messages"),), at_least=1,
    ),
    _define(
        "flush.ms", "long", LONG_MAX, "fsync the log when the oldest unsynced record is this old.",
        (_log("flush.interval.ms"), _log("flush.scheduler.interval.ms")), at_least=0,
    ),
    _define(
        "follower.replication.throttled.replicas", "list", "",
        "Replicas that copy at follower.replication.throttled.rate while they are not in sync: '*', or a list of "
        "partition:broker with the brokers that copy.",
        (),
    ),
    _define(
        "index.interval.bytes", "int", 4096,
        "Bytes of log between two index entries: more makes indexes smaller and look-ups read further.",
        at_least=0,
    ),
    _define(
        "leader.replication.throttled.replicas", "list", "",
        "Replicas whose leader sends at leader.replication.throttled.rate to followers that are not in sync: '*', or "
        "a list of partition:broker with the brokers that lead.",
        (),
    ),
    _define(
        "max.compaction.lag.ms", "long", LONG_MAX,
        "A record is compacted at the latest this long after it was written, however clean the rest is.",
        (_log("cleaner.max.compaction.lag.ms"),), at_least=1,
    ),
    _define(
        "max.message.bytes", "int", _MIB + 12,
        "The largest record batch that is accepted, as sent (compressed).",
        _same("message.max.bytes"), at_least=0,
    ),
    _define(
        "message.timestamp.after.max.ms", "long", _HOUR_MS,
        "How far a record's timestamp may be ahead of the broker's clock. Not used with LogAppendTime.",
        at_least=0,
    ),
    _define(
        "message.timestamp.before.max.ms", "long", LONG_MAX,
        "How far a record's timestamp may be behind the broker's clock. Not used with LogAppendTime.",
        at_least=0,
    ),
    _define(
        "message.timestamp.type", "string", CREATE_TIME,
        "Whose clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime).",
        allowed=(CREATE_TIME, LOG_APPEND_TIME),
    ),
    _define(
        "min.cleanable.dirty.ratio", "double", 0.5,
        "Compaction starts when this share of the log has not been compacted yet. Lower wastes less space "
        "and copies more often.",
        (_log("cleaner.min.cleanable.ratio"),), at_least=0, at_most=1,
    ),
    _define(
        "min.compaction.lag.ms", "long", 0, "A record younger than this is never compacted away.",
        (_log("cleaner.min.compaction.lag.ms"),), at_least=0,
    ),
    _define(
        "min.insync.replicas", "int", 1,
        "Replicas that must have a write before acks=all acknowledges it; with fewer in sync it is refused.",
        _same("min.insync.replicas"), at_least=1,
    ),
    _define(
        "preallocate", "boolean", "false",
        "Create segment files at full size. Only 'false' is accepted: segments grow as they are written.",
        allowed=("false",),
    ),
    _define(
        "retention.bytes", "long", -1,
        "The oldest segments are deleted while a partition is larger than this. -1: no limit.",
        at_least=-1,
    ),
    _define(
        "retention.ms", "long", 7 * _DAY_MS,
        "A segment is deleted when its newest record is older than this. -1: no limit.",
        (_log("retention.ms"), _log("retention.minutes", 60_000), _log("retention.hours", _HOUR_MS)),
        at_least=-1,
    ),
    _define(
        "segment.bytes", "int", 1 << 30,
        "Size at which a new segment file begins. Retention deletes whole segments, so "
        "smaller ones make it finer.",
        at_least=_MIB,
    ),
    _define(
        "segment.index.bytes", "int", 10 * _MIB,
        "Largest size of an index; a full index begins a new segment.",
        (_log("index.size.max.bytes"),), at_least=4,
    ),
    _define(
        "segment.jitter.ms", "long", 0,
        "Up to this much is taken off segment.ms, differently per segment, so that not all partitions "
        "roll at once.",
        (_log("roll.jitter.ms"), _log("roll.jitter.hours", _HOUR_MS)), at_least=0,
    ),
    _define(
        "segment.ms", "long", 7 * _DAY_MS,
        "A new segment begins when the current one is this old, even if it is not full.",
        (_log("roll.ms"), _log("roll.hours", _HOUR_MS)), at_least=1,
    ),
    _define(
        "unclean.leader.election.enable", "boolean", "false",
        "Whether a replica that may lack acknowledged records can become leader when no other replica is left.",
        _same("unclean.leader.election.enable"),
    ),
    _define(
        "validate.compressed", "boolean", "true",
        "Specific to Ottla: decompress each compressed batch and check its records before writing it, as Kafka does. "
        "'false' saves that CPU and checks the header only: a faulty producer can then write a batch that stops "
        "every reader of its partition. Uncompressed batches are always checked, and compacted topics check all.",
    ),
)  # fmt: skip

_BY_NAME: Mapping[str, Definition] = MappingProxyType({d.name: d for d in _DEFINITIONS})

_TIERED = "there is no tiered storage"
_OLD_FORMAT = "only record batch format v2 is stored and served"
#: Names that Kafka has or had, and why they are refused.
_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "remote.storage.enable": _TIERED,
        "remote.log.copy.disable": _TIERED,
        "remote.log.delete.on.disable": _TIERED,
        "remote.copy.lag.ms": _TIERED,
        "remote.copy.lag.bytes": _TIERED,
        "local.retention.ms": _TIERED,
        "local.retention.bytes": _TIERED,
        "message.format.version": _OLD_FORMAT,
        "message.downconversion.enable": _OLD_FORMAT,
        "message.timestamp.difference.max.ms": (
            "Kafka 4 replaced it by message.timestamp.before.max.ms and message.timestamp.after.max.ms"
        ),
    }
)


def definitions() -> tuple[Definition, ...]:
    """All topic settings, by name."""
    return _DEFINITIONS


def definition(name: str) -> Definition:
    """One setting; `InvalidConfig` with a hint if there is none of this name."""
    found = _BY_NAME.get(name)
    if found is not None:
        return found
    if name in _REFUSED:
        raise InvalidConfig(f"Topic setting {name} is not supported: {_REFUSED[name]}.")
    raise no_such_setting("topic", name, _BY_NAME)


def no_such_setting(kind: str, name: str, known: Mapping[str, Definition]) -> InvalidConfig:
    """With a hint at what is close to it."""
    from difflib import get_close_matches  # only on the way to an error message: 8 ms of imports

    near = get_close_matches(name, known, n=3, cutoff=0.6)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return InvalidConfig(f"There is no {kind} setting {name}.{hint}")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The effective configuration of one topic. Made by `resolve`; `TopicConfig()` has Kafka's defaults.

    Built directly it is not validated: tests make segments of a few hundred bytes that way.
    """

    cleanup_policy: frozenset[str] = frozenset({DELETE})
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_type: str = PRODUCER
    compression_zstd_level: int = 3
    delete_retention_ms: int = _DAY_MS
    file_delete_delay_ms: int = 60_000
    flush_before_ack: bool = False
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    follower_replication_throttled_replicas: ThrottledReplicas = NONE
    index_interval_bytes: int = 4096
    leader_replication_throttled_replicas: ThrottledReplicas = NONE
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = _MIB + 12
    message_timestamp_after_max_ms: int = _HOUR_MS
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: str = CREATE_TIME
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    retention_bytes: int = -1
    retention_ms: int = 7 * _DAY_MS
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 * _MIB
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * _DAY_MS
    unclean_leader_election_enable: bool = False
    validate_compressed: bool = True

    @property
    def compacts(self) -> bool:
        return COMPACT in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return DELETE in self.cleanup_policy

    @property
    def uses_append_time(self) -> bool:
        return self.message_timestamp_type == LOG_APPEND_TIME

    @property
    def roll_after_ms(self) -> int:
        """Age at which a segment is rolled. The active segment is never compacted, so max.compaction.lag.ms
        could not be kept if a segment were allowed to stay active for longer."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms

    @classmethod
    def resolve(cls, overrides: Mapping[str, str], broker_defaults: Mapping[str, str]) -> TopicConfig:
        """What counts: the topic's own settings, else the broker's (under its names), else Kafka's."""
        made = cls(**{d.attribute: value for d, value in _effective(overrides, broker_defaults)})
        _check_together(made)
        return made

    @staticmethod
    def validate(
        overrides: Mapping[str, str | None], broker_defaults: Mapping[str, str] | None = None
    ) -> None:
        """Raise `InvalidConfig` for an unknown name, a bad value, or values that contradict each other."""
        validate(overrides, broker_defaults)


def validate(overrides: Mapping[str, str | None], broker_defaults: Mapping[str, str] | None = None) -> None:
    checked: dict[str, str] = {}
    for name, text in overrides.items():
        setting = definition(name)
        if text is None:
            raise InvalidConfig(f"{name} has no value; leave it out to get the default, {setting.default!r}.")
        setting.parse(text)
        checked[name] = text
    TopicConfig.resolve(checked, broker_defaults or {})


def _effective(
    overrides: Mapping[str, str], broker_defaults: Mapping[str, str]
) -> list[tuple[Definition, Any]]:
    for name in overrides:
        definition(name)
    values: list[tuple[Definition, Any]] = []
    for setting in _DEFINITIONS:
        text = overrides.get(setting.name)
        if text is not None:
            values.append((setting, setting.parse(text)))
        elif (found := setting.from_server(broker_defaults)) is not None:
            values.append((setting, _parse(setting, *found)))
        else:
            values.append((setting, _default_value(setting.name)))
    return values


@cache
def _default_value(name: str) -> Any:
    setting = _BY_NAME[name]
    return setting.parse(setting.default)


def _check_together(config: TopicConfig) -> None:
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidConfig(
            f"min.compaction.lag.ms ({config.min_compaction_lag_ms}) must not be greater than "
            f"max.compaction.lag.ms ({config.max_compaction_lag_ms})."
        )


def _scaled(setting: Definition, name: str, text: str, scale: int) -> str:
    count = _whole_number(setting, name, text)
    # A negative limit means "none" in every unit; hours of -1 must not become -3,600,000 ms.
    return str(count if count < 0 else min(count * scale, LONG_MAX))


def _refuse(setting: Definition, name: str, text: str) -> InvalidConfig:
    return InvalidConfig(f"{name} cannot be {text!r}: it must be {_what_is_allowed(setting)}.")


def _what_is_allowed(setting: Definition) -> str:
    also = "".join(f" or {n}" for n in setting.also)
    if setting.type == "list":
        return f"a list, separated by commas, of {' and '.join(setting.allowed)}"
    if setting.allowed:
        return "one of " + ", ".join(setting.allowed) if len(setting.allowed) > 1 else setting.allowed[0]
    if setting.type == "boolean":
        return "true or false"
    low, high = _range(setting)
    kind = "a number" if setting.type == "double" else "a whole number"
    return f"{kind} from {low} to {high}{also}"


def _range(setting: Definition) -> tuple[float, float]:
    widest = {"int": INT_MAX, "long": LONG_MAX}.get(setting.type, math.inf)
    low = -widest - 1 if setting.at_least is None else setting.at_least
    return low, widest if setting.at_most is None else setting.at_most


def _whole_number(setting: Definition, name: str, text: str) -> int:
    trimmed = text.strip()
    digits = trimmed[1:] if trimmed[:1] in ("-", "+") else trimmed
    # int() alone would also take "1_000" and other scripts' digits, which no Kafka tool reads back. The
    # length is bounded because int() of a long string takes quadratic time.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        raise _refuse(setting, name, text)
    return int(trimmed)


def _parse_number(setting: Definition, name: str, text: str) -> int:
    value = _whole_number(setting, name, text)
    low, high = _range(setting)
    if not low <= value <= high and value not in setting.also:
        raise _refuse(setting, name, text)
    return value


def _parse_double(setting: Definition, name: str, text: str) -> float:
    low, high = _range(setting)
    try:
        value = float(text)
    except ValueError:
        raise _refuse(setting, name, text) from None
    if not low <= value <= high:  # also false for NaN
        raise _refuse(setting, name, text)
    return value


def _parse_boolean(setting: Definition, name: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in (setting.allowed or ("true", "false")):
        raise _refuse(setting, name, text)
    return word == "true"


def _parse_string(setting: Definition, name: str, text: str) -> str:
    word = text.strip()
    if setting.allowed and word not in setting.allowed:
        raise _refuse(setting, name, text)
    return word


def _parse_list(setting: Definition, name: str, text: str) -> frozenset[str] | ThrottledReplicas:
    if not setting.allowed:
        return throttled_replicas(name, text)
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if any(word not in setting.allowed for word in words):
        raise _refuse(setting, name, text)
    return frozenset(words)


_PARSERS: Mapping[str, Callable[[Definition, str, str], Any]] = MappingProxyType(
    {
        "int": _parse_number,
        "long": _parse_number,
        "double": _parse_double,
        "boolean": _parse_boolean,
        "string": _parse_string,
        "list": _parse_list,
    }
)


def _parse(setting: Definition, name: str, text: str) -> Any:
    """`name` is what the user wrote: the topic's or the broker's, so that the error names it."""
    return _PARSERS[setting.type](setting, name, text)
