"""etcd behind TLS, client certificates and a login, for real."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from conformance.secured_etcd import PASSWORD, Secured, running_secured_etcd
from ottla_broker.exit_codes import ExitCode
from ottla_broker.metadata.etcd import EtcdStore, EtcdTls
from ottla_core.ports.store import Branch, Put, StoreError

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with running_secured_etcd(tmp_path_factory.mktemp("secured")) as made:
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


async def test_an_unknown_user_is_refused_with_the_reason(secured: Secured) -> None:
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
        **{f"{edge}.listener": "127.0.0.1:0" for edge in ("kafka", "grpc", "internal", "http")},
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
