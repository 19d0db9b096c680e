"""What listeners with TLS, logins and authorisation add to the objects of a Cluster. [P]

Called by `resources.py`; without such listeners everything here is empty. Ports: 9093 and 9193 with TLS inside of
Kubernetes, 9094 and 9194 for the outside, 9195 for the operator. The operator has a listener of its own, so that it
never depends on how clients log in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla_operator.access_spec import OPERATOR_USER, Access, External
from ottla_operator.internal_tls import ON, PREPARED
from ottla_operator.pod_parts import POD_NAME_LABEL, env_value, labels_of, metadata
from ottla_operator.specs import Meta

KAFKA_PORT, GRPC_PORT = 9092, 9192
KAFKA_TLS_PORT, GRPC_TLS_PORT = 9093, 9193
KAFKA_EXTERNAL_PORT, GRPC_EXTERNAL_PORT = 9094, 9194
OPERATOR_PORT = 9195
_PEER_FOLDER, _CLIENT_FOLDER = "/etc/ottla-peer-tls", "/etc/ottla-tls"
_CLIENT_CA_FOLDER, _LOGIN_FOLDER = "/etc/ottla-client-ca", "/etc/ottla-operator"
#: Readable by the pod's group, the only identity that the broker has.
_MODE = 0o440
_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
#: Certificates of the operator have nothing but a common name, which is the principal.
_PRINCIPAL_RULES = "RULE:^CN=([a-zA-Z0-9._-]+)$/$1/,DEFAULT"

Object = dict[str, Any]


def ca_secret(meta: Meta) -> str:
    """The CA that signs certificates of brokers, with its key. Mounted nowhere."""
    return f"{meta.name}-ca"


def ca_certificate_secret(meta: Meta) -> str:
    """The CA's certificate only, for clients."""
    return f"{meta.name}-ca-cert"


def clients_ca_secret(meta: Meta) -> str:
    """The CA that signs certificates of Users, with its key. Mounted nowhere."""
    return f"{meta.name}-clients-ca"


def clients_ca_certificate_secret(meta: Meta) -> str:
    return f"{meta.name}-clients-ca-cert"


def broker_certificate_secret(meta: Meta) -> str:
    return f"{meta.name}-broker-tls"


def operator_secret(meta: Meta) -> str:
    """User and password of the operator, in the form of `sasl.users.file` too."""
    return f"{meta.name}-operator"


def peer_name(meta: Meta) -> str:
    """The name in the certificates of all brokers, by which they know each other."""
    return f"{meta.name}-brokers.{meta.namespace}.svc"


def hosts(meta: Meta, access: Access, brokers: int) -> tuple[str, ...]:
    """All names that clients and brokers use; localhost is for port forwarding."""
    services = [f"{meta.name}-brokers", f"{meta.name}-bootstrap"]
    services += [f"{meta.name}-broker-{number}" for number in range(brokers)]
    found = [f"{each}.{meta.namespace}.svc" for each in services]
    found += [f"{each}.cluster.local" for each in found]
    if access.external:
        found += [host for number in range(brokers) if (host := access.external.host_of(number))]
    return tuple(dict.fromkeys([*found, "localhost", "127.0.0.1"]))


def settings(access: Access, meta: Meta, internal: str, config: Mapping[str, str]) -> dict[str, str]:
    """`internal` is the phase of TLS between brokers (`internal_tls.py`)."""
    made: dict[str, str] = {}
    if internal in (ON, PREPARED):
        made |= {
            "internal.security.protocol": "SSL" if internal == ON else "PLAINTEXT",
            "internal.ssl.keystore.location": f"{_PEER_FOLDER}/tls.crt",
            "internal.ssl.key.location": f"{_PEER_FOLDER}/tls.key",
            "internal.ssl.truststore.location": f"{_PEER_FOLDER}/ca.crt",
            "internal.ssl.server.name": peer_name(meta),
        }
    if not access.needs_login:
        return made
    kafka, grpc = _listeners(access)
    made |= {
        "listeners": ",".join(f"{name}://0.0.0.0:{port}" for name, port, _ in kafka),
        "grpc.listeners": ",".join(f"{name}://0.0.0.0:{port}" for name, port, _ in grpc),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, _, kind in (*kafka, *grpc)),
        "ssl.keystore.location": f"{_CLIENT_FOLDER}/tls.crt",
        "ssl.key.location": f"{_CLIENT_FOLDER}/tls.key",
        "sasl.users.file": f"{_LOGIN_FOLDER}/users",
    }
    if access.takes_client_certificates:
        made |= {
            "ssl.client.auth": "required",
            "ssl.truststore.location": f"{_CLIENT_CA_FOLDER}/ca.crt",
            "ssl.principal.mapping.rules": access.principal_rules
            or (_PRINCIPAL_RULES if access.client_ca is None else "DEFAULT"),
        }
    if access.authorization or access.has_authorizer:
        own = [f"User:{name}" for name in (OPERATOR_USER, *access.super_users)]
        others = [each for each in config.get("super.users", "").split(";") if each.strip()]
        made["super.users"] = ";".join(dict.fromkeys([*own, *others]))
        made["authorizer.class.name"] = config.get("authorizer.class.name") or _AUTHORIZER
    return made


