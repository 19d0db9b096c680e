"""Runs `ottla` for tests: in this process where that is the same, as a child where standard input matters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from ottla_cli.main import main

TIMEOUT_S = 60
INTERRUPT_S = 20


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Ottla:
    """`ottla("topics", "list")` against one cluster."""

    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[bytes]) -> None:
        self.bootstrap = bootstrap
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> Outcome:
        """In this process."""
        ended, out, err = self._run(arguments)
        outcome = Outcome(ended, out.decode(), err.decode())
        assert outcome.code == code, outcome
        return outcome

    def consume(self, *arguments: str) -> bytes:
        """What it wrote to standard output, in this process."""
        ended, out, err = self._run(("consume", *arguments))
        assert ended == 0, err
        return out

    def produce(self, *arguments: str, given: bytes, code: int = 0) -> bytes:
        """What it wrote to standard output, as a child with this as standard input."""
        done = subprocess.run(
            self.command("produce", *arguments),
            input=given,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == code, done
        return done.stdout

    def _run(self, arguments: Sequence[str]) -> tuple[int, bytes, bytes]:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--bootstrap", self.bootstrap])
        return int(ended.value.code or 0), *self._capsys.readouterr()

    def start(self, *arguments: str, **extra: Any) -> subprocess.Popen[bytes]:
        return Started(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            **extra,
        )

    def command(self, *arguments: str) -> Sequence[str]:
        return [sys.executable, "-m", "ottla_cli", *arguments, "--bootstrap", self.bootstrap]

    def topic(self, *options: str) -> str:
        """A new topic for one test."""
        name = f"cli-{uuid.uuid4().hex[:12]}"
        self("topics", "create", name, *options)
        return name


def interrupt(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """Ctrl-C; its exit code, and what it said on standard error. One that does not end shows where it hangs."""
    process.send_signal(signal.SIGINT)
    try:
        code = process.wait(INTERRUPT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        pytest.fail(f"still there:\n{process.communicate(timeout=10)[1].decode()}")
    assert process.stderr is not None
    return code, process.stderr.read()


class Started(subprocess.Popen[bytes]):
    """As a context manager it is killed if its block fails: waiting for it would take as long as the test may."""

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *rest)


def lines_from(stream: Any, count: int) -> list[bytes]:
    return [stream.readline() for _ in range(count)]


def folder_of(log_dir: str, topic: str, partition: int = 0) -> str:
    return os.path.join(log_dir, f"{topic}-{partition}")
