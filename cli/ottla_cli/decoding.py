"""`ottla consume --decode`: keys and values in JSON, Avro or Protobuf, as JSON text, by a schema file. [A]

The libraries load only when a format is asked for; those that the command line does not need otherwise come with
`ottla[decode]`. A decoder is a function from the bytes to a value that JSON has; it raises for bytes that do not fit.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from ottla_cli.decode_spec import DecodeSpec, has_header, unframed
from ottla_cli.failure import Failure
from ottla_cli.json_text import JsonText, json_line, parse_strictly, plain
from ottla_client.record import ConsumerRecord

_Decode = Callable[[bytes], Any]
_REASON_MAX = 200


class BadRecord(Exception):
    """A record does not fit its schema; the text is one sentence with topic, partition and offset."""


class Decoding:
    """The decoders of key and value."""

    def __init__(self, specs: Sequence[DecodeSpec]) -> None:
        #: Failure if a schema file or a library is missing or wrong.
        self._parts = {spec.part: (spec, _decoder(spec)) for spec in specs}

    def __call__(self, record: ConsumerRecord) -> ConsumerRecord:
        return record._replace(
            key=self._text("key", record, record.key), value=self._text("value", record, record.value)
        )

    def _text(self, part: str, record: ConsumerRecord, data: bytes | None) -> bytes | None:
        found = self._parts.get(part)
        if found is None or data is None:
            return data
        spec, decode = found
        try:
            return JsonText(json_line(decode(unframed(data) if spec.registry else data)))
        except Exception as wrong:  # libraries raise many kinds for bytes that are not theirs
            raise BadRecord(_sentence(spec, record, data, wrong)) from None


def _sentence(spec: DecodeSpec, record: ConsumerRecord, data: bytes, wrong: Exception) -> str:
    what = {"json": "JSON", "avro": "Avro", "protobuf": "Protobuf"}[spec.format]
    by = f" by {spec.file}" if spec.file else ""
    why = " ".join(str(wrong).split()) or type(wrong).__name__
    if len(why) > _REASON_MAX:
        why = f"{why[:_REASON_MAX]}…"
    hint = ""
    if not spec.registry and has_header(data):
        hint = f" It begins like bytes with the id of a schema: try {spec.format}-confluent."
    where = f"{record.topic}-{record.partition} offset {record.offset}"
    return f"{where}: the {spec.part} is not {what}{by}: {why.rstrip('.')}.{hint}"


def _decoder(spec: DecodeSpec) -> _Decode:
    try:
        if spec.format == "avro":
            return _avro(spec.file)
        if spec.format == "protobuf":
            from ottla_cli.decode_protobuf import protobuf

            return protobuf(spec)
        return _json(spec.file) if spec.file else parse_strictly
    except OSError as wrong:
        raise Failure(f"{spec.file}: {wrong.strerror or wrong}.", exit_code=2) from None
    except ImportError:
        raise Failure(
            f"--decode {spec.format} with a schema needs more packages: pip install 'ottla[decode]'.",
            exit_code=2,
        ) from None


def _avro(file: str) -> _Decode:
    from fastavro import schemaless_reader
    from fastavro.repository import SchemaRepositoryError
    from fastavro.schema import SchemaParseException, UnknownType, load_schema

    with open(file, encoding="utf-8"):
        pass  # the library has an error of its own for files that it cannot read
    try:
        # Types that the file only names are read from files of that name beside it.
        schema = load_schema(file)
    except (SchemaRepositoryError, SchemaParseException, UnknownType, ValueError) as wrong:
        raise _bad_schema(file, "Avro", wrong) from None

    def decode(data: bytes) -> Any:
        stream = io.BytesIO(data)
        value = schemaless_reader(stream, schema, None)
        if stream.tell() < len(data):
            raise ValueError(f"{len(data) - stream.tell()} of {len(data)} bytes are left over")
        return plain(value)

    return decode


def _json(file: str) -> _Decode:
    from jsonschema.exceptions import SchemaError, best_match
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY

    with open(file, "rb") as opened:
        try:
            schema = json.load(opened)
        except ValueError as wrong:
            raise _bad_schema(file, "JSON", wrong) from None
    if not isinstance(schema, dict | bool):
        raise _bad_schema(file, "JSON", ValueError("it is neither an object nor true or false"))
    kind = validator_for(schema)
    try:
        kind.check_schema(schema)
    except SchemaError as wrong:
        raise _bad_schema(file, "JSON", ValueError(wrong.message)) from None
    # With a registry of its own it fetches no schema from the network.
    validator = kind(schema, registry=REGISTRY)

    def decode(data: bytes) -> Any:
        value = parse_strictly(data)
        wrong = best_match(validator.iter_errors(value))
        if wrong is not None:
            raise ValueError(f"{wrong.json_path}: {wrong.message}")
        return value

    return decode


def _bad_schema(file: str, what: str, wrong: Exception) -> Failure:
    return Failure(
        f"{file} is not a schema of {what}: {' '.join(str(wrong).split())}".rstrip(".") + ".", exit_code=2
    )
