"""A real etcd behind TLS, client certificates and a login: certificates by openssl, users by etcd's own API."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from aetcd import rpc
from aetcd.rpc.rpc_pb2_grpc import AuthStub

from conformance.etcd_process import EtcdProcess, running_etcd
from ottla_broker.metadata.etcd import EtcdLogin, EtcdStore, EtcdTls

USER = "ottla"
PASSWORD = "of all the letters, this one"


@dataclass(frozen=True)
class Secured:
    etcd: EtcdProcess
    folder: Path

    def pem(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    @property
    def tls(self) -> EtcdTls:
        return EtcdTls(*(self.pem(name).read_bytes() for name in ("ca", "client", "client-key")))

    def store(self, password: str = PASSWORD, tls: EtcdTls | None = None) -> EtcdStore:
        login = EtcdLogin(USER, password)
        return EtcdStore(
            [self.etcd.endpoint], "/ottla/secured", tls=tls or self.tls, login=login, timeout_s=5
        )


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


def _make_certificates(folder: Path) -> None:
    """A root of our own, and two who are vouched for by it: the server by its address, and the client."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    ca, ca_key = str(folder / "ca.pem"), str(folder / "ca-key.pem")
    _openssl("req", "-x509", *key, "-subj", "/CN=root", "-keyout", ca_key, "-out", ca)
    for name, purpose in (("server", "serverAuth,clientAuth"), ("client", "clientAuth")):
        request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName=IP:127.0.0.1\nextendedKeyUsage={purpose}\n")
        own_key = str(folder / f"{name}-key.pem")
        _openssl("req", *key, "-subj", f"/CN={name}", "-keyout", own_key, "-out", str(request))
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2",
            "-extfile", str(extensions), "-out", str(folder / f"{name}.pem"),
        )  # fmt: skip


def _make_users(secured: Secured) -> None:
    """Logins are asked for from here on; `ottla` may do everything below /ottla/ and nothing else."""
    tls = secured.tls
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
    with grpc.secure_channel(secured.etcd.endpoint, credentials) as channel:
        auth = AuthStub(channel)
        for user, role in (("root", "root"), (USER, "broker")):
            auth.UserAdd(rpc.AuthUserAddRequest(name=user, password=PASSWORD), timeout=10)
            auth.RoleAdd(rpc.AuthRoleAddRequest(name=role), timeout=10)
            auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=user, role=role), timeout=10)
        allowed = rpc.Permission(permType=rpc.Permission.READWRITE, key=b"/ottla/", range_end=b"/ottla0")
        auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name="broker", perm=allowed), timeout=10)
        auth.AuthEnable(rpc.AuthEnableRequest(), timeout=10)


@contextmanager
def running_secured_etcd(folder: Path) -> Iterator[Secured]:
    _make_certificates(folder)
    flags = (
        "--cert-file", str(folder / "server.pem"), "--key-file", str(folder / "server-key.pem"),
        "--trusted-ca-file", str(folder / "ca.pem"), "--client-cert-auth",
    )  # fmt: skip
    with running_etcd(folder / "etcd", *flags, scheme="https") as etcd:
        made = Secured(etcd, folder)
        _make_users(made)
        yield made
