"""A service that publishes what it receives: one line over TCP is one record, and the answer is its offset.

    python examples/async_service.py 127.0.0.1:9192 --port 7000
    printf 'hello\n' | nc -N 127.0.0.1 7000

All connections share one producer, so their records share batches. SIGTERM ends it: it takes no new connections,
waits until everything it has accepted is acknowledged, and exits.
"""

from __future__ import annotations

import argparse
import asyncio
import signal

from ottla_client import ClientError, Producer, RequestError


async def serve(address: str, port: int, topic: str) -> None:
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)

    # Leaving the block waits for all acknowledgements.
    async with Producer(address, client_id="line-service", compression="zstd") as producer:

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while line := await reader.readline():
                    try:
                        where = await producer.send_and_wait(topic, line.rstrip(b"\n"))
                        answer = f"{where.partition}:{where.offset}"
                    except (ClientError, RequestError) as error:
                        answer = f"error: {error}"  # the producer has retried for delivery_timeout_ms
                    writer.write(f"{answer}\n".encode())
                    await writer.drain()
            finally:
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", port)
        print(f"listening on {server.sockets[0].getsockname()[1]}", flush=True)
        async with server:
            await stop.wait()
    print("stopped", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address", nargs="?", default="127.0.0.1:9192")
    parser.add_argument("--port", type=int, default=7000)
    parser.add_argument("--topic", default="lines")
    chosen = parser.parse_args()
    asyncio.run(serve(chosen.address, chosen.port, chosen.topic))
