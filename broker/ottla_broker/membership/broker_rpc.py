"""Requests between brokers other than replication: by name, as JSON, each with a response or an error. [S]

    {"v":1,"ask":"witness","broker":2,…}   ->   {"v":1,"answer":…} or {"v":1,"error":{"code":41,"message":…}}

Components register handlers, and call other brokers by id; `Peers` carries the bytes. A request
that this version does not know is refused with UNSUPPORTED_VERSION, which a newer broker sees during an
upgrade.

Requests of other brokers have three limits: per broker and kind, per broker, and in total. So a broker
that sends too many is refused, and requests of the others still succeed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import structlog

from ottla_core.bounded_json import parse_json
from ottla_core.errors import (
    InvariantViolation,
    RequestError,
    ThrottlingQuotaExceeded,
    UnsupportedVersion,
    error_from_code,
)
from ottla_core.ports.peers import Peers, PeerUnavailable

_log = structlog.get_logger("ottla.broker_rpc")

Body: TypeAlias = Mapping[str, Any]
Answerer: TypeAlias = Callable[[Body], Awaitable[object]]

VERSION = 1
#: Open requests of one kind per broker: it keeps one open to notice this broker's death, forwards what its
#: clients change, and less than what the controller accepts from all (`service.controller_calls.UNFINISHED_MAX`).
ANSWERING_OF_KIND_MAX = 50
#: Open requests per broker.
ANSWERING_PER_BROKER_MAX = 200
#: Open requests in total, a few KB each.
ANSWERING_MAX = 5000
#: Length of the reason in an error: some errors repeat their input.
_ERROR_CHARS_MAX = 200


class BrokerRpc:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._answerers: dict[str, Answerer] = {}
        #: Open requests by calling broker, and by broker and kind. No entries for zero.
        self._of_broker: Counter[int] = Counter()
        self._of_kind: Counter[tuple[int, str]] = Counter()

    def answered_by(self, name: str, answerer: Answerer) -> None:
        self._answerers[name] = answerer

    async def ask(self, broker_id: int, name: str, body: Body, timeout_s: float) -> Any:
        """The response. RequestError if the request was refused, PeerUnavailable if there is no valid response."""
        request = json.dumps({"v": VERSION, "ask": name, **body}).encode()
        reply = await self._peers.ask(broker_id, request, timeout_s)
        try:
            fields = parse_json(reply)
            if "error" in fields:
                raise error_from_code(int(fields["error"]["code"]), str(fields["error"]["message"]))
            return fields["answer"]
        except (ValueError, KeyError, TypeError) as error:
            raise PeerUnavailable(f"Broker {broker_id} sent an invalid response: {error!r}.") from None

    async def answer(self, request: bytes, caller: int) -> bytes:
        """The response to another broker's request. Raises InvariantViolation only."""
        try:
            return json.dumps({"v": VERSION, "answer": await self._find(request, caller)}).encode()
        except RequestError as refusal:
            said = {"code": refusal.code, "message": refusal.message}
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            reason = repr(error)[:_ERROR_CHARS_MAX]
            _log.warning("invalid request from another broker", caller=caller, error=reason)
            said = {"code": UnsupportedVersion.code, "message": f"The request is not valid: {reason}."}
        except InvariantViolation:
            raise
        except Exception as error:
            _log.exception("request from another broker failed unexpectedly", caller=caller)
            said = {"code": RequestError.code, "message": f"The request failed: {type(error).__name__}."}
        return json.dumps({"v": VERSION, "error": said}).encode()

    async def _find(self, request: bytes, caller: int) -> object:
        fields = parse_json(request)
        name = fields.pop("ask")
        answerer = self._answerers.get(name)
        if answerer is None or fields.pop("v") > VERSION:
            raise UnsupportedVersion(f"This broker does not know the request {str(name)[:40]!r}.")
        kind = (caller, name)
        if (
            self._of_kind[kind] >= ANSWERING_OF_KIND_MAX
            or self._of_broker[caller] >= ANSWERING_PER_BROKER_MAX
            or self._of_broker.total() >= ANSWERING_MAX
        ):
            raise ThrottlingQuotaExceeded(f"Too many requests of broker {caller} are in progress.")
        self._of_kind[kind] += 1
        self._of_broker[caller] += 1
        try:
            return await answerer(fields)
        finally:
            _drop(self._of_kind, kind)
            _drop(self._of_broker, caller)


def _drop(counts: Counter[Any], key: Any) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