def _listeners(access: Access) -> tuple[list[tuple[str, int, str]], list[tuple[str, int, str]]]:
    """(name, port, security protocol) of the listeners of each protocol. The plaintext ones keep their names."""
    kafka, grpc = [], []
    if access.plaintext:
        kafka.append(("kafka", KAFKA_PORT, "PLAINTEXT"))
        grpc.append(("grpc", GRPC_PORT, "PLAINTEXT"))
    if access.tls:
        kafka.append(("kafkatls", KAFKA_TLS_PORT, _protocol(access.tls)))
        grpc.append(("grpctls", GRPC_TLS_PORT, _protocol(access.tls)))
    if access.external:
        protocol = _protocol(access.external.authentication)
        kafka.append(("kafkaext", KAFKA_EXTERNAL_PORT, protocol))
        if _has_external_grpc(access.external):
            grpc.append(("grpcext", GRPC_EXTERNAL_PORT, protocol))
    grpc.append(("operator", OPERATOR_PORT, "SASL_SSL"))
    return kafka, grpc


def _protocol(authentication: str) -> str:
    return "SASL_SSL" if authentication == "scram" else "SSL"


def _has_external_grpc(external: External) -> bool:
    return external.type == "LoadBalancer" or external.grpc_node_port is not None


def env(access: Access, address: str) -> list[Object]:
    """Advertised addresses; `address` is the broker's name inside of Kubernetes. Others are in `settings_files`."""
    if not access.needs_login or access.external:
        return []
    return [
        env_value(variable, ",".join(f"{name}://{address}:{port}" for name, port, _ in listeners))
        for variable, listeners in zip(
            ("OTTLA_ADVERTISED_LISTENERS", "OTTLA_ADVERTISED_GRPC_LISTENERS"), _listeners(access), strict=True
        )
    ]


def settings_file(access: Access) -> str:
    """Name of a broker's settings in the ConfigMap."""
    return "broker-$(OTTLA_BROKER_ID).properties" if access.external else "ottla.properties"


def restarting(access: Access) -> dict[str, str]:
    """What a broker reads at start besides the common settings, as far as it is in the spec.

    Addresses that were found later are not in it: another broker's address restarts no broker.
    """
    if access.external is None:
        return {}
    external = access.external
    return {"external": f"{external.type} {external.host} {external.node_port} {external.grpc_node_port}"}


def settings_files(access: Access, meta: Meta, brokers: int, common: str) -> dict[str, str]:
    """With external listeners: `common` and the advertised addresses of each broker whose addresses are known.

    Variables would do for addresses that differ in the broker id only; node ports are sums, and load balancers have
    any address.
    """
    if access.external is None:
        return {}
    return {
        f"broker-{broker}.properties": common + _advertised(access, access.external, meta, broker)
        for broker in range(brokers)
        if access.external.host_of(broker)
    }


def _advertised(access: Access, external: External, meta: Meta, broker: int) -> str:
    inside = f"{meta.name}-broker-{broker}.{meta.namespace}.svc"
    outside = {
        "kafkaext": (external.host_of(broker), external.node_port),
        "grpcext": (external.host_of(broker), external.grpc_node_port),
    }
    lines = []
    for setting, listeners in zip(
        ("advertised.listeners", "advertised.grpc.listeners"), _listeners(access), strict=True
    ):
        parts = []
        for name, port, _ in listeners:
            host, first = outside.get(name, (inside, None))
            is_node_port = external.type == "NodePort" and first is not None
            parts.append(f"{name}://{_bracketed(host)}:{first + broker if is_node_port and first else port}")
        lines.append(f"{setting}={','.join(parts)}\n")
    return "".join(lines)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def ports(access: Access) -> list[tuple[str, int]]:
    """Names and numbers of the additional container ports."""
    if not access.needs_login:
        return []
    kafka, grpc = _listeners(access)
    return [(name, port) for name, port, _ in (*kafka, *grpc) if name not in ("kafka", "grpc")]


