"""The operator's log: one form for events, in JSON and in text, beside kopf's own lines."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import structlog
log = structlog.get_logger("ottla.test")  # taken before `configure`, as modules do
from ottla_operator import logs
logs.configure(as_json={as_json})
log.info("event written", kind="Topic", resource="shop/orders", detail="100%s done")
log.debug("not written")
try:
    1 / 0
except ZeroDivisionError as error:
    log.error("reconciliation failed", error=str(error), exc_info=error)
"""


def _lines(*, as_json: bool) -> list[str]:
    """In its own process: kopf configures the root logger."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(as_json=as_json)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stderr.splitlines()


def test_a_json_line_has_the_values_as_fields() -> None:
    first, second = map(json.loads, _lines(as_json=True))
    assert first["message"] == "event written"
    assert (first["kind"], first["resource"], first["detail"]) == ("Topic", "shop/orders", "100%s done")
    assert first["severity"] == "info"
    assert second["error"] == "division by zero"
    assert "ZeroDivisionError" in second["exc_info"]


def test_a_text_line_has_the_values_behind_the_event() -> None:
    first, second, *trace = _lines(as_json=False)
    assert first.endswith("event written kind='Topic' resource='shop/orders' detail='100%s done'")
    assert second.endswith("reconciliation failed error='division by zero'")
    assert trace[-1] == "ZeroDivisionError: division by zero"
