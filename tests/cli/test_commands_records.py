"""produce and consume against a real broker, as child processes: pipes, signals, every format."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cli.ottla_command import TIMEOUT_S, Ottla, interrupt, lines_from

pytestmark = pytest.mark.integration


def test_lines_in_lines_out(ottla: Ottla) -> None:
    topic = ottla.topic()
    given = "".join(f"line {number} ümlaut\n" for number in range(5000)).encode()
    summary = json.loads(ottla.produce(topic, "--json", given=given))
    assert summary["records"] == 5000 and summary["failed"] == 0
    assert summary["partitions"] == [{"partition": 0, "first_offset": 0, "last_offset": 4999}]
    assert ottla.consume(topic, "--from", "earliest", "--max", "5000") == given
    assert ottla.consume(topic, "--no-follow") == given
    assert ottla.consume(topic, "--from", "4998", "-e").count(b"\n") == 2
    assert ottla.consume(topic, "--from", "-3", "--to", "4999") == b"".join(
        b"line %d \xc3\xbcmlaut\n" % number for number in (4997, 4998)
    )
    assert ottla.consume(topic, "--from", "latest", "--no-follow") == b""
    assert ottla.consume(topic, "--from", "-1h", "--max", "1") == b"line 0 \xc3\xbcmlaut\n"


def test_a_last_line_needs_no_end_and_no_input_is_no_record(ottla: Ottla) -> None:
    topic = ottla.topic()
    ottla.produce(topic, given=b"")
    ottla.produce(topic, given=b"a\n\nb")
    assert ottla.consume(topic, "-e", "-f", "[%v]") == b"[a][][b]"


def test_keys_headers_nulls_and_partitions(ottla: Ottla) -> None:
    topic = ottla.topic("--partitions", "3")
    ottla.produce(topic, "-K", ":", "-Z", "-H", "a=1", "-H", "b", "--partition", "2", given=b"k:v\ngone:\n")
    out = ottla.consume(topic, "-e", "-p", "2", "-f", "%p %o %k %v %h\\n", "--null")
    assert out == b"2 0 k v a=1,b=NULL\n2 1 gone NULL a=1,b=NULL\n"
    assert ottla.consume(topic, "-e", "-K", "=") == b"k=v\ngone=\n"
    assert ottla.consume(topic, "-e", "-p", "0") == b""


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_json_goes_round_whatever_the_compression(ottla: Ottla, compression: str) -> None:
    source, target = ottla.topic(), ottla.topic()
    raw = bytes(range(256)) * 10
    ottla.produce(source, "--format", "raw", "--key", "\\xff\\x00", "-z", compression, given=raw)
    ottla.produce(source, "-k", "text", "-z", compression, given="añb\n".encode())
    out = ottla.consume(source, "-e", "--json")
    first = json.loads(out.splitlines()[0])
    assert first["key_base64"] == "/wA=" and "value" not in first
    ottla.produce(target, "--format", "json", "-z", compression, given=out)
    again = [json.loads(line) for line in ottla.consume(target, "-e", "--json").splitlines()]
    expected = [{**json.loads(line), "topic": target} for line in out.splitlines()]
    assert again == expected


def test_a_copy_with_fewer_partitions_is_explained(ottla: Ottla) -> None:
    target = ottla.topic()
    lines = b'{"partition":0,"value":"a"}\n{"partition":1,"value":"b"}\n'
    with ottla.start("produce", target, "--format", "json", stdin=subprocess.PIPE) as writer:
        said = writer.communicate(lines, timeout=60)[1].decode()
        assert writer.returncode == 1
    assert "Record 2 of the input cannot be written" in said and "leave the field `partition` out" in said
    assert ottla.consume(target, "-e") == b"a\n"


def test_following_shows_records_as_they_come_and_ctrl_c_ends_it(ottla: Ottla) -> None:
    topic = ottla.topic()
    with ottla.start("consume", topic) as reader:
        try:
            for number in range(3):
                ottla.produce(topic, given=b"%d\n" % number)
                assert lines_from(reader.stdout, 1) == [b"%d\n" % number]
            assert interrupt(reader) == (0, b"")
        finally:
            reader.kill()


def test_max_waits_for_what_is_still_to_come(ottla: Ottla) -> None:
    topic = ottla.topic()
    ottla.produce(topic, given=b"1\n")
    with ottla.start("consume", topic, "--max", "2") as reader:
        try:
            assert lines_from(reader.stdout, 1) == [b"1\n"]
            ottla.produce(topic, given=b"2\n3\n")
            assert reader.stdout is not None and reader.stdout.read() == b"2\n"
            assert reader.wait(TIMEOUT_S) == 0
        finally:
            reader.kill()


def test_typed_lines_leave_at_once_and_ctrl_c_loses_nothing(ottla: Ottla) -> None:
    topic = ottla.topic()
    with ottla.start("produce", topic, stdin=subprocess.PIPE) as writer:
        try:
            assert writer.stdin is not None
            writer.stdin.write(b"typed\n")
            writer.stdin.flush()
            assert ottla.consume(topic, "--max", "1") == b"typed\n"
            code, said = interrupt(writer)
            assert code == 130 and b"1 record " in said
        finally:
            writer.kill()


def test_a_reader_that_has_seen_enough_is_no_error(ottla: Ottla) -> None:
    topic = ottla.topic()
    ottla.produce(topic, given=b"".join(b"%d\n" % number for number in range(200_000)))
    done = subprocess.run(
        ["bash", "-c", '"$@" | head -2; echo ${PIPESTATUS[0]}', "-", *ottla.command("consume", topic)],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stdout == b"0\n1\n141\n" and done.stderr == b""


def test_input_that_is_no_record_names_it(ottla: Ottla) -> None:
    topic = ottla.topic()
    done = subprocess.run(
        ottla.command("produce", topic, "--format", "json"),
        input=b'{"value": "ok"}\n{"vale": 1}\n',
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"ottla: Record 2 of the input") and done.stderr.count(b"\n") == 1
    assert ottla.consume(topic, "-e") == b"ok\n"


def test_a_record_that_the_topic_refuses_is_one_sentence(ottla: Ottla) -> None:
    topic = ottla.topic("--config", "max.message.bytes=1000")
    done = subprocess.run(
        ottla.command("produce", topic),
        input=b"x" * 5000,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert b"MESSAGE_TOO_LARGE" in done.stderr and done.stderr.count(b"\n") == 1


def test_typos_and_topics_that_are_not_there(ottla: Ottla) -> None:
    topic = ottla.topic()
    for arguments, said in (
        (("consume", f"{topic}x"), f"Did you mean '{topic}'?"),
        (("consume", topic, "--partition", "3"), "has no partition 3"),
        (("consume", topic, "--from", "5"), "Offset 5 is out of range"),
    ):
        assert said in ottla(*arguments, code=1).err
    for arguments in (
        ("consume", topic, "--from", "whenever"),
        ("consume", topic, "--format", "xml"),
        ("produce", topic, "-K", ""),
        ("produce", topic, "--format", "json", "-Z"),
    ):
        assert ottla(*arguments, code=2).err
    new = f"{topic}-new"
    ottla.produce(new, given=b"x", code=1)
    ottla.produce(new, "--create", given=b"x")
    assert ottla.consume(new, "-e") == b"x\n"


def test_kafka_clients_read_what_was_produced(ottla: Ottla, local_cluster: object) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    topic = ottla.topic()
    ottla.produce(topic, "-K", "=", "-H", "h=1", given=b"k=v\n")
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": local_cluster.kafka_bootstrap, "group.id": "t", "enable.auto.commit": False}  # type: ignore[attr-defined]
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        message = consumer.poll(TIMEOUT_S)
        assert (message.key(), message.value(), message.headers()) == (b"k", b"v", [("h", b"1")])
    finally:
        consumer.close()


def test_commands_work_without_the_broker_extra() -> None:
    """`ottla[client]` has neither uvloop nor kio: what talks to brokers must not import them."""
    script = (
        "import sys\n"
        "for name in ('ottla_broker', 'kio', 'uvloop', 'aetcd', 'structlog'): sys.modules[name] = None\n"
        "from ottla_cli.main import main\n"
        "main(sys.argv[1:])"
    )
    for arguments in (
        ["consume", "--help"],
        ["produce", "--help"],
        ["topics", "--help"],
        ["bench", "--help"],
    ):
        subprocess.run(
            [sys.executable, "-c", script, *arguments], check=True, capture_output=True, timeout=TIMEOUT_S
        )
    done = subprocess.run(
        [sys.executable, "-c", script, "log", "dump", "."],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1 and b"pip install 'ottla[broker]'" in done.stderr
