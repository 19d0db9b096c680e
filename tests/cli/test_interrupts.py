"""Ctrl-C always ends a command: with silent brokers, with a pipe that nobody reads, with code that does not listen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from cli.ottla_command import Ottla, interrupt, lines_from
from ottla_cli.local_cluster import LocalCluster

#: Above the patience of `interrupts`, for a machine that has other things to do.
BOUND_S = 30


def test_code_that_swallows_its_cancellation_does_not_keep_the_process() -> None:
    script = (
        "import asyncio, signal\n"
        "from ottla_cli.interrupts import Interrupts\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "async def stubborn():\n"
        "    print('ready', flush=True)\n"
        "    while True:\n"
        "        try:\n"
        "            await asyncio.sleep(60)\n"
        "        except asyncio.CancelledError:\n"
        "            pass\n"
        "with Interrupts(0.2) as interrupts:\n"
        "    asyncio.run(interrupts.watched(stubborn()))\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGINT)
        assert child.wait(BOUND_S) == 130
        assert child.stderr.read() == b"ottla: exited without a clean shutdown, 0.2 s after Ctrl-C.\n"


@pytest.mark.integration
def test_consume_ends_though_its_output_is_not_read(ottla: Ottla) -> None:
    topic = ottla.topic()
    ottla("bench", "produce", "--topic", topic, "-n", "20000")
    with ottla.start("consume", topic) as reader:
        (line,) = lines_from(reader.stdout, 1)
        assert line
        time.sleep(0.5)  # the pipe is full now
        began = time.monotonic()
        reader.send_signal(signal.SIGINT)
        assert reader.wait(BOUND_S) in (0, 130)
        assert time.monotonic() - began < BOUND_S


@pytest.mark.integration
@pytest.mark.parametrize("presses", [1, 2])
def test_produce_ends_though_its_broker_is_silent(
    make_cluster: Callable[..., LocalCluster], capsysbinary: pytest.CaptureFixture[bytes], presses: int
) -> None:
    cluster = make_cluster()
    ottla = Ottla(cluster.grpc_bootstrap, capsysbinary)
    topic = ottla.topic()
    with ottla.start("produce", topic, stdin=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        writer.stdin.write(b"one\n")
        writer.stdin.flush()
        assert ottla.consume(topic, "--max", "1") == b"one\n"
        os.kill(cluster.pids[0], signal.SIGSTOP)
        try:
            writer.stdin.write(b"two\n")
            writer.stdin.flush()
            if presses == 2:
                writer.send_signal(signal.SIGINT)
                time.sleep(0.2)
            code, said = interrupt(writer)
        finally:
            os.kill(cluster.pids[0], signal.SIGCONT)
    assert code == 130
    assert b"1 record of 2 could not be written" in said or b"1 record (3 B) written" in said


@pytest.mark.integration
@pytest.mark.parametrize("options", [(), ("--group", "readers")], ids=["alone", "in a group"])
def test_consume_ends_though_its_broker_is_silent(
    make_cluster: Callable[..., LocalCluster],
    capsysbinary: pytest.CaptureFixture[bytes],
    options: tuple[str, ...],
) -> None:
    cluster = make_cluster()
    ottla = Ottla(cluster.grpc_bootstrap, capsysbinary)
    topic = ottla.topic()
    ottla.produce(topic, given=b"one\n")
    with ottla.start("consume", topic, *options) as reader:
        assert lines_from(reader.stdout, 1) == [b"one\n"]
        os.kill(cluster.pids[0], signal.SIGSTOP)
        try:
            assert interrupt(reader)[0] in (0, 130)
        finally:
            os.kill(cluster.pids[0], signal.SIGCONT)
