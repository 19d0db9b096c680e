from __future__ import annotations

import pytest

from ottla_client import wrong_port


async def _no_answer(*_: object) -> bytes:
    raise TimeoutError


async def test_an_address_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrong_port, "_ask", _no_answer)
    said = await wrong_port.explain("broker.example:9192", "")
    assert said.startswith("broker.example:9192 cannot be reached (no answer in time).")
