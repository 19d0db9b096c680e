"""docs/first-hour.md: every command, in order, as written except for ports and paths."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from ottla_cli.free_ports import free_ports, port_is_free

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs/first-hour.md"

pytestmark = pytest.mark.integration


def _base() -> int:
    """A port p so that p to p+2, p+100 to p+102 and p+200 to p+202 are free, as the page's defaults are."""
    for _ in range(200):
        (first,) = free_ports(1)
        if first < 60_000 and all(port_is_free(first + 100 * k + i) for k in range(3) for i in range(3)):
            return first
    raise AssertionError("no free ports")


def commands() -> str:
    return "\n".join(re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.timeout(240)
def test_every_command_of_the_first_hour(tmp_path: Path) -> None:
    base, (prometheus,) = _base(), free_ports(1)
    text = commands().replace(". .venv/bin/activate", f'PATH="{ROOT}/.venv/bin:$PATH"')
    text = text.replace("charts/", f"{ROOT}/charts/").replace("9090", str(prometheus))
    for old in (9092, 9292, 9293, 9294):
        text = text.replace(str(old), str(old - 9092 + base))
    ports = f"--kafka-port {base} --grpc-port {base + 100} --http-port {base + 200}"
    text = text.replace("ottla up --brokers 3", f"ottla up --brokers 3 {ports}")
    script = tmp_path / "first-hour.sh"
    # Whatever fails, no process is left.
    clean_up = "kill $(jobs -p) 2> /dev/null || true; ottla down --data ./first 2> /dev/null || true"
    script.write_text(f"trap '{clean_up}' EXIT\nset -eo pipefail\nset -x\n{text}")
    done = subprocess.run(
        ["timeout", "150", "bash", str(script)],  # it ends with its trap, unlike by SIGKILL
        cwd=tmp_path,
        env={**os.environ, "OTTLA_BOOTSTRAP": f"127.0.0.1:{base + 100}"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    out = done.stdout
    assert "3 of 3 brokers" in out, "ottla top"
    assert '"consumergroup":"billing"' in out and '"500"' in out, "the lag in Prometheus"
    panels = {line[:32].rstrip(): line[32:].split() for line in out.splitlines() if len(line) > 32}
    assert (panels["Brokers"], panels["Topics"][:1]) == (["3"], ["2"]), "the dashboard"
    assert panels["Partitions offline"] == ["0"] and float(panels["Largest lag"][0]) > 0
    assert "OttlaPartitionsUnderReplicated" in out, "an alert"
    assert not (tmp_path / "first").exists()
