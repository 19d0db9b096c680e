"""Typed part of a Cluster's spec about access: listeners, authorisation, network policy, other namespaces. [P]

Without any of it a Cluster has one plaintext listener per protocol and no authorisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla_operator.specs import InvalidSpec

AUTHENTICATIONS = ("none", "scram", "tls")
EXTERNAL_TYPES = ("NodePort", "LoadBalancer")
#: In `allowedNamespaces`: every namespace.
ANY_NAMESPACE = "*"
#: The user that the operator logs in as; a User resource cannot have this name.
OPERATOR_USER = "ottla-operator"
_PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class External:
    """Brokers are reachable from outside of Kubernetes, with a Service each."""

    type: str
    authentication: str
    #: `{id}` is the broker id. Empty: the address of each broker's load balancer.
    host: str
    #: With NodePort: the port of broker 0; broker 1 has the next one.
    node_port: int | None = None
    grpc_node_port: int | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Addresses of load balancers by broker, as far as they are known.
    addresses: Mapping[int, str] = field(default_factory=dict)

    @property
    def is_discovered(self) -> bool:
        return not self.host

    def host_of(self, broker: int) -> str:
        """Empty: not known yet."""
        return self.host.replace("{id}", str(broker)) or self.addresses.get(broker, "")

    @classmethod
    def of(cls, spec: Mapping[str, Any], brokers: int) -> External:
        made = cls(
            spec.get("type", ""),
            spec.get("authentication", "scram"),
            spec.get("advertisedHost", ""),
            spec.get("nodePort"),
            spec.get("grpcNodePort"),
            spec.get("annotations") or {},
        )
        if made.type == "NodePort":
            firsts = [each for each in (made.node_port, made.grpc_node_port) if each is not None]
            if made.node_port is None or not made.host:
                raise InvalidSpec("listeners.external with node ports needs nodePort and advertisedHost.")
            if len(firsts) == 2 and abs(firsts[0] - firsts[1]) < brokers:
                raise InvalidSpec(
                    "listeners.external.nodePort and grpcNodePort overlap: broker n gets each of them plus n."
                )
            if max(firsts) + brokers - 1 > _PORT_MAX:
                raise InvalidSpec(
                    f"listeners.external: the last broker's node port would be above {_PORT_MAX}."
                )
        elif made.host and "{id}" not in made.host:
            raise InvalidSpec(
                "listeners.external.advertisedHost needs {id}, the broker id: each broker has its own load balancer. "
                "Without advertisedHost, the addresses of the load balancers are used."
            )
        return made


@dataclass(frozen=True, slots=True)
class Access:
    plaintext: bool = True
    #: TLS between brokers.
    internal_tls: bool = False
    #: Authentication on the listener with TLS inside of Kubernetes; None: no such listener.
    tls: str | None = None
    external: External | None = None
    #: Secret with the certificate for clients (tls.crt, tls.key, ca.crt); None: the operator makes it.
    certificate: str | None = None
    #: Secret and key of the CAs that sign client certificates; None: the Cluster's own.
    client_ca: tuple[str, str] | None = None
    principal_rules: str | None = None
    authorization: bool = False
    super_users: tuple[str, ...] = ()
    #: Whether `config` turns on an authoriser, with super users of its own.
    has_authorizer: bool = False
    network_policy: bool = False

    @property
    def is_secured(self) -> bool:
        """Brokers have certificates, and the operator logs in on a listener of its own."""
        return self.needs_login or self.internal_tls

    @property
    def needs_login(self) -> bool:
        return bool(self.tls or self.external or self.authorization or not self.plaintext)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of the load balancers that are known; with each of them the Cluster's objects change."""
        known = self.external.addresses if self.external else {}
        return tuple(f"{broker}={address}" for broker, address in sorted(known.items()))

    @property
    def authentications(self) -> tuple[str, ...]:
        found = [self.tls, self.external.authentication if self.external else None]
        return tuple(each for each in found if each is not None)

    @property
    def takes_client_certificates(self) -> bool:
        return "tls" in self.authentications

    @classmethod
    def of(cls, spec: Mapping[str, Any], config: Mapping[str, str]) -> Access:
        listeners = spec.get("listeners") or {}
        tls, external = listeners.get("tls"), listeners.get("external")
        authorization, ca = spec.get("authorization"), listeners.get("clientCa") or {}
        made = cls(
            bool((listeners.get("plaintext") or {}).get("enabled", True)),
            bool((listeners.get("internal") or {}).get("tls", False)),
            None if tls is None else tls.get("authentication", "scram"),
            None if external is None else External.of(external, spec.get("brokers", 3)),
            (listeners.get("certificate") or {}).get("secretName"),
            (ca["secretName"], ca.get("key", "ca.crt")) if ca else None,
            listeners.get("principalMappingRules"),
            authorization is not None,
            tuple((authorization or {}).get("superUsers") or ()),
            bool(config.get("authorizer.class.name")),
            bool((spec.get("networkPolicy") or {}).get("enabled", False)),
        )
        if {"none", "tls"} <= set(made.authentications):
            raise InvalidSpec(
                "listeners.tls and listeners.external cannot have the authentications none and tls together: brokers "
                "have one ssl.client.auth. Use scram for one of them."
            )
        if not made.plaintext and made.tls is None and made.external is None:
            raise InvalidSpec(
                "listeners.plaintext is off, so clients need listeners.tls or listeners.external."
            )
        if authorization is not None and made.has_authorizer:
            raise InvalidSpec(
                "authorization and config.authorizer.class.name both set the authoriser; use one."
            )
        return made
