"""`ottla consume --decode`: JSON, Avro and Protobuf by schema files; what does not fit is named."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from cli.ottla_command import Ottla
from ottla_cli.decoding import BadRecord, Decoding
from ottla_cli.failure import Failure
from ottla_cli.formats import formatter
from ottla_cli.record_filter import record_filter
from ottla_client import ConsumerRecord
from ottla_client.decode_spec import decode_specs, message_indexes
from ottla_client.json_text import JsonText

ORDER_AVSC = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "raw", "type": "bytes"},
        {"name": "rate", "type": "double"},
    ],
}
ORDER_PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Other { string text = 9; }
message Order {
  message Line { string item = 1; }
  int64 order_id = 1;
  repeated Line lines = 2;
  google.protobuf.Timestamp at = 3;
  bytes raw = 4;
}
"""
#: id 150, one line "tea", 1 s after 1970, raw "hi"; by Protobuf's encoding rules.
ORDER_BYTES = b"\x08\x96\x01\x12\x05\x0a\x03tea\x1a\x02\x08\x01\x22\x02hi"
ORDER_SHOWN = {"order_id": "150", "lines": [{"item": "tea"}], "at": "1970-01-01T00:00:01Z", "raw": "aGk="}


def record(value: bytes | None, key: bytes | None = None) -> ConsumerRecord:
    return ConsumerRecord("orders", 2, 17, 0, key, value, ())


def decoded(*specs: str) -> Callable[[bytes], Any]:
    decoding = Decoding(decode_specs(specs))
    return lambda data: decoding(record(data)).value


def avro(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return stream.getvalue()


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_options() -> None:
    value, key = decode_specs(["protobuf-confluent:a#b/o.proto#shop.Order", "key=json"])
    assert (value.part, value.format, value.file, value.message, value.registry) == (
        "value",
        "protobuf",
        "a#b/o.proto",
        "shop.Order",
        True,
    )
    assert (key.part, key.format, key.file, key.registry) == ("key", "json", "", False)
    for wrong in (["xml:a"], ["avro"], ["protobuf:"], ["json", "value=json"], ["keys=json"]):
        with pytest.raises(ValueError, match=r"--decode"):
            decode_specs(wrong)


def test_json_is_one_line_and_strict() -> None:
    show = decoded("json")
    assert show(b'{\n "a": [1, 2.50, "\xc3\xa9"]}') == '{"a":[1,2.5,"é"]}'.encode()
    assert show(b'"\\ud800"') == b'"\\ud800"'
    for wrong in (b"", b"{", b"NaN", b"1e999", b"\xff", b"[" * 100_000):
        with pytest.raises(BadRecord, match=r"^orders-2 offset 17: the value is not JSON: .+\.$"):
            show(wrong)
    assert Decoding(decode_specs(["json"]))(record(None, b"k")) == record(None, b"k")


def test_json_schema(tmp_path: Path) -> None:
    schema = {"properties": {"id": {"type": "integer"}}, "required": ["id"]}
    show = decoded(f"json:{write(tmp_path / 'order.json', json.dumps(schema))}")
    assert show(b'{"id": 7}') == b'{"id":7}'
    with pytest.raises(BadRecord, match=r"order.json: \$.id: 'x' is not of type 'integer'\.$"):
        show(b'{"id": "x"}')
    for wrong in ("{", "[]", '{"type": "nothing"}'):
        with pytest.raises(Failure, match=r"bad.json is not a schema of JSON"):
            decoded(f"json:{write(tmp_path / 'bad.json', wrong)}")


def test_avro(tmp_path: Path) -> None:
    import datetime
    from decimal import Decimal

    file = write(tmp_path / "order.avsc", json.dumps(ORDER_AVSC))
    at = datetime.datetime(2026, 3, 31, 14, tzinfo=datetime.UTC)
    data = avro(
        ORDER_AVSC,
        {"id": 7, "name": "tea", "price": Decimal("1.50"), "at": at, "raw": b"\xff", "rate": float("inf")},
    )
    shown = {
        "id": 7,
        "name": "tea",
        "price": "1.50",
        "at": "2026-03-31T14:00:00+00:00",
        "raw": "/w==",
        "rate": "Infinity",
    }
    assert json.loads(decoded(f"avro:{file}")(data)) == shown
    assert json.loads(decoded(f"avro-confluent:{file}")(b"\0\0\0\0\x05" + data)) == shown
    for wrong in (b"", data[:-1], data + b"x", b"\xff" * 30):
        with pytest.raises(BadRecord, match=r"orders-2 offset 17: the value is not Avro by .+order.avsc: "):
            decoded(f"avro:{file}")(wrong)
    with pytest.raises(BadRecord, match=r"left over.* try avro-confluent"):
        decoded(f"avro:{write(tmp_path / 'n.avsc', json.dumps('long'))}")(b"\0\0\0\0\x05\x02")
    with pytest.raises(BadRecord, match=r"does not begin with the id of a schema"):
        decoded(f"avro-confluent:{file}")(b"\x02abcdef")


def test_schema_files_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"nope.avsc: No such file or directory\."):
        decoded(f"avro:{tmp_path}/nope.avsc")
    for wrong in (
        "{",
        '{"type": "recor"}',
        '{"type": "record", "name": "A", "fields": [{"name": "b", "type": "B"}]}',
    ):
        with pytest.raises(Failure, match=r"bad.avsc is not a schema of Avro: "):
            decoded(f"avro:{write(tmp_path / 'bad.avsc', wrong)}")
    with pytest.raises(Failure, match=r"does not compile: .*o.proto:1:.*syntax"):
        decoded(f"protobuf:{write(tmp_path / 'o.proto', 'syntax = 3')}")
    with pytest.raises(Failure, match=r"neither a .proto file nor a descriptor set"):
        decoded(f"protobuf:{write(tmp_path / 'bad.desc', 'hello')}")


