"""The smallest broker that a producer believes in: it answers three requests and keeps the batches it is sent.

Only for `capture.py`. Old, inflexible versions keep it small; Produce 7 is the first that carries zstd.
"""

from __future__ import annotations

import socket
import struct
import threading

PRODUCE, METADATA, API_VERSIONS = 0, 3, 18
_UNSUPPORTED_VERSION = 35
#: key: (min, max). Those that we do not answer are here because librdkafka compresses only for brokers that have them.
_OFFERED = {PRODUCE: (0, 7), 1: (0, 11), 2: (0, 5), METADATA: (0, 4), 10: (0, 2), API_VERSIONS: (0, 0)}


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> int:
        (value,) = struct.unpack_from(">" + form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def text(self) -> str | None:
        data = self.raw("h")
        return None if data is None else data.decode()

    def raw(self, form: str = "i") -> bytes | None:
        size = self.take(form)
        if size < 0:
            return None
        self.at += size
        return self.data[self.at - size : self.at]


def _text(value: str | None) -> bytes:
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value)) + value.encode()


class FakeBroker:
    """One partition of every topic, led by broker 0 at `address`; what is produced lands in `batches`."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.batches: list[bytes] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while len(size := stream.read(4)) == 4:
                request = _Reader(stream.read(struct.unpack(">i", size)[0]))
                key, version, correlation = request.take("h"), request.take("h"), request.take("i")
                request.text()  # client id
                if key == API_VERSIONS:
                    body = self._api_versions(version)
                elif key == METADATA:
                    body = self._metadata(request)
                elif key == PRODUCE:
                    body = self._produce(request)
                else:
                    return
                connection.sendall(struct.pack(">ii", len(body) + 4, correlation) + body)

    def _api_versions(self, version: int) -> bytes:
        # A version that we do not know is answered in version 0, with the error and the list: then they ask again.
        body = struct.pack(">hi", _UNSUPPORTED_VERSION if version else 0, len(_OFFERED))
        return body + b"".join(struct.pack(">hhh", key, low, high) for key, (low, high) in _OFFERED.items())

    def _metadata(self, request: _Reader) -> bytes:
        topics = [request.text() for _ in range(max(0, request.take("i")))]
        body = struct.pack(">iii", 0, 1, 0) + _text("127.0.0.1") + struct.pack(">i", self.port) + _text(None)
        body += _text("fake") + struct.pack(">ii", 0, len(topics))
        for topic in topics:
            body += struct.pack(">h", 0) + _text(topic) + struct.pack(">bi", 0, 1)
            body += struct.pack(">hiiiiii", 0, 0, 0, 1, 0, 1, 0)
        return body

    def _produce(self, request: _Reader) -> bytes:
        request.text()  # transactional id
        request.take("h")
        request.take("i")
        body = b""
        topics = request.take("i")
        for _ in range(topics):
            body += _text(request.text())
            partitions = request.take("i")
            body += struct.pack(">i", partitions)
            for _ in range(partitions):
                index, records = request.take("i"), request.raw()
                self.batches.append(records or b"")
                body += struct.pack(">ihqqq", index, 0, 0, -1, 0)
        return struct.pack(">i", topics) + body + struct.pack(">i", 0)
