"""Tables in windows of all sizes, and in none: names and numbers are never cut or broken."""

from __future__ import annotations

import io
import signal
import sys

import pytest
import typer

from ottla_cli.connecting import sentence
from ottla_cli.failure import Failure
from ottla_cli.screen import confirm, fitted, show, table
from ottla_core.errors import InvalidConfig

ADDRESS, NAME = "broker-0.ottla.example:19192", "group.initial.rebalance.delay.ms"
PROSE = "The first rebalance of a group waits for more members; at most the rebalance timeout."


class Window(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(out: io.StringIO, monkeypatch: pytest.MonkeyPatch, columns: int) -> list[str]:
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    show(table(("setting", "address", "count#", "what it does~"), [(NAME, ADDRESS, 12345678, PROSE)]))
    return out.getvalue().splitlines()


def test_a_narrow_window_breaks_sentences_only(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(Window(), monkeypatch, 76)
    assert lines[1] == f"{NAME}  {ADDRESS}  12345678"
    assert len(lines) > 3, "the sentence goes on in lines of its own"


def test_without_a_terminal_only_yes_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(Failure, match="--yes"):
        confirm("Delete all?", yes=False)
    confirm("Delete all?", yes=True)


def test_a_pipe_gets_one_line_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(io.StringIO(), monkeypatch, 40)
    assert lines[1].startswith(f"{NAME}  {ADDRESS}") and lines[1].endswith(PROSE) and len(lines) == 2


def test_ctrl_c_answers_a_question_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Window())
    monkeypatch.setattr(sys, "stderr", Window())
    before = signal.getsignal(signal.SIGINT)

    def ask(question: str, *, err: bool) -> bool:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "a loop only notes it"
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", ask)
    signal.signal(signal.SIGINT, lambda *_: None)  # as asyncio does
    try:
        with pytest.raises(Failure, match="Nothing was changed"):
            confirm("Delete all?", yes=False)
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_question_keeps_its_mark() -> None:
    assert sentence(InvalidConfig("Did you mean x?")) == "Did you mean x? (INVALID_CONFIG)"
    assert sentence(InvalidConfig("No.")) == "No. (INVALID_CONFIG)"


def test_sentences_on_a_terminal_break_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    text = "ottla: a sentence with many words (AND_ONE_THAT_IS_LONGER)"
    assert fitted(text, Window()).split("\n") == [
        "ottla: a sentence", "with many words", "(AND_ONE_THAT_IS_LONGER)",
    ]  # fmt: skip
    assert fitted("short\n  indented", Window()) == "short\n  indented"
    assert fitted(text, io.StringIO()) == text
    command = "ottla transactions abort --topic orders -p 0 --start-offset 17"
    assert fitted(command, Window()) == command
