"""The settings of a broker: precedence, refusals that name the remedy, and the shape of the whole table."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from ottla_broker import config as config_module
from ottla_broker.config import SETTINGS, TOPIC_DEFAULT_NAMES, BrokerConfig, resolve
from ottla_broker.config_sources import read_file, variable_of
from ottla_broker.setting import Address, ConfigError, Listener, settings_in

FILE = 'num.partitions = 3\n"log.level" = "debug"\n[log]\nretention.ms = 1000\n'


def test_flag_beats_variable_beats_file_beats_default() -> None:
    variables = {"OTTLA_NUM_PARTITIONS": "5", "OTTLA_LOG_LEVEL": "error"}
    resolved = resolve({"num.partitions": "7"}, variables, FILE)

    assert resolved.config.topics.partitions == 7
    assert resolved.config.process.log_level == "error"
    assert resolved.config.topics.replication_factor == 1
    assert resolved.config.topic_defaults == {"log.retention.ms": "1000"}
    assert {name: resolved.sources[name].source for name in ("num.partitions", "log.level", "broker.id")} == {
        "num.partitions": "flag",
        "log.level": "variable OTTLA_LOG_LEVEL",
        "broker.id": "default",
    }
    assert resolved.sources["log.retention.ms"].source == "file ottla.toml"
    assert resolved.config.static == {"num.partitions": "7", "log.level": "error", "log.retention.ms": "1000"}


def test_kafka_style_properties_are_read() -> None:
    text = "# a comment\n\nnum.partitions = 2\nlog.dirs=/a,/b\n"
    config = resolve({}, {}, text, file_name="server.properties").config
    assert config.topics.partitions == 2
    assert config.log_dirs.dirs == ("/a", "/b")


@pytest.mark.parametrize(
    ("flags", "file_text", "parts"),
    [
        ({"num.partition": "1"}, None, ["no setting 'num.partition'", "did you mean num.partitions?"]),
        (
            {"num.partitions": "none"},
            None,
            ["num.partitions = 'none'", "from flag", "a whole number, at least 1"],
        ),
        ({"num.partitions": "0"}, None, ["at least 1"]),
        ({"auto.create.topics.enable": "yes"}, None, ["true or false"]),
        ({"log.format": "xml"}, None, ["one of console, json"]),
        ({"kafka.listener": "9092"}, None, ["host:port"]),
        ({"kafka.listener": "h:99999"}, None, ["host:port"]),
        ({"etcd.endpoints": "h:1,,h:2"}, None, ["host:port, separated by commas"]),
        ({"log.dirs": "/a,/a"}, None, ["different values"]),
        ({"cluster.name": "a/b"}, None, ["cluster.name"]),
        ({"kafka.listener": "0.0.0.0:9092"}, None, ["kafka.advertised must be set"]),
        (
            {"internal.listener": "0.0.0.0:9392"},
            None,
            ["internal.advertised must be set", "other brokers can reach"],
        ),
        (
            {"internal.listener": "127.0.0.1:9192"},
            None,
            ["internal.listener and grpc.listener cannot both be"],
        ),
        ({"grpc.listener": "127.0.0.1:9092"}, None, ["grpc.listener and kafka.listener cannot both be"]),
        ({"queued.max.request.bytes": "1048576"}, None, ["must be at least socket.request.max.bytes"]),
        ({"broker.heartbeat.interval.ms": "6000"}, None, ["at most half of broker.session.timeout.ms"]),
        ({"log.segment.bytes": "1"}, None, ["log.segment.bytes cannot be '1'", "a whole number from"]),
        ({}, "num.partitions", ["ottla.toml is not valid TOML"]),
        ({}, "num.partitions = 1979-05-27", ["num.partitions in ottla.toml must be text"]),
        ({}, "nums.partitions = 1", ["in ottla.toml", "did you mean num.partitions?"]),
        ({}, '"num.partitions" = 1\n[num]\npartitions = 2', ["sets num.partitions twice"]),
    ],
)
def test_a_refusal_is_one_sentence_that_says_what_is_allowed(
    flags: dict[str, str], file_text: str | None, parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(flags, {}, file_text)
    message = str(refused.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_a_properties_line_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Line 2 of a\.properties is not key=value"):
        resolve({}, {}, "num.partitions=1\nnonsense", file_name="a.properties")


def test_foreign_variables_warn_and_kubernetes_service_links_do_not() -> None:
    resolved = resolve(
        {},
        {
            "OTTLA_NUM_PARTITION": "3",
            "OTTLA_SERVICE_HOST": "10.0.0.1",
            "OTTLA_KAFKA_PORT_9092_TCP_ADDR": "10.0.0.1",
            "OTTLA_CONFIG": "/etc/ottla.toml",
            "PATH": "/bin",
        },
        None,
    )
    assert resolved.config == BrokerConfig()
    assert resolved.warnings == (
        "The variable OTTLA_NUM_PARTITION matches no setting; did you mean OTTLA_NUM_PARTITIONS?",
    )


def test_listeners_have_names_and_advertised_addresses() -> None:
    config = BrokerConfig.of(
        {
            "kafka.listener": "inside://0.0.0.0:9092",
            "kafka.advertised": "broker-0.ottla:0",
            "grpc.listener": "[::1]:0",
        }
    )
    assert config.kafka.listener == Listener("inside", "0.0.0.0", 9092)
    assert config.kafka.advertised == Address("broker-0.ottla", 0)
    assert config.grpc.listener == Listener("grpc", "::1", 0)
    assert str(config.grpc.listener) == "[::1]:0"
    assert config.grpc.advertised is None


def test_port_zero_may_be_used_by_several_listeners() -> None:
    config = BrokerConfig.of(
        {f"{name}.listener": "127.0.0.1:0" for name in ("kafka", "grpc", "internal", "http")}
    )
    assert config.http.listener.port == 0


def test_every_setting_is_reachable_named_once_and_explained() -> None:
    declared = [
        made.name
        for part in fields(BrokerConfig)
        if part.name not in ("topic_defaults", "static")
        for _, made in settings_in(part.default_factory)  # type: ignore[arg-type]
    ]
    assert sorted(declared) == sorted(set(declared)), "a setting is declared twice"
    assert set(declared) == set(SETTINGS), "a component is missing from the table"
    for made in SETTINGS.values():
        assert made.doc.endswith("."), made.name


def test_every_setting_is_read() -> None:
    """A setting that does nothing is worse than one that is refused."""
    package = Path(config_module.__file__).parent
    code = "".join(path.read_text() for path in package.rglob("*.py") if path.name != "config.py")
    attributes = [
        attribute
        for part in fields(BrokerConfig)
        if part.name not in ("topic_defaults", "static")
        for attribute, _ in settings_in(part.default_factory)  # type: ignore[arg-type]
    ]
    assert [name for name in attributes if not re.search(rf"\.{name}\b", code)] == []


def test_names_can_be_written_as_variables_and_as_toml_tables() -> None:
    names = sorted({*SETTINGS, *TOPIC_DEFAULT_NAMES})
    assert len({variable_of(name) for name in names}) == len(names)
    # In TOML `a.b = 1` makes `a` a table: `a` itself could not be a value in the same file. Kafka has two such names,
    # which have to be quoted keys.
    for name in names:
        within = [other for other in names if other.startswith(f"{name}.")]
        assert not within or name in ("max.connections", "max.connections.per.ip"), name
    quoted = '"max.connections" = 9\n"max.connections.per.ip" = 5\n'
    assert read_file(quoted, "broker.toml") == {"max.connections": "9", "max.connections.per.ip": "5"}


@pytest.mark.parametrize(
    "settings",
    [
        {"etcd.user": "ottla"},
        {"etcd.password.file": "/secret"},
        {"etcd.tls.enable": "true", "etcd.tls.key.file": "/key"},
        {"etcd.tls.ca.file": "/ca"},
    ],
)
def test_what_belongs_together_at_etcd(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"go together|need etcd.tls.enable"):
        BrokerConfig.of(settings)
