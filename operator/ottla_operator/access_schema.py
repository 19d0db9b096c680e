"""The schema of a Cluster's fields about access: listeners, authorisation, network policy, namespaces. [P]"""

from __future__ import annotations

from ottla_operator.access_spec import AUTHENTICATIONS, EXTERNAL_TYPES
from ottla_operator.schemas import Schema, choice, flag, listed, text, texts, thing, whole


def access_fields() -> dict[str, Schema]:
    return {
        "listeners": _listeners(),
        "authorization": thing(
            "Authorise every request by ACLs. The operator is a super user; User resources declare ACLs.",
            {
                "superUsers": listed(
                    "Users that may do everything, without the prefix User:.", _user("Name of a user."), 32
                )
            },
        ),
        "networkPolicy": thing(
            "NetworkPolicies: only the brokers reach the internal listener and the managed etcd, only operators the "
            "operator's listener.",
            {"enabled": flag("Create them.", default=False)},
            default={},
        ),
        "allowedNamespaces": listed(
            "Other namespaces whose Topics, ConsumerGroups and Users may name this Cluster; * for all.",
            text("Name of a namespace, or *.", pattern=r"^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$", maxLength=63),
            256,
            **{"x-kubernetes-list-type": "set"},
        ),
    }


def _user(description: str) -> Schema:
    return text(description, pattern=r"^[^;:\s]+$", minLength=1, maxLength=249)


def _listeners() -> Schema:
    external = thing(
        "Kafka on port 9094 and gRPC on port 9194, with TLS, for clients outside of Kubernetes: a Service per broker.",
        {
            "type": choice("Type of the Services.", EXTERNAL_TYPES),
            "authentication": _authentication(),
            "advertisedHost": text(
                "Address that clients connect to; {id} is the broker id. With NodePort also a node's address, the same "
                "for all. With LoadBalancer by default the address that Kubernetes gives each Service.",
                minLength=1,
                maxLength=253,
                pattern=r"^[-a-zA-Z0-9.{}]+$",
            ),
            "nodePort": whole("With NodePort: the port of broker 0; broker n has n more.", 1024, 65535),
            "grpcNodePort": whole("With NodePort: the same for gRPC; none if it is not set.", 1024, 65535),
            "annotations": texts("Annotations of the Services; {id} is the broker id.", maxProperties=64),
        },
        required=("type",),
        rules=[
            (
                "self.type != 'NodePort' || (has(self.nodePort) && has(self.advertisedHost))",
                "the type NodePort needs nodePort and advertisedHost",
            )
        ],
    )
    return thing(
        "How clients and brokers connect.",
        {
            "plaintext": thing(
                "Ports 9092 and 9192, without TLS or login.",
                {"enabled": flag("Whether they are served.", default=True)},
            ),
            "internal": thing(
                "Between the brokers.",
                {"tls": flag("Encrypt, with certificates of the operator.", default=False)},
            ),
            "tls": thing(
                "Kafka on port 9093 and gRPC on port 9193, with TLS, inside of Kubernetes.",
                {"authentication": _authentication()},
            ),
            "external": external,
            "certificate": thing(
                "The brokers' certificate for clients. Default: the operator makes and renews it.",
                {
                    "secretName": _secret(
                        "Secret with tls.crt, tls.key and ca.crt, as cert-manager writes it."
                    )
                },
                required=("secretName",),
            ),
            "clientCa": thing(
                "The CAs that sign client certificates. Default: the operator's, which signs those of Users.",
                {
                    "secretName": _secret("Secret with the PEM certificates."),
                    "key": text("Key in the Secret.", default="ca.crt", minLength=1, maxLength=253),
                },
                required=("secretName",),
            ),
            "principalMappingRules": text(
                "Kafka's ssl.principal.mapping.rules. Default: the common name for the operator's client CA, else "
                "the whole subject.",
                maxLength=4096,
            ),
        },
    )


def _authentication() -> Schema:
    return choice(
        "scram: user and password; tls: a client certificate; none.", AUTHENTICATIONS, default="scram"
    )


def _secret(description: str) -> Schema:
    return text(description, minLength=1, maxLength=253)
