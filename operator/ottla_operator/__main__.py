"""The operator's process: `run` (default), `crds` prints the CRDs. [A]"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from typing import Any

import kopf
import structlog
from prometheus_client import start_http_server

from ottla_core.real.clock import RealClock
from ottla_operator import handlers, logs
from ottla_operator.control import Control
from ottla_operator.crds import all_crds
from ottla_operator.kube import Kube, KubeError
from ottla_operator.observe import Observer
from ottla_operator.settings import Settings

_log = structlog.get_logger("ottla.operator")
#: A chart installs CRDs and operator together; the API server needs a moment to serve the CRDs.
_CRDS_TIMEOUT_S = 120.0


async def run(settings: Settings) -> None:
    kube = await Kube.connect()
    await _wait_for_crds(kube)
    memo: Any = kopf.Memo(control=Control(settings, kube, RealClock()))
    start_http_server(settings.metrics_port)
    made = kopf.OperatorSettings()
    handlers.configure(made)
    await kopf.operator(
        settings=made,
        memo=memo,
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        liveness_endpoint=f"http://0.0.0.0:{settings.health_port}/healthz",
    )


async def _wait_for_crds(kube: Kube) -> None:
    clock = RealClock()
    deadline = clock.monotonic() + _CRDS_TIMEOUT_S
    while True:
        try:
            if await Observer(kube).served():
                return
            reason = "its CustomResourceDefinitions are not served"
        except KubeError as failed:
            reason = str(failed)
        if clock.monotonic() > deadline:
            raise SystemExit(f"The operator cannot start: {reason}.")
        _log.info("waiting for CRDs", reason=reason)
        await clock.sleep(2)


def main(argv: list[str]) -> int:
    command = argv[0] if argv else "run"
    if command == "crds":
        sys.stdout.write("\n".join(json.dumps(crd) for crd in all_crds()) + "\n")
        return 0
    settings = Settings.of(os.environ)
    logs.configure(as_json=settings.log_json)
    # kopf logs a line per watch event; apply.py logs the operator's actions.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    # The kubelet requests /healthz every few seconds; a line for each hides the others.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    if command != "run":
        sys.stderr.write(f"ottla-operator: unknown command {command!r}; use run or crds.\n")
        return 2
    asyncio.run(run(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
