"""One broker process from resolved settings to its exit code: real ports, signals, deadlines. [A]

Called by `__main__.py` only. It owns the event loop, the signal handlers and the order of start and stop;
`broker.py` builds the broker. Every failure at start is reported in one sentence, because the
reader is a person at a terminal or in front of a crash-looping pod.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog
import uvloop

from ottla_broker import logs
from ottla_broker.authn.users_file import read_users
from ottla_broker.broker import Broker, NoLogDirectory
from ottla_broker.cluster_secret import SecretMissing, cluster_secret
from ottla_broker.config import BrokerConfig, Resolved, bind_addresses
from ottla_broker.descriptors import share_out, with_shares
from ottla_broker.etcd_access import etcd_store
from ottla_broker.exit_codes import ExitCode
from ottla_broker.listeners import SSL, listeners_of
from ottla_broker.log.dir_files import ForeignDirectory
from ottla_broker.membership.registration import BrokerIdTaken
from ottla_broker.metadata.watcher import LostHistory
from ottla_broker.rack_file import with_rack
from ottla_broker.setting import Address, ConfigError
from ottla_core import compiled
from ottla_core.errors import InvariantViolation
from ottla_core.ports.clock import Clock
from ottla_core.ports.store import MetadataStore, StoreError
from ottla_core.real.chance import RealChance
from ottla_core.real.clock import RealClock
from ottla_core.real.disk import RealDisk
from ottla_core.real.offload import ThreadOffload
from ottla_core.version import version_of

if TYPE_CHECKING:
    from ottla_broker.replication.peer_tls import PeerTls
    from ottla_broker.tls_files import TlsFiles

_log = structlog.get_logger("ottla.process")

#: First pause between two checks whether etcd listens; doubles up to the second.
_ETCD_PAUSE_S = 0.01
_ETCD_PAUSE_MAX_S = 0.5


class _Refused(Exception):
    """The start failed for a reason with its own exit code."""

    def __init__(self, code: ExitCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def run(
    resolved: Resolved, *, ready_file: str | None, exit_with_parent: bool, say: Callable[[str], None]
) -> ExitCode:
    clock = RealClock()
    config = resolved.config
    logs.configure(
        config.process.log_format,
        config.process.log_level,
        now=clock.monotonic,
        context={"broker": config.process.broker_id},
    )
    for warning in resolved.warnings:
        _log.warning("setting ignored", detail=warning)
    try:
        check_ports(config)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_live(config, clock, ready_file, exit_with_parent))
    except _Refused as refused:
        say(str(refused))
        return refused.code
    except NoLogDirectory as failed:
        say(str(failed))
        return ExitCode.BAD_LOG_DIR
    except InvariantViolation as violation:
        say(f"An invariant was violated and the broker stopped: {violation}.")
        return ExitCode.FAILED
    except Exception:
        _log.exception("failed")
        say("The broker stopped after an unexpected error; its log has the traceback.")
        return ExitCode.FAILED


def check_ports(config: BrokerConfig) -> None:
    """Name a taken port before anything else happens; the real bind may still lose a race, and says so."""
    for name, wanted in bind_addresses(config):
        family = socket.AF_INET6 if ":" in wanted.host else socket.AF_INET
        with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((wanted.host, wanted.port))
                probe.listen(1)
            except OSError as failed:
                if failed.errno == errno.EADDRINUSE:
                    sentence = f"Port {wanted.port} on {wanted.host} is taken; choose another with {name}."
                else:
                    sentence = f"{name} = {wanted} cannot be bound: {failed.strerror or failed}."
                raise _Refused(ExitCode.PORT_TAKEN, sentence) from None


def _tls_files(config: BrokerConfig, clock: Clock) -> TlsFiles | None:
    """ConfigError if a listener speaks TLS and its files cannot be used."""
    for_clients = [each for each in listeners_of(config) if each.protocol != "internal"]
    if config.http.security != SSL and not any(each.has_tls for each in for_clients):
        return None
    from ottla_broker.tls_files import TlsFiles  # only where it is used: a start is measured in milliseconds

    return TlsFiles(config.tls, clock)


def _peer_tls(config: BrokerConfig, clock: Clock) -> PeerTls | None:
    """ConfigError if the files for TLS between brokers cannot be used."""
    if config.internal_tls.certificate_file is None:
        return None
    from ottla_broker.replication.peer_tls import PeerTls

    return PeerTls(config.internal_tls, clock)


async def _live(
    config: BrokerConfig, clock: Clock, ready_file: str | None, exit_with_parent: bool
) -> ExitCode:
    stop = asyncio.Event()
    _watch_signals(stop)
    if exit_with_parent:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _on_stdin, stop)
    try:
        config = replace(config, process=with_rack(config.process))
        secret = cluster_secret(config.internal.secret_file)
        store = etcd_store(config.etcd, config.process.cluster_name)
        tls = _tls_files(config, clock)
        peer_tls = _peer_tls(config, clock)
        users = read_users(config.sasl.users_file)
    except ConfigError as refused:
        raise _Refused(ExitCode.BAD_CONFIG, str(refused)) from None
    offload = ThreadOffload(config.process.background_threads)
    # One thread: passwords are checked beside the event loop, and never take more than one core.
    login_offload = ThreadOffload(1)
    shares = share_out(config, _descriptors())
    if shares.are_short_for(config):
        _log.warning(
            "connections limited by open files", kafka=shares.kafka_connections, grpc=shares.grpc_connections
        )
    config = with_shares(config, shares)
    broker = Broker(
        config,
        clock=clock,
        disk=RealDisk(shares.files),
        offload=offload,
        chance=RealChance(),
        store=store,
        log=structlog.get_logger("ottla.broker"),
        secret=secret,
        tls=tls,
        peer_tls=peer_tls,
        users=users,
        login_offload=login_offload,
    )
    _watch_callbacks(broker)
    try:
        if not await _until(stop, _start(broker, config, clock, store)):
            _log.info("stopped while starting")
        else:
            # Objects that exist now stay: the collector, off since the start (`__main__`), never needs to scan them.
            gc.freeze()
            gc.enable()
            addresses = {name: str(address) for name, address in broker.addresses.items()}
            _log.info("ready", **addresses, version=version_of(), code=compiled.in_use())
            if not secret.is_shared:
                _log.warning("no cluster secret", detail="No other broker can join: set cluster.secret.file.")
            if ready_file is not None:
                _write_ready_file(ready_file, config, broker)
            await broker.run_until(stop)
        return await _stop(broker, config)
    except BaseException:
        # Logs that were opened are closed again, or a start that failed for want of etcd would cost a recovery.
        await _stop(broker, config)
        raise
    finally:
        await store.close()
        offload.close()
        login_offload.close()


def _watch_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)  # asked twice: now, whatever is unfinished; the next start recovers
        _log.info("stopping", signal=signal.Signals(number).name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def _watch_callbacks(broker: Broker) -> None:
    """Handle exceptions of timers and unawaited tasks, which have no caller. `InvariantViolation` stops the broker."""

    def on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, InvariantViolation):
            broker.on_violation(error)

    asyncio.get_running_loop().set_exception_handler(on_exception)


def _on_stdin(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        if not stop.is_set():
            _log.info("stopping", reason="the parent process has exited")
            stop.set()


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether `work` finished before `stop` was set; cancels it otherwise."""
    loop = asyncio.get_running_loop()
    working, stopping = loop.create_task(work), loop.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait((working,), timeout=5)
    if working.cancelled():
        return False
    working.result()
    return True


