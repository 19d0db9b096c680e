"""A broker that cannot be reached is named within two seconds, once, while the client keeps trying."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterator

import pytest

from ottla_cli.free_ports import free_ports
from ottla_client import Admin
from ottla_client.background import Background
from ottla_client.errors import CannotConnect, ClientError
from ottla_client.reachability import Reachability
from ottla_core.real.clock import RealClock


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that drops connection attempts: its queue is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = listening.getsockname()
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(address)
            waiting.append(client)
        yield f"127.0.0.1:{address[1]}"
        for client in waiting:
            client.close()


async def test_a_silent_address_is_named_within_two_seconds(
    silent: str, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    async with asyncio.timeout(20):
        opening = asyncio.create_task(Admin(silent).start())
        while not caplog.records and not opening.done():
            await asyncio.sleep(0.02)
        took_s = time.monotonic() - began
        with pytest.raises(ClientError):
            await opening
    (record,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert f"{silent} cannot be reached" in record.getMessage()
    assert took_s < 2.0


async def test_a_refusing_address_is_named_once_while_calls_are_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    background = Background()
    reachability = Reachability(RealClock(), background)
    deadline = time.monotonic() + 1.8
    while time.monotonic() < deadline:
        with pytest.raises(ClientError), reachability.call_to(address):
            raise CannotConnect("refused")
        await asyncio.sleep(0.1)
    await background.close()
    (record,) = caplog.records
    assert f"Nothing listens at {address}" in record.getMessage()


async def test_slow_answers_of_a_known_broker_are_not_reported(
    silent: str, caplog: pytest.LogCaptureFixture
) -> None:
    background = Background()
    reachability = Reachability(RealClock(), background)
    reachability.answered(silent)
    with reachability.call_to(silent):
        await asyncio.sleep(1.0)
    await background.close()
    assert not caplog.records
