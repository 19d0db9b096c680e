"""Runs a long program with a time limit, after which it is ended with all its child processes. [A]"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

from ottla_e2e.say import Fault

#: Between SIGTERM and SIGKILL.
_GRACE_S = 10.0


def run_bounded(command: Sequence[str | os.PathLike[str]], timeout_s: float, what: str) -> None:
    """Raises CalledProcessError if it fails, and Fault with `what` in its message if it takes longer.

    It runs in its own process group: a compiler that a script started would otherwise outlive the script by minutes.
    """
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            raise Fault(
                f"{what} took longer than {timeout_s:g} s and was ended; finished parts are kept"
            ) from None
        except BaseException:
            _end(process)
            raise
    if code:
        raise subprocess.CalledProcessError(code, [str(each) for each in command])


def _end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)  # processes of the group that are left
    except ProcessLookupError:
        return
