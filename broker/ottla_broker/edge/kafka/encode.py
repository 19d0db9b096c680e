"""Plain values to bytes by a schema plan. [P]

An answer is a dict; what a version does not have is left out, what the dict lacks gets the schema's default.
So a handler fills in the union of all its versions once. Used for all answers but Produce, Fetch and
Metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, TypeAlias
from uuid import UUID

from ottla_broker.edge.kafka.schema import FieldPlan, StructPlan

Write: TypeAlias = Callable[[bytearray, Any], None]


def write_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


_SHORT = tuple(bytes((value,)) for value in range(0x80))


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return _SHORT[value]
    out = bytearray()
    write_uvarint(out, value)
    return bytes(out)


def _fixed(form: str) -> Write:
    pack = Struct(form).pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def _uuid(out: bytearray, value: UUID) -> None:
    out += value.bytes


_INT16 = _fixed(">h")
_INT32 = _fixed(">i")

_FIXED: dict[str, Write] = {
    "int8": _fixed(">b"),
    "int16": _INT16,
    "int32": _INT32,
    "int64": _fixed(">q"),
    "uint8": _fixed(">B"),
    "uint16": _fixed(">H"),
    "uint32": _fixed(">I"),
    "uint64": _fixed(">Q"),
    "float64": _fixed(">d"),
    "bool": _fixed(">?"),
    "uuid": _uuid,
}


def _compact_length(out: bytearray, value: int) -> None:
    write_uvarint(out, value + 1)


def _sized(kind: str, flexible: bool, nullable: bool) -> Write:
    is_text = kind == "string"
    length: Write = _compact_length if flexible else (_INT16 if is_text else _INT32)

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            if not nullable:
                raise TypeError("None where the schema allows no null")
            length(out, -1)
            return
        data = value.encode() if is_text else value
        if is_text and not flexible and len(data) > 0x7FFF:
            data = data[:0x7FFF].decode(errors="ignore").encode()
        length(out, len(data))
        out += data

    return write


def _array(element: Write, flexible: bool, nullable: bool) -> Write:
    length: Write = _compact_length if flexible else _INT32

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            if not nullable:
                raise TypeError("None where the schema allows no null")
            length(out, -1)
            return
        length(out, len(value))
        for item in value:
            element(out, item)

    return write


def _nullable_struct(inner: Write) -> Write:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
            return
        out.append(1)
        inner(out, value)

    return write


def _field(plan: FieldPlan, flexible: bool) -> Write:
    if plan.struct is not None:
        write = compile_writer(plan.struct)
        if plan.nullable and not plan.is_array:
            return _nullable_struct(write)
    elif plan.kind in _FIXED:
        write = _FIXED[plan.kind]
    else:
        write = _sized(plan.kind, flexible, plan.nullable and not plan.is_array)
    return _array(write, flexible, plan.nullable) if plan.is_array else write


def compile_writer(plan: StructPlan) -> Callable[[bytearray, Mapping[str, Any]], None]:
    """A function that appends one message to a buffer."""
    steps = tuple((f.name, _field(f, plan.flexible), f.default) for f in plan.fields if f.tag is None)
    tagged = tuple(
        (tag, f.name, _field(f, plan.flexible), [] if f.is_array else f.default)
        for tag, f in sorted((f.tag, f) for f in plan.fields if f.tag is not None)
    )
    flexible = plan.flexible

    def write(out: bytearray, value: Mapping[str, Any]) -> None:
        get = value.get
        for name, step, default in steps:
            step(out, get(name, default))
        if flexible:
            if tagged:
                _write_tagged(out, value, tagged)
            else:
                out.append(0)

    return write


#: Tag, name, writer, default.
Tagged: TypeAlias = tuple[int, str, Write, Any]


def _write_tagged(out: bytearray, value: Mapping[str, Any], tagged: tuple[Tagged, ...]) -> None:
    present = [(t, n, step) for t, n, step, default in tagged if n in value and value[n] != default]
    write_uvarint(out, len(present))
    for tag, name, step in present:
        content = bytearray()
        step(content, value[name])
        write_uvarint(out, tag)
        write_uvarint(out, len(content))
        out += content