def test_protobuf(tmp_path: Path) -> None:
    file = write(tmp_path / "order.proto", ORDER_PROTO)
    show = decoded(f"protobuf:{file}#Order")
    assert json.loads(show(ORDER_BYTES)) == ORDER_SHOWN
    assert show(b"") == b"{}"
    for wrong in (b"\x08", b"\x4a\x02hi", b"hello"):
        with pytest.raises(BadRecord, match=r"the value is not Protobuf by .+order.proto: "):
            show(wrong)
    with pytest.raises(Failure, match=r"has 2 messages; choose one"):
        decoded(f"protobuf:{file}")
    with pytest.raises(Failure, match=r"no message 'Orders'; it has shop.Other, shop.Order"):
        decoded(f"protobuf:{file}#Orders")
    framed = decoded(f"protobuf-confluent:{file}#shop.Order")
    assert json.loads(framed(b"\0\0\0\0\x05\x02\x02" + ORDER_BYTES)) == ORDER_SHOWN
    with pytest.raises(BadRecord, match=r"it is a shop.Order.Line, not a shop.Order\."):
        framed(b"\0\0\0\0\x05\x04\x02\x00" + ORDER_BYTES)
    assert message_indexes(b"\0rest") == ([0], b"rest")


def test_descriptor_sets_need_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    files = descriptor_pb2.FileDescriptorSet()
    one = files.file.add(name="a.proto", package="p", syntax="proto3")
    field = one.message_type.add(name="A").field.add(name="n", number=1)
    field.type, field.label = field.TYPE_INT32, field.LABEL_OPTIONAL
    (tmp_path / "a.desc").write_bytes(files.SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(one)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.A"))(n=3)
    assert decoded(f"protobuf:{tmp_path}/a.desc")(made.SerializeToString()) == b'{"n":3}'
    one.dependency.append("missing.proto")
    (tmp_path / "b.desc").write_bytes(files.SerializeToString())
    with pytest.raises(Failure, match=r"b.desc is incomplete: "):
        decoded(f"protobuf:{tmp_path}/b.desc")


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(Failure, match=r"pip install 'ottla\[decode\]'"):
        decoded("avro:order.avsc")


def test_decoded_data_is_json_in_json_lines_and_filters() -> None:
    made = record(JsonText(b'{"id":7}'), JsonText(b'"eu"'))
    line = json.loads(formatter("json")(made))
    assert (line["key"], line["value"]) == ("eu", {"id": 7})
    assert formatter("%k %v\\n")(made) == b'"eu" {"id":7}\n'
    for key in ("eu", '"eu"'):
        shown = record_filter('"id":7', key, [])
        assert shown is not None and shown(made)


@pytest.mark.integration
def test_consume_decodes(ottla: Ottla, tmp_path: Path) -> None:
    topic = ottla.topic("--partitions", "1")
    file = write(tmp_path / "n.avsc", json.dumps("string"))
    ottla.produce(topic, "-K", ":", given=b'1:\x06tea\n2:\x06cake\n"x":\x04hi\n')
    options = (topic, "-e", "-D", f"avro:{file}", "-D", "key=json")
    bad = f"{topic}-0 offset 1: the value is not Avro by {file}: "
    stopped = ottla("consume", *options, "-f", "key-value", code=1)
    assert stopped.out == '1\t"tea"\n'
    assert f"ottla: {bad}" in stopped.err and "--skip-bad" in stopped.err
    skipped = ottla("consume", *options, "--json", "--skip-bad")
    found = [json.loads(line) for line in skipped.out.splitlines()]
    assert [(each["key"], each["value"]) for each in found] == [(1, "tea"), ("x", "hi")]
    assert bad in skipped.err
    grouped = ottla("consume", *options, "--group", topic, "--key", "x", "--skip-bad", "--max", "1")
    assert grouped.out == '"hi"\n'
    assert "excludes --decode" in ottla("consume", *options, "-f", "hex", code=2).err
    assert "--skip-bad is for --decode" in ottla("consume", topic, "--skip-bad", code=2).err
