"""Phases of TLS between the brokers of a running Cluster. [P]

off: no certificates. prepared: certificates, and plaintext on the internal listener. on: TLS on it. A broker with
certificates can call brokers of every phase but its own listener is of one, so a Cluster goes from off to on, and back,
through prepared, with a rolling restart each. Called by `clusters.py`.
"""

from __future__ import annotations

#: Annotation of the StatefulSet with the phase of its pod template.
PHASE = "ottla.dev/internal-tls"
OFF, PREPARED, ON = "off", "prepared", "on"


def next_phase(wanted: bool, before: str | None, *, rolled: bool) -> str:
    """`before` is the phase of the pod template, None if there are no brokers yet; `rolled`: all pods have it."""
    if before is None:
        return ON if wanted else OFF
    if before == PREPARED:
        if not rolled:
            return PREPARED
        return ON if wanted else OFF
    if before == ON:
        return ON if wanted else PREPARED
    return PREPARED if wanted else OFF
