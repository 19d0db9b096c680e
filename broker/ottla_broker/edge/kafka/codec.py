"""Requests in and answers out, by API and version; compiled on first use and kept. [P]

The number of entries is bounded by the versions table, so the caches need no limit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import cache
from typing import Any

from ottla_broker.edge.kafka import schema
from ottla_broker.edge.kafka.decode import compile_reader, compile_sliced_reader
from ottla_broker.edge.kafka.encode import SliceBudget, SlicedWrite, compile_sliced_writer, compile_writer
from ottla_broker.edge.kafka.versions import Api
from ottla_core.errors import RequestError


@cache
def _reader(api: Api, version: int) -> Callable[[memoryview], dict[str, Any]]:
    return compile_reader(schema.load(api, version, "request"))


@cache
def _writer(api: Api, version: int) -> Callable[[bytearray, Mapping[str, Any]], None]:
    return compile_writer(schema.load(api, version, "response"))


@cache
def _sliced_reader(api: Api, version: int) -> Callable[[memoryview], Generator[None, None, dict[str, Any]]]:
    return compile_sliced_reader(schema.load(api, version, "request"))


@cache
def _sliced_writer(api: Api, version: int) -> SlicedWrite | None:
    return compile_sliced_writer(schema.load(api, version, "response"))


def decode_request(api: Api, version: int, body: memoryview) -> dict[str, Any]:
    """The fields of a request. Raises `Malformed` and nothing else."""
    return _reader(api, version)(body)


def decode_in_steps(api: Api, version: int, body: memoryview) -> Generator[None, None, dict[str, Any]]:
    """The same in slices. `body` must stay as it is until the end."""
    return _sliced_reader(api, version)(body)


def encode_response(api: Api, version: int, fields: Mapping[str, Any]) -> bytearray:
    """The body of an answer, without its header."""
    out = bytearray()
    _writer(api, version)(out, fields)
    return out


def begin_response(
    api: Api, version: int, fields: Mapping[str, Any]
) -> bytearray | Generator[None, None, bytearray]:
    """The same; of a long answer the rest of its slices."""
    sliced = _sliced_writer(api, version)
    if sliced is None:
        return encode_response(api, version, fields)
    out = bytearray()
    steps = sliced(out, fields, SliceBudget())
    for _ in steps:
        return _rest(steps, out)
    return out


def _rest(steps: Generator[None, None, None], out: bytearray) -> Generator[None, None, bytearray]:
    yield from steps
    return out


@cache
def _has_error_code(api: Api, version: int) -> bool:
    return schema.load(api, version, "response").has("error_code")


def error_response(api: Api, version: int, error: RequestError) -> dict[str, Any] | None:
    """An answer that says nothing but the error, for the APIs that have a place for it at their top."""
    if not _has_error_code(api, version):
        return None
    return {"error_code": error.code, "error_message": error.message}
