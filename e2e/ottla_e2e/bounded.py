"""A program that takes long: it ends with everything it started when its time is over. [A]"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

from ottla_e2e.say import Fault

#: Between the request to end and the kill.
_GRACE_S = 10.0


def run_bounded(command: Sequence[str | os.PathLike[str]], timeout_s: float, what: str) -> None:
    """CalledProcessError if it fails; Fault, one sentence, if it takes longer. `what` is for that sentence.

    In a process group of its own: a compiler that a script started would go on for many minutes after the script.
    """
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            raise Fault(
                f"{what} took longer than {timeout_s:g} s and was ended; what is done is kept"
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
        os.killpg(process.pid, signal.SIGKILL)  # whoever of the group is left
    except ProcessLookupError:
        return
