"""Kafka Streams, Connect and MirrorMaker 2, as shipped, as processes beside the broker under test."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from ottla_bench.kafka_jars import application_command

WITHIN_S = 90.0
_STOP_GRACE_S = 20.0


def properties(folder: Path, name: str, settings: Mapping[str, object]) -> str:
    """A properties file with these settings; returns its path."""
    path = folder / f"{name}.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
    return str(path)


class JavaApplication:
    """Runs while the block lasts. What it logs is in `log`, whose end the failure of a wait shows."""

    def __init__(self, folder: Path, main_class: str, *arguments: str) -> None:
        self._command = application_command(main_class, *arguments)
        self.log = folder / f"{main_class.rpartition('.')[2]}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> JavaApplication:
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP_GRACE_S)
            self._process = None

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait while the process runs."""
        deadline = time.monotonic() + WITHIN_S
        while not holds():
            code = None if self._process is None else self._process.poll()
            in_time = time.monotonic() < deadline
            assert code is None and in_time, f"not reached: {what} (exit code {code}).\n{self._log_end()}"
            time.sleep(0.05)

    def _log_end(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-4000:]
