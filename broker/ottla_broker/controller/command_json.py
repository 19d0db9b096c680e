"""JSON of commands and their results, derived from their types. [P]

A dataclass is an object, a named tuple an array, an error its code and message. Both ends are brokers, possibly of
different releases: a field that is missing has its default, and one that is unknown is skipped. A value of another
type raises ValueError, a missing field without a default TypeError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from ottla_core.errors import RequestError, error_from_code


class Codec(NamedTuple):
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


@cache
def codec(type_: Any) -> Codec:
    """The codec of a type; TypeError if it has none."""
    origin, arguments = get_origin(type_), get_args(type_)
    if type_ in (bool, int, float, str, None, NoneType):
        return Codec(lambda value: value, _checked(NoneType if type_ is None else type_))
    if type_ is UUID:
        return Codec(str, lambda text: UUID(_checked(str)(text)))
    if origin in (Union, UnionType) and len(arguments) == 2 and NoneType in arguments:
        return _optional(codec(next(each for each in arguments if each is not NoneType)))
    if origin is list or (origin is tuple and arguments[1:] == (...,)):
        return _sequence(origin, codec(arguments[0]))
    if origin is not None and issubclass(origin, Mapping) and arguments[0] is str:
        return _mapping(codec(arguments[1]))
    if isinstance(type_, type) and issubclass(type_, RequestError):
        return Codec(
            lambda error: {"code": error.code, "message": error.message},
            lambda said: error_from_code(_checked(int)(said["code"]), _checked(str)(said["message"])),
        )
    if isinstance(type_, type) and issubclass(type_, tuple) and hasattr(type_, "_fields"):
        return _named_tuple(type_)
    if is_dataclass(type_):
        return _object(type_)
    raise TypeError(f"{type_!r} has no JSON form")


def _checked(type_: Any) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        # A bool is an int to Python, and an int a valid float in JSON.
        if type(value) is not type_ and not (type_ is float and type(value) is int):
            raise ValueError(f"expected {type_.__name__}, not {type(value).__name__}")
        return value

    return check


def _optional(inner: Codec) -> Codec:
    return Codec(
        lambda value: None if value is None else inner.encode(value),
        lambda value: None if value is None else inner.decode(value),
    )


def _sequence(type_: Callable[[Any], Any], inner: Codec) -> Codec:
    return Codec(
        lambda values: [inner.encode(value) for value in values],
        lambda values: type_(inner.decode(value) for value in _checked(list)(values)),
    )


def _mapping(inner: Codec) -> Codec:
    return Codec(
        lambda values: {name: inner.encode(value) for name, value in values.items()},
        lambda values: {str(name): inner.decode(value) for name, value in _checked(dict)(values).items()},
    )


def _named_tuple(type_: Any) -> Codec:
    inner = [codec(hint) for hint in get_type_hints(type_).values()]

    def decode(values: Any) -> Any:
        return type_(
            *(each.decode(value) for each, value in zip(inner, _checked(list)(values), strict=False))
        )

    return Codec(
        lambda values: [each.encode(value) for each, value in zip(inner, values, strict=True)], decode
    )


def _object(type_: Any) -> Codec:
    hints = get_type_hints(type_)
    inner = {field.name: codec(hints[field.name]) for field in fields(type_)}

    def decode(values: Any) -> Any:
        given = _checked(dict)(values)
        return type_(**{name: each.decode(given[name]) for name, each in inner.items() if name in given})

    return Codec(
        lambda value: {name: each.encode(getattr(value, name)) for name, each in inner.items()}, decode
    )
