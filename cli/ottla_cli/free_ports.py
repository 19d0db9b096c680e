"""Find free TCP ports and check given ones. [A]"""

from __future__ import annotations

import random
import socket
from contextlib import closing

from ottla_cli.failure import Failure

PORT_MAX = 65_535
#: Below the range from which Linux takes ports for outgoing connections (32768 and up): there, a client that
#: keeps trying to reach a stopped broker can end up connected to itself, and the broker finds its port taken.
_LOW, _HIGH = 15_000, 32_000


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    return port_trouble(port, host) is None


def port_trouble(port: int, host: str = "127.0.0.1") -> str | None:
    """Why the port cannot be used; None if it is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        # As servers do: connections in TIME_WAIT must not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except PermissionError:
            return "needs more privileges"
        except OSError:
            return "is in use"
    return None


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Distinct free ports, from a random start, so that concurrent callers rarely choose the same."""
    found: list[int] = []
    for _ in range(1000):
        if len(found) == count:
            return found
        port = random.randrange(_LOW, _HIGH)
        if port not in found and port_is_free(port, host):
            found.append(port)
    raise OSError(f"Found only {len(found)} of {count} free ports between {_LOW} and {_HIGH}.")


def check_port(port: int, number: int, name: str, given: dict[int, str]) -> None:
    """Fail if the port cannot be used; 0 means any. `given` has the ports of earlier brokers; this one is added."""
    if not port:
        return
    other = f"choose another with --{name}-port."
    if port > PORT_MAX:
        raise Failure(f"Port {port} for broker {number} is out of range; {other}")
    if port in given:
        raise Failure(f"Port {port} is assigned to both broker {number} ({name}) and {given[port]}; {other}")
    if (trouble := port_trouble(port)) is not None:
        raise Failure(
            f"Port {port} on 127.0.0.1 (broker {number}, {name}) {trouble}; stop the process that uses it, or {other}"
        )
    given[port] = f"broker {number} ({name})"
