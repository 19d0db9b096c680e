"""`ottla top` and `--watch` go on when a look fails, and end by Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import typer

from ottla_cli import top, watching
from ottla_cli.failure import Failure
from ottla_cli.metrics_text import read_page
from ottla_cli.top_view import WANTED, Scrape
from ottla_client.errors import CannotConnect

GONE = "No broker answers at 127.0.0.1:9192."


class Pauses:
    """The pause between two looks; Ctrl-C after the last."""

    def __init__(self, last: int) -> None:
        self.left = last

    def __call__(self, seconds: float) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_watch_shows_why_a_look_failed_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter(["one", None, None, "two"])

    def show(clear: Callable[[], None]) -> None:
        look = next(looks)
        if look is None:
            raise Failure(GONE)
        clear()
        print(look)

    monkeypatch.setattr(watching.time, "sleep", Pauses(4))
    with pytest.raises(typer.Exit):
        watching.repeated(show, watch=True)
    out = capsys.readouterr().out.splitlines()
    assert (out[0], out[-1]) == ("one", "two")
    assert len(out) == 4 and all(line.endswith(GONE) for line in out[1:3])


def test_a_first_look_that_fails_ends_the_command() -> None:
    def show(clear: Callable[[], None]) -> None:
        raise Failure(GONE)

    with pytest.raises(Failure, match="No broker"):
        watching.repeated(show, watch=True)


class Looks:
    """Scrapes of a broker that is offline in the middle."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, client: object) -> tuple[list[int], Scrape]:
        self.count += 1
        if self.count in (2, 3):
            raise CannotConnect(GONE)
        if self.count == 5:
            raise asyncio.CancelledError
        page = read_page(f'ottla_topic_records_total{{topic="orders"}} {100 * self.count}', WANTED)
        return [0], Scrape(float(self.count), {0: page})


async def test_top_shows_why_a_look_failed_above_the_last_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = Looks()
    monkeypatch.setattr(top, "_scraped", looks)
    before = read_page('ottla_topic_records_total{topic="orders"} 0', WANTED)
    with pytest.raises(asyncio.CancelledError):
        await top.refresh(None, Instant(), Scrape(0.0, {0: before}), 2.0)  # type: ignore[arg-type]
    screens = capsys.readouterr().out.split("\x1b[H")[1:]
    assert len(screens) == 4
    assert [GONE in screen for screen in screens] == [False, True, True, False]
    assert all("orders" in screen for screen in screens), "the last tables stay"


class Instant:
    async def sleep(self, seconds: float) -> None:
        pass


def test_a_long_sentence_is_wrapped_and_the_screen_is_not_exceeded() -> None:
    lines = top.screen_lines(None, "word " * 60, 80, 5)
    assert len(lines) == 5 and all(len(line) <= 80 for line in lines)
