"""Child processes that never outlive their owner, and process identities that survive pid reuse. [A]

A pid alone does not identify a process: the kernel reuses pids. `identity` adds the start time of the
process, and nothing here signals a process whose identity does not match.

A child watches a pipe from its owner and exits when the pipe breaks, so that even `kill -9` of the owner leaves
no process behind. The broker watches its standard input itself; for other programs, a subshell of `sh`
watches the pipe. (PR_SET_PDEATHSIG would be tied to the thread that started the child, and setting
it needs a fork that runs Python code, which deadlocks beside gRPC's threads.)
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

#: A line on the pipe ends the watcher without a signal; end of file means that the owner is dead.
_WATCHED = 'exec 3<&0 </dev/null; (read -r _ <&3 || { sleep 1; kill -TERM $$; }) & exec "$@" 3<&-'
#: A larger log is rotated when its process starts; one old generation is kept.
LOG_BYTES_MAX = 16 << 20
_LOOK_EVERY_S = 0.005


def identity(pid: int) -> str | None:
    """Boot id and start time of a living process; None if it does not exist or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The command name, in parentheses, may contain any character.
            state, *rest = file.read().rpartition(")")[2].split()
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        return None if os.path.isdir("/proc/self") else _identity_by_ps(pid)
    return None if state in ("Z", "X") else f"{boot}/{rest[18]}"


def _identity_by_ps(pid: int) -> str | None:
    done = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


@dataclass(frozen=True, slots=True)
class Process:
    """A process that another process started, known from a state file."""

    pid: int
    identity: str

    @property
    def alive(self) -> bool:
        return identity(self.pid) == self.identity

    def send(self, number: signal.Signals) -> bool:
        """Signal the process if its identity still matches."""
        if not self.alive:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False

    def wait(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


class Child:
    """A child process and its log file."""

    def __init__(self, name: str, log_path: str) -> None:
        self.name = name
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._asked = False
        self._reader: IO[bytes] | None = None

    def start(
        self, command: Sequence[str], *, watches_stdin: bool, env: Mapping[str, str] | None = None
    ) -> None:
        """`watches_stdin`: the program itself exits at the end of its standard input."""
        argv = list(command) if watches_stdin else ["/bin/sh", "-c", _WATCHED, "sh", *command]
        self._asked = False
        with self._open_log() as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=None if env is None else dict(env),
                # A terminal sends Ctrl-C to the whole process group; we stop the children ourselves, in order.
                start_new_session=True,
            )

    def start_detached(self, command: Sequence[str]) -> None:
        """Start it so that it outlives this process: in a new session, without a pipe to watch."""
        with self._open_log() as log:
            self._log_start = log.tell()
            # It may remove its folder, including its log, before we have read the reason.
            self._reader = open(self.log_path, "rb")  # noqa: SIM115
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _open_log(self) -> IO[bytes]:
        with suppress(FileNotFoundError):
            if os.path.getsize(self.log_path) > LOG_BYTES_MAX:
                os.replace(self.log_path, f"{self.log_path}.1")
        log = open(self.log_path, "ab")  # noqa: SIM115  (the caller closes it)
        log.seek(0, os.SEEK_END)
        return log

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None before the start and while it runs."""
        if self._process is None:
            return None
        code = self._process.poll()
        if code is not None:
            self._release()
        return code

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ask_to_stop(self) -> None:
        """Send SIGTERM once: a second SIGTERM makes a broker exit without a graceful stop."""
        if self._process is not None and not self._asked:
            self._asked = True
            self._process.send_signal(signal.SIGTERM)

    def stop(self, timeout_s: float) -> bool:
        """Send SIGTERM, and SIGKILL after the deadline. True if it exited before the deadline."""
        if self._process is None:
            return True
        self.ask_to_stop()
        try:
            self._process.wait(timeout_s)
            return True
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        finally:
            self._release()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._release()

    def _release(self) -> None:
        """End the watching subshell without a signal, and close the pipe."""
        pipe = self._process.stdin if self._process else None
        if pipe is not None and not pipe.closed:
            with suppress(BrokenPipeError):
                pipe.write(b"\n")
                pipe.flush()
            with suppress(BrokenPipeError):
                pipe.close()

    def log_lines(self, count: int = 15) -> list[str]:
        """The last lines that the process wrote since its latest start."""
        try:
            with self._reader or open(self.log_path, "rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, end - 16_384))
                return log.read().decode("utf-8", "replace").splitlines()[-count:]
        except FileNotFoundError:
            return []
        finally:
            self._reader = None


def wait_for_file(path: str, child: Child, deadline: float, give_up: Callable[[], bool]) -> bytes | None:
    """The content of a file that `child` writes when it is ready; None if it exited or the time is up."""
    while True:
        with suppress(FileNotFoundError), open(path, "rb") as file:
            return file.read()
        if not child.running or time.monotonic() > deadline or give_up():
            return None
        time.sleep(_LOOK_EVERY_S)
