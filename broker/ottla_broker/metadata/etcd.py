"""The metadata store on etcd (3.4.22 or later; 3.5.6 or later in 3.5). [A]

Owns one gRPC channel per endpoint and uses one at a time: a call that gets no answer moves
later calls to the next endpoint. No call is repeated, except one that was refused without a
valid login, which changed nothing: the outcome of a write whose reply was lost is unknown (`StoreError`),
and only the caller can read back its outcome. A watch is not resumed either: missed changes, or
a restore from an older backup, show only in a new read.

Messages and stubs are aetcd's generated ones; its client is not used (docs/decisions/0003). grpc.aio calls
have gRPC deadlines, never `wait_for`, which would cancel a stream that is merely quiet.

Only this module knows etcd. It must never retry, cache or decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from aetcd import rpc
from aetcd.rpc.rpc_pb2_grpc import AuthStub, KVStub, LeaseStub, MaintenanceStub, WatchStub

from ottla_core.errors import invariant
from ottla_core.ports.store import (
    BRANCH_OPS_MAX,
    BRANCHES_MAX,
    Branch,
    Changed,
    Compare,
    Entry,
    HistoryCompacted,
    LeaseExpired,
    ModRevisionIs,
    Outcome,
    Put,
    Removed,
    Revision,
    Snapshot,
    StoreError,
    Write,
)

#: Entries per page of a scan: about 1 MB of partition states.
PAGE_ENTRIES = 2500
#: A watch that is far behind gets up to 1,000 revisions in one message; with a larger message it re-reads instead.
_MESSAGE_BYTES_MAX = 32 << 20
#: A member without a leader ends such a stream; without this it stays silent and looks healthy.
_HAS_LEADER = (("hasleader", "true"),)
_OPTIONS = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    # etcd refuses pings more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # A member that comes back is used again within a second, not after gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name also the time that one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # gRPC looks a name up again at most every 30 s, and until then dials the address of a pod that was replaced.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
)
_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """PEM texts. Without `ca` the system's roots are trusted; `certificate` and `key` identify this broker."""

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class EtcdLogin:
    user: str
    password: str


