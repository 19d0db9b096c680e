"""etcd behind TLS, client certificates and a login, for real: certificates by openssl, users by etcd's own API."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from aetcd import rpc
from aetcd.rpc.rpc_pb2_grpc import AuthStub

from conformance.etcd_process import EtcdProcess, running_etcd
from ottla_broker.controller.etcd import EtcdLogin, EtcdStore, EtcdTls
from ottla_broker.exit_codes import ExitCode
from ottla_core.ports.store import Branch, Put, StoreError

pytestmark = pytest.mark.integration

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
        login = EtcdLogin("ottla", password)
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
        for user, role in (("root", "root"), ("ottla", "broker")):
            auth.UserAdd(rpc.AuthUserAddRequest(name=user, password=PASSWORD), timeout=10)
            auth.RoleAdd(rpc.AuthRoleAddRequest(name=role), timeout=10)
            auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=user, role=role), timeout=10)
        allowed = rpc.Permission(permType=rpc.Permission.READWRITE, key=b"/ottla/", range_end=b"/ottla0")
        auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name="broker", perm=allowed), timeout=10)
        auth.AuthEnable(rpc.AuthEnableRequest(), timeout=10)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    _make_certificates(folder)
    flags = (
        "--cert-file", str(folder / "server.pem"), "--key-file", str(folder / "server-key.pem"),
        "--trusted-ca-file", str(folder / "ca.pem"), "--client-cert-auth",
    )  # fmt: skip
    with running_etcd(folder / "etcd", *flags, scheme="https") as etcd:
        made = Secured(etcd, folder)
        _make_users(made)
        yield made


@pytest.fixture
async def store(secured: Secured) -> AsyncIterator[EtcdStore]:
    made = secured.store()
    yield made
    await made.close()


async def test_keys_leases_and_watches(store: EtcdStore) -> None:
    lease = await store.grant_lease(30)
    before = (await store.scan("")).revision
    await store.transact([], [Branch((), (Put("a", b"1", lease),))])
    assert await store.keep_alive(lease) > 0
    entry = await store.get("a")
    assert entry is not None and entry.value == b"1"
    async with aclosing(store.watch("", before)) as watch:  # type: ignore[type-var]
        async for revision in watch:
            if revision.changes:
                break
    await store.revoke_lease(lease)


async def test_a_login_outlives_etcd(secured: Secured, store: EtcdStore) -> None:
    await store.scan("")
    secured.etcd.kill()
    secured.etcd.start()  # It knows none of the tokens that it gave out.
    for _ in range(100):
        try:
            await store.scan("")
            break
        except StoreError as error:
            assert "UNAVAILABLE" in str(error) or "DEADLINE" in str(error)
    await store.transact([], [Branch((), (Put("b", b"2"),))])


async def test_who_is_not_known_is_refused_with_the_reason(secured: Secured) -> None:
    wrong = secured.store(password="open sesame")
    with pytest.raises(StoreError, match="authentication failed"):
        await wrong.get("a")
    await wrong.close()
    nobody = secured.store(tls=EtcdTls(ca=secured.tls.ca))
    with pytest.raises(StoreError, match="UNAVAILABLE"):
        await nobody.get("a")
    await nobody.close()


def _broker(secured: Secured, folder: Path, **changed: str) -> subprocess.Popen[str]:
    (folder / "password").write_text(PASSWORD + "\n")
    settings = {
        **{f"{edge}.listener": "127.0.0.1:0" for edge in ("kafka", "grpc", "http")},
        "etcd.endpoints": secured.etcd.endpoint,
        "etcd.user": "ottla",
        "etcd.password.file": str(folder / "password"),
        "etcd.tls.enable": "true",
        "etcd.tls.ca.file": str(secured.pem("ca")),
        "etcd.tls.certificate.file": str(secured.pem("client")),
        "etcd.tls.key.file": str(secured.pem("client-key")),
        "cluster.name": "secured",
        "log.dirs": str(folder / "log"),
        **changed,
    }
    flags = [part for pair in settings.items() for part in ("--set", "=".join(pair))]
    command = [sys.executable, "-P", "-m", "ottla_broker", "--ready-file", str(folder / "ready"), *flags]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)


def test_a_broker_lives_on_it(secured: Secured, tmp_path: Path) -> None:
    process = _broker(secured, tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "ready").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    ready = (tmp_path / "ready").exists()
    process.terminate()
    _, said = process.communicate(timeout=30)
    assert ready and process.returncode == ExitCode.OK, said
    assert PASSWORD not in said
    assert json.loads((tmp_path / "ready").read_text())["pid"] == process.pid


def test_a_file_that_is_not_there_is_named(secured: Secured, tmp_path: Path) -> None:
    process = _broker(secured, tmp_path, **{"etcd.tls.ca.file": "/nowhere/ca.pem"})
    _, said = process.communicate(timeout=30)
    assert process.returncode == ExitCode.BAD_CONFIG
    assert "etcd.tls.ca.file = /nowhere/ca.pem cannot be read" in said
