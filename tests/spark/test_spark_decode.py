"""Avro, Protobuf and JSON values as JSON text: each in Spark, and what does not fit as null."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from jobs import sessions
from ottla_cli.local_cluster import LocalCluster
from ottla_client.decode_spec import SchemaProblem, decode_specs
from ottla_client.decoders import frozen
from ottla_client.sync import Producer
from pyspark_ottla.decode import decoded, json_texts

_EVENT: Any = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": name, "type": ["null", "string"]} for name in ("event_id", "user", "page", "action", "time")
    ],
}
_PROTO = """syntax = "proto3";
import "page.proto";
message Other { string name = 1; }
message Event { string user = 1; Page page = 2; }
"""
_PAGE = """syntax = "proto3";
message Page { string path = 1; }
"""


def avro(schema: Any, value: Any) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), value)
    return written.getvalue()


def texts(wanted: str, *values: bytes | None) -> list[Any]:
    (spec,) = decode_specs([wanted])
    found = json_texts(pa.array(values, pa.binary()), spec, frozen(spec)).to_pylist()
    return [None if text is None else json.loads(text) for text in found]


@pytest.fixture
def proto(tmp_path: Path) -> Path:
    (tmp_path / "page.proto").write_text(_PAGE)
    (tmp_path / "event.proto").write_text(_PROTO)
    return tmp_path / "event.proto"


def test_avro_with_a_type_in_a_file_of_its_own(tmp_path: Path) -> None:
    page = {"type": "record", "name": "Page", "fields": [{"name": "path", "type": "string"}]}
    event = {"type": "record", "name": "Event", "fields": [{"name": "page", "type": "Page"}]}
    (tmp_path / "Page.avsc").write_text(json.dumps(page))
    (tmp_path / "Event.avsc").write_text(json.dumps(event))
    whole = {**event, "fields": [{"name": "page", "type": page}]}
    value = avro(whole, {"page": {"path": "/"}})
    found = texts(f"avro:{tmp_path}/Event.avsc", value, None, b"", value + b"x")
    assert found == [{"page": {"path": "/"}}, None, None, None]
    header = b"\0\0\0\0\7"
    assert texts(f"avro-confluent:{tmp_path}/Event.avsc", header + value, value) == [found[0], None]


def test_protobuf_with_an_import(proto: Path) -> None:
    (spec,) = decode_specs([f"protobuf:{proto}#Event"])
    pool = descriptor_pool.DescriptorPool()
    for each in FileDescriptorSet.FromString(frozen(spec)).file:
        pool.Add(each)
    event: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("Event"))(user="u")
    event.page.path = "/"
    found = texts(f"protobuf:{proto}#Event", event.SerializeToString(), b"\xff")
    assert found == [{"user": "u", "page": {"path": "/"}}, None]


def test_json_with_a_schema(tmp_path: Path) -> None:
    schema = tmp_path / "event.json"
    schema.write_text(json.dumps({"type": "object", "required": ["user"]}))
    assert texts(f"json:{schema}", b'{"user": 1}', b"{}", b"no") == [{"user": 1}, None, None]
    assert texts("json", b'{"user": NaN}', b"[1]") == [None, [1]]


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ("avro:/nowhere.avsc", "/nowhere.avsc: No such file"),
        ("key=json", "give the column instead"),
        ("xml:event.xsd", "takes FORMAT:FILE with one of json, avro, protobuf"),
    ],
)
def test_what_is_wrong_is_said_on_the_driver(wanted: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        decoded("value", wanted)


def test_a_message_that_the_file_lacks_is_named_with_the_users_file(proto: Path) -> None:
    with pytest.raises(SchemaProblem, match=r"event\.proto has no message 'Nothing'; it has Other, Event"):
        decoded("value", f"protobuf:{proto}#Nothing")


@pytest.mark.integration
def test_spark_and_a_job_read_avro(
    spark: SparkSession, local_cluster: LocalCluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    schema = tmp_path / "event.avsc"
    schema.write_text(json.dumps(_EVENT))
    events, results = make_topic(1), make_topic(1)
    made = [
        {"event_id": str(n), "user": user, "page": "/", "action": "buy", "time": f"2026-01-01T00:00:0{n}Z"}
        for n, user in enumerate(("a", "a", "b"))
    ]
    last = {"event_id": "9", "user": None, "page": None, "action": None, "time": "2026-01-02T00:00:00Z"}
    with Producer(local_cluster.grpc_bootstrap) as producer:
        for value in [*(avro(_EVENT, each) for each in made), b"\xff\xff", avro(_EVENT, last)]:
            producer.send(events, value)
    options = {"bootstrap.servers": local_cluster.grpc_bootstrap, "subscribe": events}
    read = spark.read.format("ottla").options(**options).load().orderBy("offset")
    found = read.select(decoded("value", f"avro:{schema}").alias("text")).collect()
    assert [None if row.text is None else json.loads(row.text) for row in found] == [*made, None, last]

    job = sessions.Job(
        local_cluster.grpc_bootstrap,
        events,
        results,
        str(tmp_path / "checkpoint"),
        decode=f"avro:{schema}",
    )
    assert sessions.start(spark, job).awaitTermination(120)
    counted = sessions.results(spark, job).select("user", "events").orderBy(f.col("user")).collect()
    assert [tuple(row) for row in counted] == [("a", 2), ("b", 1)]
