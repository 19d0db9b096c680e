"""Our readers and writers against kio's own, for every message and version that the edge serves."""

from __future__ import annotations

import dataclasses
import datetime
import io
import random
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer

import ottla_broker.edge.kafka.handlers as handlers
from budget import some
from ottla_broker.edge.kafka import codec, schema
from ottla_broker.edge.kafka.decode import Malformed, compile_reader
from ottla_broker.edge.kafka.encode import compile_writer
from ottla_broker.edge.kafka.schema import FieldPlan, StructPlan
from ottla_broker.edge.kafka.versions import APIS, Api

every_api = pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)


def versions(api: Api) -> range:
    return range(api.low, api.high + 1)


EVERY_VERSION = [(api, version) for api in APIS.values() for version in versions(api)]


def value_for(plan: FieldPlan, chance: random.Random) -> Any:
    if plan.is_array:
        if plan.nullable and chance.random() < 0.2:
            return None
        return [scalar_for(plan, chance) for _ in range(chance.randrange(3))]
    if plan.nullable and plan.tag is None and chance.random() < 0.3:
        return None
    return scalar_for(plan, chance)


def scalar_for(plan: FieldPlan, chance: random.Random) -> Any:
    if plan.struct is not None:
        return struct_for(plan.struct, chance)
    if plan.kind == "string":
        return "é" * chance.randrange(100)
    if plan.kind in ("bytes", "records"):
        return chance.randbytes(chance.randrange(200))
    if plan.kind == "uuid":
        return UUID(int=chance.getrandbits(128))
    if plan.kind == "bool":
        return chance.random() < 0.5
    if plan.kind == "float64":
        return chance.random()
    return chance.randrange(0, 100)


def struct_for(plan: StructPlan, chance: random.Random) -> dict[str, Any]:
    return {field.name: value_for(field, chance) for field in plan.fields}


def plain(value: Any) -> Any:
    """kio's value in the shape of ours."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, ErrorCode):
        return value.value
    return value


@every_api
@pytest.mark.parametrize("direction", ["request", "response"])
def test_reads_and_writes_what_kio_does(api: Api, direction: str) -> None:
    for version in versions(api):
        _reads_and_writes_what_kio_does(api, version, direction)


def _reads_and_writes_what_kio_does(api: Api, version: int, direction: str) -> None:
    plan = schema.load(api, version, direction)
    loader = load_request_schema if direction == "request" else load_response_schema
    kio_type = loader(api.key, version)
    write, read = compile_writer(plan), compile_reader(plan)
    chance = random.Random(f"{api.name}{version}{direction}")
    for _ in range(5):
        value = struct_for(plan, chance)
        ours = bytearray()
        write(ours, value)
        assert plain(read(memoryview(ours))) == value

        kios, size = entity_reader(kio_type)(memoryview(bytes(ours)), 0)
        assert size == len(ours)
        theirs = io.BytesIO()
        entity_writer(kio_type)(theirs, kios)
        assert theirs.getvalue() == bytes(ours)
        assert {k: v for k, v in plain(kios).items() if v is not None} == {
            k: v for k, v in value.items() if v is not None
        }


@every_api
def test_flexible_from_agrees_with_the_schema(api: Api) -> None:
    flexible = [version for version in versions(api) if schema.load(api, version, "request").flexible]
    assert flexible == [version for version in versions(api) if version >= api.flexible_from]


def test_the_table_the_schemas_and_the_handler_files_agree() -> None:
    files = {path.stem for path in Path(handlers.__path__[0]).glob("k*.py")}
    assert files == {f"k{api.key:02}_{api.name}" for api in APIS.values()}
    for api in APIS.values():
        # SaslHandshake 0 is followed by messages without headers, which are not served.
        low = 1 if api.name == "sasl_handshake" else min(schema_name_map[api.name])
        assert (low, max(schema_name_map[api.name])) == (api.low, api.high)


@every_api
def test_every_cut_and_every_wrong_byte_is_malformed_or_read(api: Api) -> None:
    for version in versions(api):
        _every_cut_and_every_wrong_byte_is_malformed_or_read(api, version)


def _every_cut_and_every_wrong_byte_is_malformed_or_read(api: Api, version: int) -> None:
    plan = schema.load(api, version, "request")
    chance = random.Random(version)
    whole = bytearray()
    compile_writer(plan)(whole, struct_for(plan, chance))
    for size in some(range(len(whole))):
        with pytest.raises(Malformed):
            codec.decode_request(api, version, memoryview(whole)[:size])
    for at in some(range(len(whole))):
        for wrong in (0, 0x7F, 0x80, 0xFF, chance.randrange(256)):
            bent = bytearray(whole)
            bent[at] = wrong
            try:
                codec.decode_request(api, version, memoryview(bent))
            except Malformed:
                continue


def test_unknown_tagged_fields_are_skipped() -> None:
    api = APIS[3]
    body = bytearray()
    body += b"\x02" + bytes(16) + b"\x02a" + b"\x02\x63\x03abc\x7f\x00"  # one topic, two unknown tags
    body += b"\x01\x00" + b"\x01\x05\x00"  # two booleans, one unknown empty tag
    fields = codec.decode_request(api, 12, memoryview(body))
    assert fields["topics"] == [{"topic_id": UUID(int=0), "name": "a"}]


def test_array_of_more_elements_than_bytes_is_refused_before_it_is_built() -> None:
    with pytest.raises(Malformed, match="2147483647 elements"):
        codec.decode_request(APIS[3], 1, memoryview(b"\x7f\xff\xff\xff" + bytes(50)))


def test_many_elements_of_one_byte_hit_the_cap() -> None:
    # 100,000 empty coordinator keys, one byte each.
    body = b"\x00" + b"\xa1\x8d\x06" + b"\x01" * 100_000 + b"\x00"
    with pytest.raises(Malformed, match="100000 elements"):
        codec.decode_request(APIS[10], 4, memoryview(body))


def test_missing_fields_get_the_schema_defaults() -> None:
    body = codec.encode_response(APIS[3], 12, {"topics": [{"name": "t"}]})
    value, _ = entity_reader(load_response_schema(3, 12))(memoryview(bytes(body)), 0)
    assert plain(value)["topics"][0]["topic_authorized_operations"] == -2147483648
    assert plain(value)["controller_id"] == -1
