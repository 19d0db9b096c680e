"""Answers to the broker's command line and does nothing else: for tests of what is around a broker."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--ready-file", required=True)
    parser.add_argument("--exit-with-parent", action="store_true")
    given = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in given.set)
    mode = settings.get("cluster.name", "")
    if mode == "refuses":
        sys.stderr.write("some noise\nottla-broker: The moon is in the wrong phase.\n")
        return 2
    stop = threading.Event()
    if mode != "stubborn":
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Dual purpose: it proves that the etcd it was told about is there, and that its own port is free.
    host, port = settings["etcd.endpoints"].split(":")
    threading.Thread(target=_watch_stdin, args=(stop,), daemon=True).start()
    for _ in range(200):
        try:
            socket.create_connection((host, int(port)), 1).close()
            break
        except OSError:
            stop.wait(0.02)
    listening = socket.create_server(("127.0.0.1", int(settings["kafka.listener"].split(":")[1])))
    facts = {"pid": os.getpid(), "id": int(settings["broker.id"])}
    facts.update({name: settings[f"{name}.listener"] for name in ("kafka", "grpc", "http")})
    with open(given.ready_file + ".new", "w") as file:
        json.dump(facts, file)
    os.replace(given.ready_file + ".new", given.ready_file)
    stop.wait(0.3 if mode == "crashes" else None)
    listening.close()
    return 70 if mode == "crashes" else 0


def _watch_stdin(stop: threading.Event) -> None:
    while os.read(0, 100):  # unbuffered: a reader that holds a lock delays the exit
        pass
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
