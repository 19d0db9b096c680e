"""Commands with long rows on a terminal of 80 columns: no line is longer, so the terminal breaks no word."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from cli.ottla_command import Ottla
from ottla_cli.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

WIDTH = 80
_STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def on_a_terminal(*arguments: str) -> list[str]:
    """The lines that the command writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla_cli", *arguments],
        stdin=theirs, stdout=theirs, stderr=theirs, env={**environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    raw = bytearray()
    try:
        while part := os.read(ours, 1 << 16):
            raw += part
    except OSError:
        pass  # The terminal is closed with its last writer.
    finally:
        os.close(ours)
    assert process.wait(30) == 0, raw.decode()
    return _STYLE.sub("", raw.decode()).replace("\r", "").splitlines()


def test_long_rows_fit(ottla: Ottla, local_cluster: LocalCluster) -> None:
    topic = ottla.topic("--partitions", "2")
    ottla.produce(topic, "-k", "a-key-of-some-length", given=b"a value of some length\n" * 20)
    ottla.consume(topic, "--group", f"{topic}-readers", "-e", "--max", "3")
    at = ("-b", local_cluster.grpc_bootstrap)
    folders = Path(local_cluster.brokers[0].log_dir).glob(f"{topic}-*")
    # The one with the records.
    folder = max(folders, key=lambda each: sum(log.stat().st_size for log in each.glob("*.log")))
    for command in (
        ("configs", "describe", "--topic", topic, "--docs", *at),
        ("configs", "describe", "--broker", "0", "--docs", *at),
        ("log", "dump", str(folder)),
        ("log", "dump", str(folder), "--deep"),
        ("offsets", "list", topic, "--at", "-1h", *at),
        ("groups", "list", "--lag", *at),
        ("groups", "describe", f"{topic}-readers", *at),
        ("topics", "list", "--size", *at),
        ("topics", "describe", topic, *at),
        ("cluster", *at),
        ("cluster", "status", *at),
    ):
        lines = on_a_terminal(*command)
        assert len(lines) > 1, command
        # A path or an id may be longer than the window; it then has its line to itself.
        long = [line for line in lines if len(line) > WIDTH and len(line.split()) > 1]
        assert not long, command
