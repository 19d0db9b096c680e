"""The commands of docs/kubernetes.md, run in the order of the page, as they are written there. [A]

Each block of the page that is marked as `sh` is one script of bash, which must succeed. A comment in front of it leaves
it out and says why: `<!-- not run: needs Docker -->`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ottla_e2e.images import ROOT
from ottla_e2e.say import Fault, say

PAGE = ROOT / "docs/kubernetes.md"
#: Of the page.
NAMESPACE = "ottla"
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]+) -->\n)?^```sh\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
#: Longer than any wait in the page that ends well.
_BLOCK_S = 900


@dataclass(frozen=True, slots=True)
class Block:
    line: int
    text: str
    #: Why it cannot run on the node; None if it can.
    why_not: str | None


def blocks(page: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(page):
        yield Block(page.count("\n", 0, found.start("text")) + 1, found["text"], found["why"])


def run(environ: Mapping[str, str], page: Path = PAGE) -> None:
    """Run all blocks in the project's folder. `environ` has the way to Kubernetes; helm is this environment's."""
    path = f"{Path(sys.executable).parent}:{environ.get('PATH', os.environ['PATH'])}"
    for block in blocks(page.read_text()):
        where = f"{page.name}:{block.line}"
        if block.why_not is not None:
            say(f"    {where} is not run: {block.why_not}")
            continue
        began = time.monotonic()
        say(f"    {where}")
        try:
            status, output, errors = _bash(block.text, {**os.environ, **environ, "PATH": path})
        except subprocess.TimeoutExpired:
            raise Fault(f"{where} did not end in {_BLOCK_S} s:\n{block.text}") from None
        for line in output.splitlines():
            say(f"    | {line}")
        if status:
            raise Fault(f"{where} ended with {status}: {errors.strip()}\n{block.text}")
        say(f"      done in {time.monotonic() - began:.1f} s")


def _bash(script: str, environ: Mapping[str, str]) -> tuple[int, str, str]:
    """Exit status and both outputs. TimeoutExpired if it does not end."""
    with subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=environ, start_new_session=True,
    ) as bash:  # fmt: skip
        try:
            output, errors = bash.communicate(timeout=_BLOCK_S)
        except BaseException:
            # With its children, which nothing else ends.
            os.killpg(bash.pid, signal.SIGKILL)
            raise
        return bash.returncode, output, errors
