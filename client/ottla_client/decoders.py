"""Decoders of values in JSON, Avro or Protobuf by a schema file: from bytes to a value that JSON has. [A]

The command line and Spark share them. The libraries load only when a format is asked for; those that the client does
not need otherwise come with `ottla[decode]`. A decoder raises for bytes that do not fit; libraries raise many kinds.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from ottla_client.decode_spec import DecodeSpec, SchemaProblem, unframed
from ottla_client.json_text import parse_strictly, plain

Decode = Callable[[bytes], Any]


def decoder(spec: DecodeSpec) -> Decode:
    """SchemaProblem if its file or a library is missing or wrong."""
    decode = _decoder(spec)
    return (lambda data: decode(unframed(data))) if spec.registry else decode


def frozen(spec: DecodeSpec) -> bytes:
    """The schema in one piece, without what it imports from other files: the content of a file for `decoder`.

    A .proto file becomes a descriptor set.
    """
    try:
        if spec.format == "avro":
            return json.dumps(_avro_schema(spec.file)).encode()
        if spec.format == "protobuf" and spec.file.endswith(".proto"):
            from ottla_client.decode_protobuf import compiled

            return compiled(spec.file)
        if not spec.file:
            return b""
        with open(spec.file, "rb") as opened:
            return opened.read()
    except OSError as wrong:
        raise _unreadable(spec.file, wrong) from None
    except ImportError:
        raise _needs_more(spec) from None


def _decoder(spec: DecodeSpec) -> Decode:
    try:
        if spec.format == "avro":
            return _avro(spec.file)
        if spec.format == "protobuf":
            from ottla_client.decode_protobuf import protobuf

            return protobuf(spec)
        return _json(spec.file) if spec.file else parse_strictly
    except OSError as wrong:
        raise _unreadable(spec.file, wrong) from None
    except ImportError:
        raise _needs_more(spec) from None


def _unreadable(file: str, wrong: OSError) -> SchemaProblem:
    return SchemaProblem(f"{file}: {wrong.strerror or wrong}.")


def _needs_more(spec: DecodeSpec) -> SchemaProblem:
    return SchemaProblem(
        f"--decode {spec.format} with a schema needs more packages: pip install 'ottla[decode]'."
    )


def _avro_schema(file: str) -> Any:
    from fastavro.repository import SchemaRepositoryError
    from fastavro.schema import SchemaParseException, UnknownType, load_schema

    with open(file, encoding="utf-8"):
        pass  # the library has an error of its own for files that it cannot read
    try:
        # Types that the file only names are read from files of that name beside it.
        return load_schema(file)
    except (SchemaRepositoryError, SchemaParseException, UnknownType, ValueError) as wrong:
        raise _bad_schema(file, "Avro", wrong) from None


def _avro(file: str) -> Decode:
    from fastavro import schemaless_reader

    schema = _avro_schema(file)

    def decode(data: bytes) -> Any:
        stream = io.BytesIO(data)
        value = schemaless_reader(stream, schema, None)
        if stream.tell() < len(data):
            raise ValueError(f"{len(data) - stream.tell()} of {len(data)} bytes are left over")
        return plain(value)

    return decode


def _json(file: str) -> Decode:
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


def _bad_schema(file: str, what: str, wrong: Exception) -> SchemaProblem:
    return SchemaProblem(
        f"{file} is not a schema of {what}: {' '.join(str(wrong).split())}".rstrip(".") + "."
    )
