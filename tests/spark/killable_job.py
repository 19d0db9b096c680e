"""A Spark job in processes of its own, and kills of its driver, executors and Python workers that hit running tasks.

SIGKILL, always. A kill is a hit only if a task was running in a process that it has ended: the task's marker
(`stepping_source`) is left. Other kills happened between tasks, and do not count.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyspark

_TESTS = Path(__file__).parents[1]
#: A JVM, its executors and its query start within this, on a busy machine.
START_S = 240.0
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
KINDS = ("driver", "executor", "worker")


class SparkJob:
    """The process of a job with its JVMs and Python workers."""

    def __init__(self, module: str, arguments: Sequence[str], folder: Path) -> None:
        self.log = folder / "job.log"
        self._markers = folder / "markers"
        self._markers.mkdir()
        self._home = _spark_home(folder / "spark")
        own = ["--checkpoint", str(folder / "checkpoint"), "--folder", str(folder)]
        self._command = [sys.executable, "-m", module, *arguments, *own]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> None:
        path = os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")])
        added = {
            "PYTHONPATH": path,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(self._home),
            "MARKERS": str(self._markers),
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                env={**os.environ, **added, **environment},
                start_new_session=True,
            )

    def check(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"The job ended by itself:\n{self.log.read_text()[-4000:]}")

    def running_tasks(self) -> set[int]:
        """Processes that run a task now. Spark also ends processes, whose markers are left."""
        if self._process is None:
            return set()
        return self._marked() & set(_below(self._process.pid))

    def _marked(self) -> set[int]:
        return {int(marker.name) for marker in self._markers.iterdir()}

    def kill(self) -> bool:
        """Driver, executors and workers, at once. True if tasks were running."""
        if self._process is None:
            return False
        ended = [*_below(self._process.pid), self._process.pid]
        running = self.running_tasks()
        for pid in ended:
            _kill(pid)
        self._process.wait()
        self._process = None
        return self._hit(ended, running)

    def kill_one(self, what: str, chance: random.Random) -> bool:
        """Wait for a running task, and kill the driver, the task's executor or its Python worker. True if the task
        was hit. After the driver, the caller starts the job again.
        """
        victim = self._running_task(chance)
        if what == "driver":
            return self.kill()
        if what == "worker":
            ended = [victim]
        else:
            executor = _executor_of(victim)
            if executor is None:
                return False
            ended = [executor, *_below(executor)]
        running = self.running_tasks()
        for pid in ended:
            _kill(pid)
        return self._hit(ended, running)

    def _running_task(self, chance: random.Random) -> int:
        deadline = time.monotonic() + START_S
        while not (running := sorted(self.running_tasks())):
            self.check()
            assert time.monotonic() < deadline, f"No task runs:\n{self.log.read_text()[-4000:]}"
            time.sleep(0.02)
        time.sleep(chance.uniform(0.0, 0.3))  # hit it anywhere
        return chance.choice(running)

    def _hit(self, ended: Sequence[int], running: set[int]) -> bool:
        """Whether one of these processes was in a task, which it has not finished; removes their markers."""
        for pid in ended:
            _await_end(pid)
        left = self._marked() & set(ended)
        for pid in left:
            (self._markers / str(pid)).unlink()
        return bool(left & running)


def _spark_home(folder: Path) -> Path:
    """PySpark's folder, by links: executors write their logs into it."""
    folder.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        (folder / each.name).symlink_to(each)
    return folder


def _below(pid: int) -> list[int]:
    try:
        return [each.pid for each in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _executor_of(pid: int) -> int | None:
    try:
        for each in psutil.Process(pid).parents():
            if _EXECUTOR in each.cmdline():
                return int(each.pid)
    except psutil.NoSuchProcess:
        pass
    return None


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _await_end(pid: int) -> None:
    """Until it has ended: a process that got the signal may still run for a moment."""
    try:
        process = psutil.Process(pid)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.005)
    except psutil.NoSuchProcess:
        pass