async def _start(broker: Broker, config: BrokerConfig, clock: Clock, store: MetadataStore) -> None:
    deadline = clock.monotonic() + config.etcd.connect_timeout_ms / 1000
    await _wait_for_etcd(config, clock, deadline)
    try:
        if len(config.etcd.endpoints) > 1:
            await _wait_for_quorum(store, clock, deadline)
        await broker.start()
    except StoreError as failed:
        raise _Refused(ExitCode.NO_ETCD, f"etcd at {_endpoints(config)} failed: {failed}") from failed
    except LostHistory as failed:
        raise _Refused(ExitCode.LOST_HISTORY, str(failed)) from failed
    except SecretMissing as failed:
        raise _Refused(ExitCode.BAD_CONFIG, str(failed)) from failed
    except BrokerIdTaken as failed:
        raise _Refused(ExitCode.BROKER_ID_TAKEN, str(failed)) from failed
    except ForeignDirectory as failed:
        raise _Refused(ExitCode.BAD_LOG_DIR, str(failed)) from failed
    except OSError as failed:
        # What a start asks of the system are ports and folders.
        if failed.errno == errno.EADDRINUSE:
            raise _Refused(ExitCode.PORT_TAKEN, f"A port is taken: {failed}.") from failed
        raise _Refused(ExitCode.BAD_LOG_DIR, f"A log directory cannot be used: {failed}.") from failed


