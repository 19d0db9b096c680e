"""A server that comes back with another IP under its name, as a replaced pod does, is found again within seconds."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from grpc import StatusCode, aio, method_handlers_generic_handler, unary_unary_rpc_method_handler

from ottla_broker.metadata import etcd
from ottla_broker.replication import grpc_peers
from ottla_cli.free_ports import free_ports
from ottla_client import connection

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

#: gRPC's default between two lookups is 30 s.
FOUND_WITHIN_S = 8.0


class Names(asyncio.DatagramProtocol):
    """A DNS server that knows one IPv4 address, for every name."""

    def __init__(self) -> None:
        self.address = ""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, peer: tuple[str, int]) -> None:
        end = data.index(0, 12) + 5  # name, type and class of the only question
        wants_ipv4 = data[end - 4 : end - 2] == b"\0\x01"
        header = data[:2] + struct.pack("!HHHHH", 0x8180, 1, int(wants_ipv4), 0, 0)
        answer = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 0, 4) + socket.inet_aton(self.address)
        self._transport.sendto(header + data[12:end] + (answer if wants_ipv4 else b""), peer)


async def server(address: str, port: int) -> aio.Server:
    async def say_where(request: bytes, context: Any) -> bytes:
        return address.encode()

    made = aio.server()
    handler = unary_unary_rpc_method_handler(say_where)
    made.add_generic_rpc_handlers((method_handlers_generic_handler("test", {"Where": handler}),))
    made.add_insecure_port(f"{address}:{port}")
    await made.start()
    return made


async def answered(channel: aio.Channel) -> str | None:
    try:
        reply: bytes = await channel.unary_unary("/test/Where")(b"", timeout=2)
    except aio.AioRpcError as error:
        assert error.code() in (StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED)
        return None
    return reply.decode()


@pytest.mark.parametrize(
    "options",
    [etcd._OPTIONS, grpc_peers._ASK_OPTIONS, connection._OPTIONS],
    ids=["etcd", "other brokers", "client"],
)
async def test_a_new_address_is_looked_up_soon(options: Sequence[tuple[str, int]]) -> None:
    names_port, port = free_ports(2)  # the name server, and the server that moves
    loop = asyncio.get_running_loop()
    transport, names = await loop.create_datagram_endpoint(Names, local_addr=("127.0.0.1", names_port))
    names.address = "127.0.0.2"
    first = await server("127.0.0.2", port)
    async with aio.insecure_channel(
        f"dns://127.0.0.1:{names_port}/pod.test:{port}", options=options
    ) as channel:
        assert await answered(channel) == "127.0.0.2"
        await first.stop(0)
        names.address = "127.0.0.3"
        second = await server("127.0.0.3", port)
        began = loop.time()
        while await answered(channel) != "127.0.0.3":
            assert loop.time() - began < FOUND_WITHIN_S
            await asyncio.sleep(0.1)
        await second.stop(0)
    transport.close()
