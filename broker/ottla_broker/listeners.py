"""The listeners of one broker: name, protocol, bind address, advertised address, security. [P]

`listeners` and `grpc.listeners` name any number of them, in Kafka's notation. Without them each protocol has one, from
`kafka.listener` and `grpc.listener`. Other brokers always use `internal.listener`. Called by `config.py`, which checks
them, and by the composition root, which makes an edge for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ottla_broker.setting import Address, ConfigError, Listener

if TYPE_CHECKING:
    from ottla_broker.config import BrokerConfig

PLAINTEXT = "PLAINTEXT"
SSL = "SSL"
SASL_PLAINTEXT = "SASL_PLAINTEXT"
SASL_SSL = "SASL_SSL"
#: Kafka's names of security protocols that are served; a listener of that name needs no row in the map.
SECURITY_PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
_EVERY_ADDRESS = ("0.0.0.0", "::")
#: A list of listeners, and the settings of a single one that it replaces.
REPLACED_BY_LISTS = (
    ("listeners", "kafka.listener"),
    ("listeners", "kafka.advertised"),
    ("grpc.listeners", "grpc.listener"),
    ("grpc.listeners", "grpc.advertised"),
)


@dataclass(frozen=True, slots=True)
class ServedListener:
    #: Metadata asked on this listener has the addresses of the listeners of the same name.
    name: str
    #: `kafka`, `grpc` or `internal`.
    protocol: str
    bind: Address
    #: None for the bind address; port 0 for the bound port.
    advertised: Address | None
    security: str
    #: The setting that it comes from, for error messages.
    setting: str

    @property
    def has_tls(self) -> bool:
        return self.security in (SSL, SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self.security in (SASL_PLAINTEXT, SASL_SSL)

    def endpoint(self, bound_port: int) -> Address:
        """The address that clients are given."""
        address = self.advertised or self.bind
        return Address(address.host, address.port or bound_port)


class _Edge(Protocol):
    """The part of `KafkaEdgeConfig` and `GrpcEdgeConfig` that is about listeners."""

    @property
    def listener(self) -> Listener: ...
    @property
    def advertised(self) -> Address | None: ...
    @property
    def listeners(self) -> tuple[Listener, ...] | None: ...
    @property
    def advertised_listeners(self) -> tuple[Listener, ...] | None: ...


def listeners_of(config: BrokerConfig) -> tuple[ServedListener, ...]:
    """All listeners for clients and brokers, the main one of each protocol first. ConfigError if they contradict."""
    security = config.kafka.security_protocols or {}
    internal = config.internal.listener
    made = (
        *_of_edge("kafka", "", config.kafka, security),
        *_of_edge("grpc", "grpc.", config.grpc, security),
        ServedListener(
            internal.name,
            "internal",
            Address(internal.host, internal.port),
            config.internal.advertised,
            config.internal_tls.security,
            "internal.listener",
        ),
    )
    _check(made, security)
    return made


def _of_edge(
    protocol: str, prefix: str, edge: _Edge, security: Mapping[str, str]
) -> tuple[ServedListener, ...]:
    if not edge.listeners:
        if edge.advertised_listeners:
            raise ConfigError(f"advertised.{prefix}listeners needs {prefix}listeners, which is not set.")
        one = edge.listener
        given = security.get(one.name, PLAINTEXT)
        bind = Address(one.host, one.port)
        return (ServedListener(one.name, protocol, bind, edge.advertised, given, f"{protocol}.listener"),)
    advertised = {each.name: Address(each.host, each.port) for each in edge.advertised_listeners or ()}
    made = []
    for each in edge.listeners:
        given = security.get(each.name, each.name)
        if given not in SECURITY_PROTOCOLS:
            raise ConfigError(
                f"Listener {each.name} has no security protocol: add {each.name}:{PLAINTEXT} to "
                "listener.security.protocol.map."
            )
        bind = Address(each.host, each.port)
        address = advertised.pop(each.name, None)
        made.append(ServedListener(each.name, protocol, bind, address, given, f"{prefix}listeners"))
    if advertised:
        unknown = ", ".join(sorted(advertised))
        raise ConfigError(f"advertised.{prefix}listeners names {unknown}, but {prefix}listeners does not.")
    return tuple(made)


def _check(made: tuple[ServedListener, ...], security: Mapping[str, str]) -> None:
    names: dict[str, ServedListener] = {}
    for each in made:
        other = names.setdefault(each.name, each)
        if other is not each:
            raise ConfigError(f"{other.setting} and {each.setting} both have a listener {each.name}.")
        host = (each.advertised or each.bind).host
        if host in _EVERY_ADDRESS:
            missing = (
                f"{each.protocol}.advertised"
                if each.setting.endswith(".listener")
                else f"advertised.{each.setting}"
            )
            users = "other brokers" if each.protocol == "internal" else "clients"
            raise ConfigError(
                f"{missing} must be set to an address {users} can reach, because {host} means "
                f"every address of this machine ({each.setting} = {each.bind})."
            )
    if security.get(made[-1].name, PLAINTEXT) != PLAINTEXT:
        raise ConfigError(
            "internal.listener is not for clients: remove it from listener.security.protocol.map, and use "
            "internal.security.protocol."
        )
    if unknown := sorted(set(security) - set(names)):
        raise ConfigError(
            f"listener.security.protocol.map names {', '.join(unknown)}, but no listener has that name."
        )
