"""Quotas on the Kafka edge: what a request is charged, and how its response says the wait (KIP-219). [S]

The response leaves at once with its `throttle_time_ms`, and the connection takes no requests until that time is over,
whether its client waits or not.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from ottla_broker.edge.kafka.request import Encoded, Reply, Request
from ottla_broker.quota import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE

if TYPE_CHECKING:
    from ottla_broker.caller import Caller
    from ottla_broker.service.throttling import Throttling

_PRODUCE, _FETCH = 0, 1
_INT32 = Struct(">i")


def wait_s(throttling: Throttling, caller: Caller, request: Request, reply: Reply) -> float:
    """Charge a request that was served."""
    key = request.api.key
    if key == _PRODUCE:
        return throttling.charge(caller, PRODUCER_BYTE_RATE, len(request.body))
    if key == _FETCH and isinstance(reply, Encoded):
        return throttling.charge(caller, CONSUMER_BYTE_RATE, sum(map(len, reply.body)))
    return 0.0


def told(request: Request, reply: Reply, wait: float) -> Reply:
    """The response with its throttle time: the first field of a Fetch response, the last one of Produce."""
    wait_ms = _INT32.pack(max(1, round(wait * 1000)))
    if not isinstance(reply, Encoded):
        return reply
    body = list(reply.body)
    if request.api.key == _FETCH:
        body[0] = wait_ms + bytes(body[0][4:])
    else:
        tags = 1 if request.version >= request.api.flexible_from else 0
        last = bytes(body[-1])
        body[-1] = last[: len(last) - 4 - tags] + wait_ms + last[len(last) - tags :]
    return Encoded(body, reply.hold)