class EtcdStore:
    def __init__(
        self,
        endpoints: Sequence[str],
        prefix: str,
        *,
        tls: EtcdTls | None = None,
        login: EtcdLogin | None = None,
        timeout_s: float = 5.0,
        keep_alive_timeout_s: float = 1.0,
        progress_s: float = 5.0,
        silence_s: float = 15.0,
    ) -> None:
        """`endpoints` as host:port; all keys lie below `prefix`."""
        invariant(endpoints, "an etcd store needs at least one endpoint")
        self._endpoints = list(endpoints)
        self._prefix = prefix.rstrip("/") + "/"
        self._timeout_s = timeout_s
        # Several attempts must fit into a lease of 6 s, at another endpoint too.
        self._keep_alive_timeout_s = min(timeout_s, keep_alive_timeout_s)
        self._progress_s = progress_s
        self._silence_s = silence_s
        self._credentials = (
            grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate) if tls is not None else None
        )
        self._channels: dict[str, Any] = {}
        self._current = 0
        self._login = login
        #: etcd's login token; it expires with etcd's process, or after minutes without a call.
        self._token: str | None = None

    # ------------------------------------------------------------------ keys

    async def get(self, key: str) -> Entry | None:
        answer = await self._call(KVStub, "Range", rpc.RangeRequest(key=self._key(key)))
        return self._entry(answer.kvs[0]) if answer.kvs else None

    async def scan(self, prefix: str) -> Snapshot:
        start, end = self._range(prefix)
        revision, entries = 0, list[Entry]()
        while True:
            # The first page tells the revision, and the others are read as of it.
            request = rpc.RangeRequest(key=start, range_end=end, limit=PAGE_ENTRIES, revision=revision)
            answer = await self._call(KVStub, "Range", request)
            revision = revision or answer.header.revision
            entries.extend(map(self._entry, answer.kvs))
            if not answer.more:
                return Snapshot(revision, tuple(entries))
            start = answer.kvs[-1].key + b"\0"

    async def transact(self, guard: Sequence[Compare], branches: Sequence[Branch]) -> Outcome:
        invariant(len(branches) <= BRANCHES_MAX, f"{len(branches)} branches in one transaction")
        request = rpc.TxnRequest()
        for compare in guard:
            self._add_compare(request, compare)
        for branch in branches:
            widest = max(len(branch.compares), len(branch.writes))
            invariant(widest <= BRANCH_OPS_MAX, f"{widest} operations in one branch")
            nested = request.success.add().request_txn
            for compare in branch.compares:
                self._add_compare(nested, compare)
            for write in branch.writes:
                self._add_write(nested, write)
        answer = await self._call(KVStub, "Txn", request)
        taken = tuple(r.response_txn.succeeded for r in answer.responses)
        return Outcome(answer.header.revision, answer.succeeded, taken or (False,) * len(branches))

    async def compact(self, revision: int) -> None:
        try:
            await self._call(KVStub, "Compact", rpc.CompactionRequest(revision=revision))
        except HistoryCompacted:
            return  # Another broker has compacted already.

    # ------------------------------------------------------------------ leases

    async def grant_lease(self, ttl_s: int) -> int:
        answer = await self._call(LeaseStub, "LeaseGrant", rpc.LeaseGrantRequest(TTL=ttl_s))
        return int(answer.ID)

    async def keep_alive(self, lease: int) -> float:
        # A short stream for each renewal: it has a deadline, and no late answer can be taken for the next
        # one's.
        with self._errors("LeaseKeepAlive"):
            timeout_s, metadata = self._keep_alive_timeout_s, await self._metadata()
            call = LeaseStub(self._channel()).LeaseKeepAlive(timeout=timeout_s, metadata=metadata)
            try:
                await call.write(rpc.LeaseKeepAliveRequest(ID=lease))
                answer = await call.read()
            finally:
                call.cancel()
        if answer is grpc.aio.EOF:
            raise StoreError("etcd ended a keepalive without a response.")
        if answer.TTL <= 0:
            raise LeaseExpired(f"Lease {lease:x} has expired.")
        return float(answer.TTL)

    async def revoke_lease(self, lease: int) -> None:
        try:
            await self._call(LeaseStub, "LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease))
        except LeaseExpired:
            return

    # ------------------------------------------------------------------ watching

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Revision]:
        start, end = self._range(prefix)
        create = rpc.WatchCreateRequest(key=start, range_end=end, start_revision=after_revision + 1)
        with self._errors("Watch"):
            metadata = await self._metadata()
            call = WatchStub(self._channel()).Watch(metadata=metadata)
            try:
                await self._bounded(call.write(rpc.WatchRequest(create_request=create)))
                delivered = after_revision
                async with aclosing(self._answers(call)) as answers:
                    async for answer in answers:
                        for revision in self._revisions(answer, delivered):
                            delivered = revision.revision
                            yield revision
            finally:
                call.cancel()

    async def _answers(self, call: Any) -> AsyncGenerator[Any, None]:
        """Every message of the stream; asks for progress when it is quiet, and gives up when it stays so."""
        loop = asyncio.get_running_loop()
        heard = loop.time()
        reading = asyncio.ensure_future(call.read())
        try:
            while True:
                done, _ = await asyncio.wait({reading}, timeout=self._progress_s)
                if done:
                    answer = reading.result()
                    if answer is grpc.aio.EOF:
                        raise StoreError("etcd ended the watch.")
                    heard = loop.time()
                    yield answer
                    reading = asyncio.ensure_future(call.read())
                elif loop.time() - heard > self._silence_s:
                    self._move_on()
                    raise StoreError(f"The watch was silent for more than {self._silence_s:g} s.")
                else:
                    await self._bounded(
                        call.write(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))
                    )
        finally:
            _abandon(reading)

    def _revisions(self, answer: Any, delivered: int) -> Iterator[Revision]:
        """The whole revisions in one message; one without events is a progress notification.

        It repeats the last delivered revision. etcd before 3.4.25 and 3.5.8 may answer a progress
        request with a revision whose events are still on their way, so that number is not to be trusted.
        """
        if answer.compact_revision:
            raise HistoryCompacted(f"Revisions before {answer.compact_revision} are compacted.")
        if answer.canceled:
            raise StoreError(f"etcd cancelled the watch: {answer.cancel_reason or 'no reason given'}.")
        if answer.fragment:
            raise StoreError("etcd sent a fragment that was not requested.")
        if not answer.events:
            if not answer.created and answer.header.revision < delivered:
                raise StoreError(f"etcd went back from revision {delivered} to {answer.header.revision}.")
            yield Revision(delivered, ())
            return
        changes: list[Changed | Removed] = []
        current = answer.events[0].kv.mod_revision
        if current <= delivered:
            raise StoreError(f"etcd sent revision {current} after {delivered}, or in two parts.")
        for event in answer.events:
            if event.kv.mod_revision != current:
                yield Revision(current, tuple(changes))
                current, changes = event.kv.mod_revision, []
            removed = event.type == rpc.Event.DELETE
            changes.append(Removed(self._name(event.kv.key)) if removed else Changed(self._entry(event.kv)))
        yield Revision(current, tuple(changes))

    # ------------------------------------------------------------------ backup

    async def snapshot(self) -> AsyncIterator[bytes]:
        """The whole database of one member, followed by its SHA-256. Not part of the port: only backups need it."""
        with self._errors("Snapshot"):
            call = MaintenanceStub(self._channel()).Snapshot(
                rpc.SnapshotRequest(), metadata=await self._metadata()
            )
            try:
                async for answer in call:
                    yield answer.blob
            finally:
                call.cancel()

    # ------------------------------------------------------------------ connections

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    def _channel(self) -> Any:
        endpoint = self._endpoints[self._current]
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = (
                grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
                if self._credentials is None
                else grpc.aio.secure_channel(endpoint, self._credentials, options=_OPTIONS)
            )
            self._channels[endpoint] = channel
        return channel

    def _move_on(self) -> None:
        self._current = (self._current + 1) % len(self._endpoints)

    async def _call(self, stub: Any, method: str, request: Any) -> Any:
        with self._errors(method):
            try:
                return await self._ask(stub, method, request)
            except grpc.aio.AioRpcError as error:
                if self._login is None or not _is_login_refused(error):
                    raise
                self._token = None
            return await self._ask(stub, method, request)

    async def _ask(self, stub: Any, method: str, request: Any) -> Any:
        metadata = await self._metadata()
        call = getattr(stub(self._channel()), method)
        return await call(request, timeout=self._timeout_s, metadata=metadata)

    async def _metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of every call; logs in first if a user is configured."""
        if self._login is None:
            return _HAS_LEADER
        if self._token is None:
            request = rpc.AuthenticateRequest(name=self._login.user, password=self._login.password)
            answer = await AuthStub(self._channel()).Authenticate(request, timeout=self._timeout_s)
            self._token = answer.token
        return (*_HAS_LEADER, ("token", self._token))

    async def _bounded(self, write: Coroutine[Any, Any, None]) -> None:
        """Write to a stream; a write that the peer does not accept in time ends the stream.

        Not `wait_for`: before Python 3.12 it loses a cancellation at the same time as the end of the write.
        """
        writing = asyncio.ensure_future(write)
        try:
            done, _ = await asyncio.wait({writing}, timeout=self._timeout_s)
        finally:
            _abandon(writing)
        if not done:
            self._move_on()
            raise StoreError(f"etcd read nothing from the watch for {self._timeout_s:g} s.")
        writing.result()

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Map the errors of gRPC and etcd to the port's three errors."""
        endpoint = self._endpoints[self._current]
        try:
            yield
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), str(error.details() or "")
            if "lease not found" in details:
                raise LeaseExpired(f"{what}: {details}") from None
            if "compacted" in details:
                raise HistoryCompacted(f"{what}: {details}") from None
            if code in _NO_ANSWER:
                self._move_on()
            if _is_login_refused(error):
                self._token = None
            raise StoreError(f"{what} at {endpoint}: {code.name}: {details}") from error
        except (grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError) as error:
            # A stream or channel that was closed meanwhile.
            raise StoreError(f"{what}: {error}") from error

    # ------------------------------------------------------------------ translation

    def _key(self, key: str) -> bytes:
        return (self._prefix + key).encode()

    def _name(self, key: bytes) -> str:
        return key.decode()[len(self._prefix) :]

    def _range(self, prefix: str) -> tuple[bytes, bytes]:
        start = self._key(prefix)
        return start, start[:-1] + bytes([start[-1] + 1])

    def _entry(self, kv: Any) -> Entry:
        return Entry(self._name(kv.key), kv.value, kv.create_revision, kv.mod_revision, kv.lease)

    def _add_compare(self, request: Any, compare: Compare) -> None:
        key = self._key(compare.key)
        if isinstance(compare, ModRevisionIs):
            request.compare.add(key=key, target=rpc.Compare.MOD, mod_revision=compare.revision)
        else:
            request.compare.add(key=key, target=rpc.Compare.CREATE, create_revision=compare.revision)

    def _add_write(self, request: Any, write: Write) -> None:
        key = self._key(write.key)
        if isinstance(write, Put):
            request.success.add(request_put=rpc.PutRequest(key=key, value=write.value, lease=write.lease))
        else:
            request.success.add(request_delete_range=rpc.DeleteRangeRequest(key=key))


def _is_login_refused(error: grpc.aio.AioRpcError) -> bool:
    """The token is unknown to etcd, or older than a change of users and roles."""
    details = str(error.details() or "")
    return error.code() is grpc.StatusCode.UNAUTHENTICATED or "revision of auth store is old" in details


def _abandon(task: asyncio.Future[Any]) -> None:
    """Cancel the call and ignore its outcome: it has no waiter."""
    task.cancel()
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
