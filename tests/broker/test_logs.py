"""The broker's log: machine-readable, level-filtered, and safe from who can provoke it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from ottla_broker import logs


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.stream = io.StringIO()

    def configure(self, log_format: str = "json", level: str = "info") -> None:
        logs.configure(log_format, level, now=lambda: self.now, stream=self.stream, context={"broker": 1})

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def world() -> Iterator[World]:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    yield World()
    structlog.reset_defaults()
    root.handlers[:], root.level = before


def test_a_json_line_has_time_level_logger_and_fields(world: World) -> None:
    log = structlog.get_logger("ottla.test")  # taken before `configure`, as modules do
    world.configure()
    log.info("started", port=9092)
    (line,) = world.lines
    assert list(line)[:4] == ["timestamp", "level", "logger", "event"]
    assert line["timestamp"].endswith("Z")
    del line["timestamp"]
    assert line == {"level": "info", "logger": "ottla.test", "event": "started", "broker": 1, "port": 9092}


def test_levels_below_the_chosen_one_are_not_written(world: World) -> None:
    world.configure(level="warning")
    log = structlog.get_logger()
    log.info("a")
    log.debug("b")
    log.warning("c")
    assert [line["event"] for line in world.lines] == ["c"]


def test_a_repeated_event_is_held_back_and_counted(world: World) -> None:
    world.configure()
    log = structlog.get_logger("ottla.edge")
    for number in range(1000):
        log.warning("bad_frame", peer=number)
    log.warning("something_else")
    assert len(world.lines) == logs.BURST + 1

    world.now += logs.REPEAT_EVERY_S
    log.warning("bad_frame", peer="late")
    assert world.lines[-1]["left_out"] == 1000 - logs.BURST
    log.warning("bad_frame", peer="later")
    assert world.lines[-1]["peer"] == "late"


def test_ever_new_events_share_one_allowance(world: World) -> None:
    guard = logs.RepeatGuard(lambda: world.now)
    written = 0
    for number in range(5000):
        try:
            guard(None, "warning", {"event": f"e{number}"})
            written += 1
        except structlog.DropEvent:
            pass
    assert written == logs.EVENTS_MAX + logs.BURST
    assert len(guard._buckets) <= logs.EVENTS_MAX + 1

    world.now += logs.BURST * logs.REPEAT_EVERY_S + 1
    for _ in range(logs.BURST):
        guard(None, "warning", {"event": "new, and the old ones are idle"})


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_values_are_cut_and_cannot_start_a_line(world: World, log_format: str) -> None:
    world.configure(log_format)
    structlog.get_logger().warning("refused", client_id="x" * 100_000, topic='a\n{"event":"forged"}\x1b[31m')
    assert len(world.text) < 2000
    assert len(world.text.splitlines()) == 1
    assert "\x1b" not in world.text


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_exceptions_carry_their_traceback(world: World, log_format: str) -> None:
    world.configure(log_format)
    try:
        raise RuntimeError("disk on fire")
    except RuntimeError:
        structlog.get_logger().exception("append_failed")
    assert "disk on fire" in world.text
    assert "Traceback" in world.text


def test_lines_of_the_standard_library_arrive_too(world: World) -> None:
    world.configure()
    logging.getLogger("asyncio").error("Task exception was never retrieved %s", "x")
    logging.getLogger("asyncio").info("not this")
    assert [(line["logger"], line["event"]) for line in world.lines] == [
        ("asyncio", "Task exception was never retrieved x")
    ]


def test_a_closed_stream_does_not_stop_the_broker(world: World) -> None:
    world.configure()
    log = structlog.get_logger()
    log.info("before")
    assert world.lines[0]["event"] == "before"
    world.stream.close()
    log.info("after")  # would raise ValueError
