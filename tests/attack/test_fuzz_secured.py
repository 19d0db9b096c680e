"""Fuzzing of a listener with TLS, logins and an authoriser, before and after the login.

Before it, a client gets nothing but the login: whatever else it sends ends its connection, and so do damaged messages
of SCRAM, PLAIN and bearer tokens. After it, a user without rights gets answers that are decoded, as everybody else.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from attack import effort, kafka_requests
from attack.fuzz_client import FuzzClient, mistakes
from attack.victim import MemoryWatch, Victim
from broker.edge.kafka_peer import Peer
from certificates import Authority
from ottla_broker.authorizer_config import STANDARD
from ottla_broker.edge.kafka.versions import API_VERSIONS_KEY, APIS
from ottla_cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7200)]

GROWTH_MAX = 150 << 20
#: Of each API, each in a random version.
REQUESTS = effort.count(8, 60)
LOGINS = effort.count(150, 1_000)
#: Logins need them; what they answer before it is tested with the edge.
_BEFORE_LOGIN = (API_VERSIONS_KEY, 17, 36)
_MESSAGES = {
    "PLAIN": b"\0alice\0wrong",
    "SCRAM-SHA-256": b"n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL",
    "SCRAM-SHA-512": b"n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL",
    "OAUTHBEARER": b"n,,\x01auth=Bearer eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.AAAA\x01\x01",
}


class Secured:
    def __init__(self, cluster: LocalCluster, authority: Authority) -> None:
        facts = json.loads(Path(cluster.folder.file("broker-0.ready")).read_text())
        self.port = int(facts["listener.SASL_SSL"].rpartition(":")[2])
        self.victim = Victim(cluster)
        self.victim.create("ordinary", 1)
        self._tls = ssl.create_default_context(cafile=str(authority.file))

    async def peer(self) -> Peer:
        return Peer(*await asyncio.open_connection("localhost", self.port, ssl=self._tls))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder / "ca")
    users, keys = folder / "users", folder / "jwks.json"
    users.write_text("alice:secret\n")
    users.chmod(0o600)
    keys.write_text('{"keys":[]}')
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": str(authority.issue("broker", "/CN=broker", into=folder / "broker.pem")),
        "sasl.users.file": str(users),
        "sasl.enabled.mechanisms": ",".join(_MESSAGES),
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "connection.failed.authentication.delay.ms": "0",
        "authorizer.class.name": STANDARD,
        # The ordinary client, on the plaintext listener.
        "super.users": "User:ANONYMOUS",
    }
    with LocalCluster(settings=settings) as cluster:
        yield Secured(cluster, authority)


def damaged(message: bytes, chance: random.Random) -> bytes:
    """One to four bytes changed, cut, repeated or inserted."""
    made = bytearray(message)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made) + 1)
        kind = chance.randrange(4)
        if kind == 0 and at < len(made):
            made[at] = chance.randrange(256)
        elif kind == 1:
            del made[at : at + chance.randint(1, 8)]
        elif kind == 2:
            made[at:at] = made[: chance.randint(0, 64)] * chance.randint(1, 8)
        else:
            made[at:at] = chance.randbytes(chance.randint(1, 16))
    return bytes(made)


async def _end(peer: Peer) -> None:
    """Returns when the broker has closed the connection, whatever it sends before."""
    async with asyncio.timeout(20):
        with suppress(ConnectionError, ssl.SSLError):
            while await peer.reader.read(1 << 16):
                pass
    peer.close()


async def test_before_the_login_every_other_api_ends_the_connection(secured: Secured) -> None:
    chance = random.Random(effort.SEED)
    with MemoryWatch(secured.victim.pids[0]) as memory:
        for api in APIS.values():
            if api.key in _BEFORE_LOGIN:
                continue
            for version in {api.low, api.high}:
                body, _ = kafka_requests.body(api, version, chance)
                peer = await secured.peer()
                head = struct.pack(">hhih", api.key, version, 1, -1)
                head += b"\x00" if version >= api.flexible_from else b""
                peer.writer.write(struct.pack(">i", len(head) + len(body)) + head + body)
                async with asyncio.timeout(20):
                    try:
                        assert await peer.reader.read() == b"", f"{api.name} v{version} was answered"
                    except (ConnectionError, ssl.SSLError):
                        pass
                peer.close()
    secured.victim.close_look()
    assert memory.grown < GROWTH_MAX


@pytest.mark.parametrize("mechanism", _MESSAGES)
async def test_damaged_logins_are_refused(secured: Secured, mechanism: str) -> None:
    chance = random.Random(f"{effort.SEED} {mechanism}")
    outcomes: Counter[str] = Counter()
    with MemoryWatch(secured.victim.pids[0]) as memory:
        for _ in range(LOGINS):
            peer = await secured.peer()
            assert (await peer.ask(17, 1, mechanism=mechanism)).error_code == 0
            try:
                for _ in range(3):
                    answer = await peer.ask(36, 2, auth_bytes=damaged(_MESSAGES[mechanism], chance))
                    outcomes["refused" if answer.error_code else "went on"] += 1
                    if answer.error_code:
                        assert answer.auth_bytes == b""
                        break
                else:
                    pytest.fail("three damaged messages, and still no refusal")
            except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                outcomes["closed"] += 1
            await _end(peer)
    print(f"{mechanism}: {dict(outcomes)}, memory +{memory.grown >> 20} MB")
    assert outcomes["refused"] + outcomes["closed"] == LOGINS
    secured.victim.close_look()
    assert memory.grown < GROWTH_MAX


class _LoggedIn(FuzzClient):
    """Logs in as alice, who has no rights, on each new connection."""

    def __init__(self, secured: Secured, outcomes: Counter[str]) -> None:
        super().__init__(secured.port, outcomes)
        self._secured = secured

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        peer = await self._secured.peer()
        assert (await peer.ask(17, 1, mechanism="PLAIN")).error_code == 0
        assert (await peer.ask(36, 2, auth_bytes=b"\0alice\0secret")).error_code == 0
        return peer.reader, peer.writer


async def test_after_the_login_every_request_is_answered_or_the_connection_closed(secured: Secured) -> None:
    outcomes: Counter[str] = Counter()
    failed: list[str] = []
    with MemoryWatch(secured.victim.pids[0]) as memory:
        for api in APIS.values():
            if api.key in _BEFORE_LOGIN:
                continue
            chance = random.Random(f"{effort.SEED} secured {api.name}")
            client = _LoggedIn(secured, outcomes)
            for _ in range(REQUESTS):
                version = chance.randint(api.low, api.high)
                body, is_damaged = kafka_requests.body(api, version, chance)
                if mistakes(await client.send(api, version, body, may_wait=is_damaged)):
                    failed.append(f"{api.name} v{version} {body[:300].hex()}")
            client.close()
    print(f"{dict(outcomes)}, memory +{memory.grown >> 20} MB")
    assert failed == [], failed[:3]
    assert outcomes["answered"] > outcomes["closed"]
    secured.victim.close_look()
    assert memory.grown < GROWTH_MAX
