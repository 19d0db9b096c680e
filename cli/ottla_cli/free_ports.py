"""Ports that nobody has. [A]"""

from __future__ import annotations

import random
import socket
from contextlib import closing

#: Below the range from which Linux takes ports for outgoing connections (32768 and up): there, a client that
#: keeps trying to reach a stopped broker can end up connected to itself, and the broker finds its port taken.
_LOW, _HIGH = 15_000, 32_000


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        # As servers do: connections that linger from a former owner are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Different free ports, from a random start, so that two callers at once rarely meet."""
    found: list[int] = []
    for _ in range(1000):
        if len(found) == count:
            return found
        port = random.randrange(_LOW, _HIGH)
        if port not in found and port_is_free(port, host):
            found.append(port)
    raise OSError(f"Found only {len(found)} of {count} free ports between {_LOW} and {_HIGH}.")
