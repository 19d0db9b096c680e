"""The registry of commands: light to list, complete when called, and failures are sentences."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import pytest
import typer

from ottla_cli import main as entry
from ottla_cli.failure import Failure
from ottla_core.compiled import FOLDER, usable


def _call(arguments: Sequence[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        entry.main(arguments)
    return int(ended.value.code or 0)


def test_every_row_of_the_registry_loads() -> None:
    assert isinstance(entry.build(None), typer.Typer)
    assert len({command.name for command in entry.COMMANDS}) == len(entry.COMMANDS)


def test_help_lists_all_commands_and_loads_none() -> None:
    script = (
        "import sys\nfrom ottla_cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit as ended: assert not ended.code\n"
        "sys.stderr.write(' '.join(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30
    )
    for command in entry.COMMANDS:
        assert (f"│ {command.name} " in done.stdout) is not command.hidden
    loaded = set(done.stderr.split())
    heavy = {"grpc", "asyncio", "ottla_client", "ottla_broker", "ottla_cli.up"}
    assert not heavy & loaded


def test_version_is_the_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert _call(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"ottla {version('ottla')}\n")


@pytest.mark.parametrize("pure", [True, False])
def test_version_says_whether_compiled_modules_run(pure: bool) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "OTTLA_PURE"}
    done = subprocess.run(
        [sys.executable, "-m", "ottla_cli", "--version"], capture_output=True, text=True, timeout=30, check=True,
        env=environ | ({"OTTLA_PURE": "1"} if pure else {}),
    )  # fmt: skip
    found = usable(FOLDER, {})
    runs = f"pure Python: {found}" if isinstance(found, str) else f"{len(found)} modules compiled"
    assert done.stdout.endswith(f"\ncode {'pure Python: OTTLA_PURE is set' if pure else runs}\n")


def test_a_command_starts_quickly() -> None:
    """CPU time of a whole command, user and system, the best of three: 0.15 s; 0.8 s with all modules of all
    libraries."""
    command = [sys.executable, "-m", "ottla_cli", "topics", "list", "-b", "127.0.0.1:1"]
    took = []
    for _ in range(3):
        before = _children_cpu_s()
        subprocess.run(command, capture_output=True, timeout=30, check=False)
        took.append(_children_cpu_s() - before)
    assert min(took) < 0.3, took


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert _call(["topicz"]) == 2
    assert "No such command 'topicz'" in capsys.readouterr().err


def test_a_failure_is_a_sentence_and_a_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise Failure("Nobody is at home; ring again tomorrow.", exit_code=3)

    monkeypatch.setattr("ottla_cli.status.status", refuse)
    assert _call(["status"]) == 3
    assert capsys.readouterr().err == "ottla: Nobody is at home; ring again tomorrow.\n"


def test_config_show_names_sources(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTTLA_NUM_PARTITIONS", "4")
    assert _call(["config", "show", "--json", "--changed", "--set", "log.retention.ms=60000"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"]: (row["value"], row["source"]) for row in rows} == {
        "num.partitions": ("4", "variable OTTLA_NUM_PARTITIONS"),
        "log.retention.ms": ("60000", "flag"),
    }
    assert all(row["doc"] for row in rows)


def test_config_show_refuses_like_the_broker(capsys: pytest.CaptureFixture[str]) -> None:
    assert _call(["config", "show", "--set", "num.partitions=many"]) == 2
    assert "num.partitions = 'many' (from flag) is not valid" in capsys.readouterr().err


def test_config_show_is_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert _call(["config", "show", "num.part"]) == 0
    assert "num.partitions" in capsys.readouterr().out


def test_what_is_wrong_with_the_streams_is_no_traceback() -> None:
    script = (
        '"$@" config show --json | true; echo "${PIPESTATUS[0]}"\n'
        '"$@" config show >/dev/full; echo $?\n'
        '"$@" config show num.partitions <&- 2>&- | grep -c "^num.partitions "\n'
        '"$@" config show >&-; echo $?\n'
        '"$@" down --data /dev/null; echo $?\n'
    )
    command = ["bash", "-c", script, "-", sys.executable, "-m", "ottla_cli"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["141", "1", "1", "0", "1"]
    assert done.stderr.splitlines() == [
        "ottla: The output is incomplete: No space left on device. Free disk space, and run the command again.",
        "ottla: /dev/null/running.json: Not a directory.",
    ]


def test_without_its_extra_the_command_says_which() -> None:
    script = "import sys; sys.modules['typer'] = None; import ottla_cli.main"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (
        1,
        "ottla: The command line needs more packages: pip install 'ottla[client]'.\n",
    )


def test_every_command_has_examples() -> None:
    group: Any = typer.main.get_command(entry.build(None))
    shown = ((name, command) for name, command in group.commands.items() if not command.hidden)
    for name, command in shown:
        for each in (command, *getattr(command, "commands", {}).values()):
            # The same function can be two commands (`up`, `local up`).
            names = (f"ottla {name}", f"ottla {each.name}")
            assert any(text in (each.help or "") for text in names), f"ottla {name}: {each.name}"