def service_ports(access: Access, *, operator: bool = False) -> list[tuple[str, int]]:
    """Of the Services inside of Kubernetes."""
    inside = ("kafkatls", "grpctls", *(("operator",) if operator else ()))
    return [(name, port) for name, port in ports(access) if name in inside]


def volumes(access: Access, meta: Meta, internal: str) -> list[Object]:
    made = []
    if internal in (ON, PREPARED):
        made.append(_secret_volume("peer-tls", broker_certificate_secret(meta)))
    if access.needs_login:
        made.append(_secret_volume("client-tls", access.certificate or broker_certificate_secret(meta)))
        made.append(_secret_volume("operator-login", operator_secret(meta), {"users": "users"}))
    if access.takes_client_certificates:
        secret, key = access.client_ca or (clients_ca_certificate_secret(meta), "ca.crt")
        made.append(_secret_volume("client-ca", secret, {key: "ca.crt"}))
    return made


def mounts(access: Access, internal: str) -> list[Object]:
    found = [("peer-tls", _PEER_FOLDER)] if internal in (ON, PREPARED) else []
    if access.needs_login:
        found += [("client-tls", _CLIENT_FOLDER), ("operator-login", _LOGIN_FOLDER)]
    if access.takes_client_certificates:
        found.append(("client-ca", _CLIENT_CA_FOLDER))
    return [{"name": name, "mountPath": folder, "readOnly": True} for name, folder in found]


def _secret_volume(name: str, secret: str, items: Mapping[str, str] | None = None) -> Object:
    source: Object = {"secretName": secret, "defaultMode": _MODE}
    if items:
        source["items"] = [{"key": key, "path": path} for key, path in items.items()]
    return {"name": name, "secret": source}


def external_service_name(meta: Meta, broker: int) -> str:
    return f"{meta.name}-broker-{broker}-external"


def external_service(meta: Meta, external: External, broker: int) -> Object:
    """The way from outside to one broker; any of them is a bootstrap address."""
    pod = f"{meta.name}-broker-{broker}"
    rows = [("kafkaext", KAFKA_EXTERNAL_PORT, external.node_port)]
    if _has_external_grpc(external):
        rows.append(("grpcext", GRPC_EXTERNAL_PORT, external.grpc_node_port))
    made: list[Object] = []
    for name, port, first in rows:
        row: Object = {"name": name, "port": port, "targetPort": name}
        if external.type == "NodePort" and first is not None:
            row["nodePort"] = first + broker
        made.append(row)
    about = metadata(meta, external_service_name(meta, broker), "broker")
    if external.annotations:
        about["annotations"] = {
            name: text.replace("{id}", str(broker)) for name, text in external.annotations.items()
        }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": about,
        "spec": {
            "type": external.type,
            "publishNotReadyAddresses": True,
            "selector": {**labels_of(meta, "broker"), POD_NAME_LABEL: pod},
            "ports": made,
        },
    }


def bootstrap(meta: Meta, access: Access, brokers: int) -> dict[str, str]:
    """`status.bootstrap`, besides the plaintext addresses."""
    service = f"{meta.name}-bootstrap.{meta.namespace}.svc"
    made = {"kafka": f"{service}:{KAFKA_PORT}", "grpc": f"{service}:{GRPC_PORT}"} if access.plaintext else {}
    if access.tls:
        made |= {"kafkaTls": f"{service}:{KAFKA_TLS_PORT}", "grpcTls": f"{service}:{GRPC_TLS_PORT}"}
    if access.external:
        first = access.external
        is_node = first.type == "NodePort" and first.node_port is not None
        known = [(n, host) for n in range(brokers) if (host := first.host_of(n))][:3]
        if known:
            made["kafkaExternal"] = ",".join(
                f"{_bracketed(host)}:{(first.node_port or 0) + n if is_node else KAFKA_EXTERNAL_PORT}"
                for n, host in known
            )
    return made
