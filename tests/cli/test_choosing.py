"""Which topics, records and groups commands show: patterns, filters, --all, --lag, --size, completion."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from cli.ottla_command import Ottla
from ottla_cli.position import parse_position
from ottla_cli.record_filter import record_filter, topics_of
from ottla_client import ConsumerRecord


def record(
    value: bytes | None, key: bytes | None = None, headers: tuple[tuple[str, bytes], ...] = ()
) -> ConsumerRecord:
    return ConsumerRecord("t", 0, 0, 0, key, value, headers)


def test_filters_hold_together() -> None:
    assert record_filter(None, None, []) is None
    shown = record_filter(r"user=\d+", "k", ["source", "kind=new"])
    assert shown is not None
    headers = (("source", b"x"), ("kind", b"new"))
    assert shown(record(b"a user=17 b", b"k", headers))
    assert not shown(record(b"a user= b", b"k", headers))
    assert not shown(record(b"a user=17 b", b"other", headers))
    assert not shown(record(b"a user=17 b", b"k", headers[:1]))
    assert not shown(record(None, b"k", headers))
    for wrong in (lambda: record_filter("(", None, []), lambda: record_filter(None, None, ["=x"])):
        with pytest.raises(ValueError):
            wrong()


def test_topics_by_name_and_by_pattern() -> None:
    assert topics_of(["b", "a", "b"], [], regex=False) == ["b", "a"]
    assert topics_of(["o.*", "b"], ["b", "or", "o", "xo"], regex=True) == ["o", "or", "b"]
    with pytest.raises(ValueError, match="not a regular expression"):
        topics_of(["("], ["a"], regex=True)


def test_an_age_needs_no_sign() -> None:
    day_ms = 86_400_000
    assert parse_position("7d", 10 * day_ms) == parse_position("-7d", 10 * day_ms)
    assert parse_position("2026-03-31", 0).value == 1774915200000


@pytest.mark.integration
def test_consume_chooses_topics_and_records(ottla: Ottla) -> None:
    first, second = ottla.topic("--partitions", "2"), ottla.topic("--partitions", "1")
    ottla.produce(first, "-k", "k", given=b"red apple\ngreen apple\n")
    ottla.produce(second, "-H", "source=import", given=b"red pear\n")
    assert sorted(ottla.consume(first, second, "-e").split(b"\n")[:-1]) == [
        b"green apple",
        b"red apple",
        b"red pear",
    ]
    pattern = f"({first}|{second})"
    assert sorted(ottla.consume(pattern, "--regex", "-e", "--grep", "^red").splitlines()) == [
        b"red apple",
        b"red pear",
    ]
    assert ottla.consume(first, second, "-e", "--key", "k", "--grep", "green") == b"green apple\n"
    assert ottla.consume(first, second, "-e", "--header", "source=import") == b"red pear\n"
    assert ottla.consume(first, second, "--grep", "apple", "--max", "1", "--from", "1h").endswith(b"apple\n")
    group = f"{first}-g"
    read = ottla.consume(first, second, "-e", "--group", group, "--grep", "pear")
    assert read == b"red pear\n"
    (row,) = ottla("groups", "list", group, "--lag", "--json").json
    assert row["lag"] == 0 and sorted(row["topics"]) == sorted([first, second]), (
        "dropped records count as read"
    )
    ottla.produce(second, given=b'{"user":{"id":5},"tags":["new"]}\n{"user":{"id":6}}\n')
    assert ottla.consume(second, "-e", "--where", "$.user.id == 6") == b'{"user":{"id":6}}\n'
    both = ("--where", "$.user.id >= 5", "--where", "$.tags[*] == new")
    assert ottla.consume(second, "-e", *both) == b'{"user":{"id":5},"tags":["new"]}\n'
    assert "begins with $" in ottla("consume", second, "--where", "user.id == 5", code=2).err
    missing = ottla("consume", "no-such-.*", "--regex", code=1)
    assert "No topic matches 'no-such-.*'" in missing.err


@pytest.mark.integration
def test_lists_with_lag_and_size(ottla: Ottla) -> None:
    topic = ottla.topic("--partitions", "1")
    ottla.produce(topic, given=b"one\ntwo\nthree\n")
    ottla.consume(topic, "--group", f"{topic}-g", "--max", "1", "-e")
    (row,) = ottla("groups", "list", f"{topic}-g", "--lag", "--json").json
    assert (row["lag"], row["partitions"], row["topics"]) == (2, 1, [topic])
    assert 0 <= row["lag_s"] < 60
    assert "behind" in ottla("groups", "list", f"{topic}-g", "--lag").out.splitlines()[0]
    assert any(each["group"] == f"{topic}-g" for each in ottla("groups", "describe", "--all", "--json").json)
    assert "Name groups, or give --all" in ottla("groups", "describe", code=2).err
    (listed,) = ottla("topics", "list", topic, "--size", "--json").json
    assert listed["bytes"] > 60
    ottla("topics", "alter", topic, "--config", "retention.ms=7d")
    assert "604800000" in ottla("configs", "describe", "--topic", topic, "--changed").out


@pytest.mark.integration
def test_the_shell_completes_names(ottla: Ottla) -> None:
    topic = ottla.topic("--partitions", "1")

    def completed(line: str, bootstrap: str = ottla.bootstrap) -> list[str]:
        environment = {
            **os.environ, "OTTLA_BOOTSTRAP": bootstrap, "_OTTLA_COMPLETE": "complete_bash", "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split()) - 1),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "ottla_cli"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.split()

    assert completed(f"ottla consume {topic[:-1]}") == [topic]
    assert completed("ottla gro") == ["groups"]
    began = time.monotonic()
    assert completed("ottla consume x", "127.0.0.1:1") == []
    assert time.monotonic() - began < 15


@pytest.mark.integration
@pytest.mark.parametrize(
    "command",
    [
        ("topics", "list"),
        ("consume", "x"),
        ("produce", "x"),
        ("groups", "list"),
        ("top",),
        ("consume", "x", "-g", "y"),
    ],
    ids=" ".join,
)
def test_an_unreachable_broker_is_reported_soon(command: tuple[str, ...]) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "ottla_cli", *command, "--bootstrap", "127.0.0.1:1"],
        input=b"a\n", capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and b"Nothing listens at 127.0.0.1:1" in done.stderr
    # A quarter of a second on an idle machine; on a busy one, Python alone may need seconds to start.
    assert time.monotonic() - began < 6