async def _wait_for_etcd(config: BrokerConfig, clock: Clock, deadline: float) -> None:
    """Look with plain connections: a gRPC channel that was refused waits a second before it tries again."""
    pause_s = _ETCD_PAUSE_S
    while not await _any_listens(config.etcd.endpoints):
        if clock.monotonic() > deadline:
            raise _Refused(
                ExitCode.NO_ETCD,
                f"etcd does not answer at {_endpoints(config)}; start it, or set etcd.endpoints.",
            )
        if pause_s == _ETCD_PAUSE_MAX_S:
            _log.info("waiting for etcd", endpoints=_endpoints(config))
        await clock.sleep(pause_s)
        pause_s = min(pause_s * 2, _ETCD_PAUSE_MAX_S)


async def _wait_for_quorum(store: MetadataStore, clock: Clock, deadline: float) -> None:
    """Until a member answers. One that listens may be another than the first in the list, or lack a leader."""
    while True:
        try:
            await store.get("cluster")
            return
        except StoreError as failed:
            if clock.monotonic() > deadline:
                raise
            _log.info("waiting for etcd", reason=str(failed))  # the next call goes to the next member
        await clock.sleep(_ETCD_PAUSE_MAX_S)


async def _any_listens(endpoints: tuple[Address, ...]) -> bool:
    for address in endpoints:
        try:
            async with asyncio.timeout(1):
                _, writer = await asyncio.open_connection(address.host, address.port)
        except (OSError, TimeoutError):
            continue
        writer.close()
        return True
    return False


def _endpoints(config: BrokerConfig) -> str:
    return ", ".join(str(address) for address in config.etcd.endpoints)


async def _stop(broker: Broker, config: BrokerConfig) -> ExitCode:
    try:
        async with asyncio.timeout(config.process.stop_timeout_ms / 1000):
            await broker.stop()
    except TimeoutError:
        _log.error("stop timed out", shutdown_timeout_ms=config.process.stop_timeout_ms)
        return ExitCode.STOP_CUT_OFF
    except Exception:
        _log.exception("stop failed")
        return ExitCode.FAILED
    _log.info("stopped")
    return ExitCode.OK


def _descriptors() -> int:
    """How many descriptors the process may have, once it has asked for all it can get."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            _log.warning("open files limit not raised", limit=soft)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _write_ready_file(path: str, config: BrokerConfig, broker: Broker) -> None:
    facts = {
        "pid": os.getpid(),
        "id": config.process.broker_id,
        **{name: str(address) for name, address in broker.addresses.items()},
    }
    scratch = f"{path}.{os.getpid()}"
    with open(scratch, "w", encoding="utf-8") as file:
        json.dump(facts, file)
    os.replace(scratch, path)  # a reader sees all of it or nothing
