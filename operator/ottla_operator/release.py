"""Before an uninstall: what is deleted afterwards must not wait for an operator that is gone. [A]

The operator itself has to go first: it would put its finalizer back on whatever it sees without.
"""

from __future__ import annotations

import logging

from ottla_core.ports.clock import Clock
from ottla_core.real.clock import RealClock
from ottla_operator import handlers
from ottla_operator.apply import Applier
from ottla_operator.cast import GROUP, TOPIC
from ottla_operator.kube import Kube
from ottla_operator.observe import Observer
from ottla_operator.settings import Settings
from ottla_operator.specs import Meta

_log = logging.getLogger("ottla.release")
#: The operator's pod has twenty seconds to end, and a busy node its own time to say so.
_STOP_TIMEOUT_S = 60.0


async def release(settings: Settings) -> None:
    kube = await Kube.connect()
    try:
        clock = RealClock()
        observer, applier = Observer(kube), Applier(kube, clock)
        if settings.deployment:
            await _stop_operator(observer, applier, clock, *settings.deployment)
        for kind in (TOPIC, GROUP):
            for body in await observer.resources(kind, settings.namespaces):
                finalizers = body["metadata"].get("finalizers") or []
                if handlers.FINALIZER in finalizers:
                    await applier.release(Meta.of(body), handlers.FINALIZER, finalizers)
    finally:
        await kube.close()


async def _stop_operator(
    observer: Observer, applier: Applier, clock: Clock, namespace: str, name: str
) -> None:
    """Wait until its last pod is gone. One that stays is named, and fails the uninstall."""
    if await observer.pods_of_deployment(namespace, name) is None:
        return
    await applier.scale_to_zero(namespace, name)
    deadline = clock.monotonic() + _STOP_TIMEOUT_S
    while left := await observer.pods_of_deployment(namespace, name):
        if clock.monotonic() > deadline:
            raise SystemExit(f"The operator does not end: {', '.join(left)} in {namespace} is still there.")
        _log.info("waiting_for_the_operator_to_end: %s", ", ".join(left))
        await clock.sleep(1)
