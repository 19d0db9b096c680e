"""`ottla[client]` stays light: no broker, operator or Spark dependency comes with it."""

from __future__ import annotations

import subprocess
import sys

_FORBIDDEN = (
    "kio",
    "kopf",
    "pyspark",
    "uvloop",
    "aetcd",
    "structlog",
    "typer",
    "rich",
    "ottla_broker",
    "ottla_cli",
)


def test_the_client_imports_nothing_of_the_others() -> None:
    program = (
        "import sys, ottla_client, ottla_client.sync;"
        f"print([name for name in {_FORBIDDEN!r} if name in sys.modules])"
    )
    made = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert made.stdout.strip() == "[]"
