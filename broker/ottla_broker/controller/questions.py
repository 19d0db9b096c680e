"""Questions between brokers that are not replication: by name, as JSON, each with an answer or a refusal. [S]

    {"v":1,"ask":"witness","broker":2,…}   ->   {"v":1,"answer":…} or {"v":1,"error":{"code":41,"message":…}}

Components register what they answer, and ask others by broker id; `Peers` carries the bytes. A question
that this version does not know is refused with a sentence, which is what a newer broker sees during an
upgrade.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import structlog

from ottla_core.errors import RequestError, ThrottlingQuotaExceeded, UnsupportedVersion, error_from_code
from ottla_core.ports.peers import Peers, PeerUnavailable

_log = structlog.get_logger("ottla.questions")

Body: TypeAlias = Mapping[str, Any]
Answerer: TypeAlias = Callable[[Body], Awaitable[object]]

VERSION = 1
#: Questions being answered at once; each broker holds one open with each of a few others.
ANSWERING_MAX = 1000


class Questions:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._answerers: dict[str, Answerer] = {}
        self._answering = 0

    def answered_by(self, name: str, answerer: Answerer) -> None:
        self._answerers[name] = answerer

    async def ask(self, broker_id: int, name: str, body: Body, timeout_s: float) -> Any:
        """The answer. RequestError if it was refused, PeerUnavailable if there is none (or none to understand)."""
        request = json.dumps({"v": VERSION, "ask": name, **body}).encode()
        reply = await self._peers.ask(broker_id, request, timeout_s)
        try:
            fields = json.loads(reply)
            if "error" in fields:
                raise error_from_code(int(fields["error"]["code"]), str(fields["error"]["message"]))
            return fields["answer"]
        except (ValueError, KeyError, TypeError) as error:
            raise PeerUnavailable(f"Broker {broker_id} gave no answer that makes sense: {error!r}.") from None

    async def answer(self, request: bytes) -> bytes:
        """What another broker gets for its question. Never raises."""
        try:
            return json.dumps({"v": VERSION, "answer": await self._find(request)}).encode()
        except RequestError as refusal:
            said = {"code": refusal.code, "message": refusal.message}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("a question of another broker makes no sense", error=repr(error))
            said = {"code": UnsupportedVersion.code, "message": f"The question makes no sense: {error!r}."}
        return json.dumps({"v": VERSION, "error": said}).encode()

    async def _find(self, request: bytes) -> object:
        fields = json.loads(request)
        name = fields.pop("ask")
        answerer = self._answerers.get(name)
        if answerer is None or fields.pop("v") > VERSION:
            raise UnsupportedVersion(f"This broker does not know the question {str(name)[:40]!r}.")
        if self._answering >= ANSWERING_MAX:
            raise ThrottlingQuotaExceeded("Too many questions of other brokers are being answered.")
        self._answering += 1
        try:
            return await answerer(fields)
        finally:
            self._answering -= 1
