"""Message schemas as flat plans, read from kio's generated classes. [P]

kio brings one dataclass per message and version, generated from Kafka's own definitions. Only those classes
are used: its native parser aborts the whole process on hostile lengths, refuses tagged fields it does not
know, and its writers are slow, so `decode` and `encode` build codecs from these plans. A schema is
imported when it is first needed; all of them together would take 2 s and 40 MB.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType, NoneType, UnionType
from typing import Any, get_args, get_origin
from uuid import UUID

from ottla_broker.edge.kafka.versions import Api

ZERO_UUID = UUID(int=0)

#: kio's names for plain integers; milliseconds and codes stay `int`.
_ALIASES = {
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
    "error_code": "int16",
}
_ZEROS: dict[str, Any] = {"bool": False, "string": "", "bytes": b"", "uuid": ZERO_UUID, "float64": 0.0}


@dataclass(frozen=True, slots=True)
class FieldPlan:
    name: str
    #: int8 … int64, uint16 … uint64, float64, bool, string, bytes, records, uuid; or "struct".
    kind: str
    is_array: bool
    nullable: bool
    default: Any
    tag: int | None
    struct: StructPlan | None


@dataclass(frozen=True, slots=True)
class StructPlan:
    name: str
    flexible: bool
    fields: tuple[FieldPlan, ...]

    def has(self, name: str) -> bool:
        return any(field.name == name for field in self.fields)


def load(api: Api, version: int, direction: str) -> StructPlan:
    """The plan of a "request" or a "response"."""
    module = _import(f"kio.schema.{api.name}.v{version}.{direction}")
    camel = "".join(word.capitalize() for word in api.name.split("_"))
    return _struct(getattr(module, camel + direction.capitalize()))


def _import(name: str) -> ModuleType:
    """Import a schema, but not what kio takes along for its own tests where it finds it installed.

    In a development environment that is hypothesis: 0.3 s and 12 MB at a broker's first request.
    """
    hidden = "hypothesis" not in sys.modules
    if hidden:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]  # makes the import fail, as documented
    try:
        return importlib.import_module(name)
    finally:
        if hidden:
            del sys.modules["hypothesis"]


def _struct(entity: Any) -> StructPlan:
    plans = tuple(_field(field) for field in dataclasses.fields(entity))
    return StructPlan(entity.__name__, bool(entity.__flexible__), plans)


def _field(field: dataclasses.Field[Any]) -> FieldPlan:
    inner, nullable = _without_none(field.type)
    is_array = get_origin(inner) is tuple
    if is_array:
        # Nothing in Kafka's protocol has nullable elements; kio spells a nullable array both ways.
        inner, nullable_element = _without_none(get_args(inner)[0])
        nullable = nullable or nullable_element
    struct = _struct(inner) if dataclasses.is_dataclass(inner) else None
    kind = "struct" if struct else _ALIASES.get(field.metadata["kafka_type"], field.metadata["kafka_type"])
    tag = field.metadata.get("tag")
    if kind == "uuid" or field.metadata.get("kafka_type") == "datetime_i64":
        nullable = False  # kio's None is a value on the wire: the zero UUID, the time -1
    default = _default(field, kind, is_array, nullable, struct)
    return FieldPlan(field.name, kind, is_array, nullable, default, tag, struct)


def _without_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) is not UnionType:
        return kind, False
    (inner,) = (arg for arg in get_args(kind) if arg is not NoneType)
    return inner, True


def _default(
    field: dataclasses.Field[Any], kind: str, is_array: bool, nullable: bool, struct: StructPlan | None
) -> Any:
    """What an absent field means: Kafka gives every field a default, zero or empty if none is named."""
    given: Any = field.default
    if is_array:
        return None if given is None and nullable else ()
    if struct is not None:
        return None if given is None or (nullable and given is dataclasses.MISSING) else {}
    if given is not dataclasses.MISSING and isinstance(given, int | float | str | bytes):
        return given
    if isinstance(given, timedelta):
        return round(given.total_seconds() * 1000)
    if field.metadata["kafka_type"] == "datetime_i64":
        return -1
    return None if nullable else _ZEROS.get(kind, 0)
