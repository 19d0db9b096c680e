"""What people read fits 80 columns: no line is longer, no word is broken or cut."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
from click.testing import CliRunner

from ottla_cli import main as entry

WIDTH = 80
ROOT: Any = typer.main.get_command(entry.build(None))


def paths() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [()]
    for name, command in ROOT.commands.items():
        found.append((name,))
        found += [(name, each) for each in getattr(command, "commands", {})]
    return found


def command_of(path: tuple[str, ...]) -> Any:
    command = ROOT
    for name in path:
        command = command.commands[name]
    return command


def shown_of(command: Any) -> list[Any]:
    return [each for each in command.params if not getattr(each, "hidden", False)]


def words_of(text: str) -> set[str]:
    return set(text.split())


@pytest.mark.parametrize("path", paths(), ids=lambda path: " ".join(path) or "ottla")
def test_help_fits(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", WIDTH)
    shown = CliRunner().invoke(ROOT, [*path, "--help"], prog_name="ottla", env={"COLUMNS": str(WIDTH)})
    assert shown.exit_code == 0
    assert [line for line in shown.output.splitlines() if len(line) > WIDTH] == []
    assert not re.search(r"\w…", shown.output), "nothing is cut"
    printed = words_of(re.sub("[│╭╮╰╯─]", " ", shown.output))
    command = command_of(path)
    texts = [command.help or "", *(getattr(each, "help", "") or "" for each in shown_of(command))]
    # A choice that is broken, such as <read|wri te>.
    words = {word.rstrip(",.;") for word in printed}
    choices = {word for each in shown_of(command) for word in getattr(each.type, "choices", ())}
    assert choices <= words | words_of(re.sub(r"[|<>\[\]]", " ", " ".join(printed))), "choices are broken"
    missing = {word for text in texts for word in words_of(text)} - printed
    assert not missing, "these words are broken"
