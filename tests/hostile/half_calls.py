"""A gRPC peer that sends its calls' messages but for the last bytes, as far as it is let: HTTP/2 by hand."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from struct import Struct

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = Struct(">IBI")
_SETTING = Struct(">HI")
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 4, 6, 8
_ACK = 1
_END_HEADERS = 4
_INITIAL_WINDOW = 4
_FRAME_BYTES = 16_384
#: Never the last of a message.
_LEFT_OUT_BYTES = 1024


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def _text(value: str) -> bytes:
    assert len(value) < 127
    return bytes([len(value)]) + value.encode()


class HalfCalls:
    """Many calls on one connection, each with a message of `size` bytes that never comes whole."""

    def __init__(self, address: str, path: str, count: int, size: int) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._path = path
        self._size = size
        self._windows = dict.fromkeys(range(1, 2 * count, 2), 65_535)
        self._initial = 65_535
        self._room = 65_535
        self._left = dict.fromkeys(self._windows, size - _LEFT_OUT_BYTES)
        self.sent = 0

    async def send(self, quiet_s: float) -> None:
        """As much as windows allow, until the broker has not let us for so long."""
        reader, writer = await asyncio.open_connection(self._host, int(self._port))
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
        headers = ((":method", "POST"), (":scheme", "http"), (":path", self._path), (":authority", "x"))
        more = (("te", "trailers"), ("content-type", "application/grpc"))
        block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers + more)
        for stream in self._windows:
            writer.write(_frame(_HEADERS, _END_HEADERS, stream, block))
            self._put(writer, stream, b"\x00" + self._size.to_bytes(4, "big"))
        with suppress(TimeoutError):
            while True:
                await asyncio.wait_for(self._take(reader, writer), quiet_s)
                self._fill(writer)
                await writer.drain()
        writer.close()

    def _put(self, writer: asyncio.StreamWriter, stream: int, data: bytes) -> None:
        self._windows[stream] -= len(data)
        self._room -= len(data)
        self.sent += len(data)
        writer.write(_frame(_DATA, 0, stream, data))

    def _fill(self, writer: asyncio.StreamWriter) -> None:
        """One frame of each call in turn, so that all of them are under way."""
        going = True
        while going and self._room:
            going = False
            for stream, window in self._windows.items():
                size = min(window, self._room, self._left[stream], _FRAME_BYTES)
                if size > 0:
                    self._left[stream] -= size
                    self._put(writer, stream, bytes(size))
                    going = True

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, flags, stream = _HEAD.unpack(await reader.readexactly(9))
        payload = await reader.readexactly(head >> 8)
        kind = head & 0xFF
        if kind == _WINDOW_UPDATE:
            grown = int.from_bytes(payload, "big")
            if stream == 0:
                self._room += grown
            else:
                self._windows[stream] += grown
        elif kind == _PING and not flags & _ACK:
            writer.write(_frame(_PING, _ACK, 0, payload))
        elif kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(payload), _SETTING.size):
                name, value = _SETTING.unpack_from(payload, at)
                if name == _INITIAL_WINDOW:
                    for each in self._windows:
                        self._windows[each] += value - self._initial
                    self._initial = value
            writer.write(_frame(_SETTINGS, _ACK, 0, b""))
