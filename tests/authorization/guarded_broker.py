"""A broker with an authoriser: the plaintext listeners are the administrator's, TLS clients are what their certificate
says."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import grpc
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from certificates import Authority
from ottla_bench.kafka_jars import run_tool
from ottla_broker.authorizer_config import STANDARD
from ottla_cli.local_cluster import LocalCluster

USERS = ("alice", "bob", "carol")


class GuardedBroker:
    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.authority = Authority(folder / "ca")
        certificate = self.authority.issue("broker", "/CN=broker", into=folder / "broker.pem")
        self._users = {name: self.authority.issue(name, f"/CN={name}") for name in USERS}
        self.cluster = LocalCluster(
            settings={
                "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
                "advertised.listeners": "SSL://localhost:0",
                "grpc.listeners": "NATIVE://127.0.0.1:0,SECURED://127.0.0.1:0",
                "listener.security.protocol.map": "NATIVE:PLAINTEXT,SECURED:SSL",
                "ssl.keystore.location": str(certificate),
                "ssl.truststore.location": str(self.authority.file),
                "ssl.client.auth": "required",
                "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/",
                "authorizer.class.name": STANDARD,
                "super.users": "User:ANONYMOUS;User:carol",
                "offsets.topic.num.partitions": "4",
                "transaction.state.log.num.partitions": "4",
                **settings,
            }
        )
        self.cluster.start()
        facts = json.loads(Path(self.cluster.folder.file("broker-0.ready")).read_text())
        self.plain = facts["kafka"]
        self.secured = f"localhost:{facts['listener.SSL'].rpartition(':')[2]}"
        self.native = facts["grpc"]
        self.secured_native = f"localhost:{facts['listener.SECURED'].rpartition(':')[2]}"
        self.admin = AdminClient({"bootstrap.servers": self.plain})

    def stop(self) -> None:
        self.cluster.stop()

    @property
    def log(self) -> str:
        return Path(self.cluster.folder.file("broker-0.log")).read_text()

    def certificate(self, user: str) -> Path:
        return self._users[user]

    def librdkafka(self, user: str, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.secured,
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.authority.file),
            "ssl.certificate.location": str(self._users[user]),
            "ssl.key.location": str(self._users[user]),
        } | {name.replace("_", "."): value for name, value in more.items()}

    def channel(self, user: str) -> grpc.Channel:
        both = self._users[user].read_bytes()
        credentials = grpc.ssl_channel_credentials(self.authority.file.read_bytes(), both, both)
        return grpc.secure_channel(self.secured_native, credentials)

    def java_properties(self, user: str) -> Path:
        """A file for the option of Kafka's tools that takes client properties."""
        file = self.folder / f"{user}.properties"
        with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False) as made:
            made.write(
                "security.protocol=SSL\nssl.truststore.type=PEM\nssl.keystore.type=PEM\n"
                f"ssl.truststore.location={self.authority.file}\nssl.keystore.location={self._users[user]}\n"
            )
        os.replace(made.name, file)
        return file

    # ------------------------------------------------------------------ ACLs

    def allow(self, user: str, operation: str, kind: str, name: str, *, prefixed: bool = False) -> None:
        self._add(user, operation, kind, name, AclPermissionType.ALLOW, prefixed=prefixed)

    def deny(self, user: str, operation: str, kind: str, name: str) -> None:
        self._add(user, operation, kind, name, AclPermissionType.DENY, prefixed=False)

    def _add(
        self, user: str, operation: str, kind: str, name: str, permission: Any, *, prefixed: bool
    ) -> None:
        binding = AclBinding(
            # librdkafka calls the cluster as in ConfigResource, and sends the same number.
            ResourceType.BROKER if kind == "CLUSTER" else getattr(ResourceType, kind),
            name,
            ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            getattr(AclOperation, operation),
            permission,
        )
        for made in self.admin.create_acls([binding]).values():
            made.result(timeout=30)

    def forget_acls(self) -> None:
        everything = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for made in self.admin.delete_acls([everything]).values():
            made.result(timeout=30)

    def tool(self, main_class: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One of Kafka's tools, as the administrator."""
        return run_tool(main_class, "--bootstrap-server", self.plain, *arguments)
