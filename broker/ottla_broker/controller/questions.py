"""Questions between brokers that are not replication: by name, as JSON, each with an answer or a refusal. [S]

    {"v":1,"ask":"witness","broker":2,…}   ->   {"v":1,"answer":…} or {"v":1,"error":{"code":41,"message":…}}

Components register what they answer, and ask others by broker id; `Peers` carries the bytes. A question
that this version does not know is refused with a sentence, which is what a newer broker sees during an
upgrade.

Questions of other brokers have three bounds: of one kind by one broker, of one broker, and all together. So a broker
that asks too much is refused, and the others still have their elections and topics.
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

_log = structlog.get_logger("ottla.questions")

Body: TypeAlias = Mapping[str, Any]
Answerer: TypeAlias = Callable[[Body], Awaitable[object]]

VERSION = 1
#: Questions of one kind that one broker may have open: it holds one open to notice our death, forwards what its
#: clients change, and less than what the controller takes from all (`service.controller_calls.UNFINISHED_MAX`).
ANSWERING_OF_KIND_MAX = 50
#: All questions that one broker may have open.
ANSWERING_PER_BROKER_MAX = 200
#: Questions being answered at once, a few KB each.
ANSWERING_MAX = 5000
#: Of what is wrong with a question: some errors repeat what they were given.
_ERROR_CHARS_MAX = 200


class Questions:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._answerers: dict[str, Answerer] = {}
        #: Open questions by the broker that asked, and by broker and kind. Without entries for none.
        self._of_broker: Counter[int] = Counter()
        self._of_kind: Counter[tuple[int, str]] = Counter()

    def answered_by(self, name: str, answerer: Answerer) -> None:
        self._answerers[name] = answerer

    async def ask(self, broker_id: int, name: str, body: Body, timeout_s: float) -> Any:
        """The answer. RequestError if it was refused, PeerUnavailable if there is none (or none to understand)."""
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
        """What another broker gets for its question. Raises nothing but a violated invariant of ours."""
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
