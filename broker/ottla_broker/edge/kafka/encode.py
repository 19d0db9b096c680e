"""Plain values to bytes by a schema plan. [P]

An answer is a dict; what a version does not have is left out, what the dict lacks gets the schema's default.
So a handler fills in the union of all its versions once. Used for all answers but Produce, Fetch and
Metadata. Long answers are written in slices: `compile_sliced_writer`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from struct import Struct
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import UUID

from ottla_broker.edge.kafka.schema import FieldPlan, StructPlan

T = TypeVar("T")

Write: TypeAlias = Callable[[bytearray, Any], None]

#: Elements of arrays that are written in one slice. One costs 2 to 10 µs, with the making of what is `Lazy`.
_ELEMENTS_PER_SLICE = 64
#: Bytes after which a slice ends all the same: an element may carry a member's metadata.
_BYTES_PER_SLICE = 1 << 18


class Lazy(Generic[T]):
    """An array of an answer whose elements are made while it is written: in slices, and never all in memory. Whatever
    `make` uses may have changed since the request was handled."""

    __slots__ = ("_items", "_make", "cost")

    def __init__(self, make: Callable[[T], Any], items: Collection[T], *, cost: int = 1) -> None:
        """`cost` of making one, in elements that are merely written."""
        self._make = make
        self._items = items
        self.cost = cost

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, self._items)


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
        if _write_length(out, value, length, nullable):
            for item in value:
                element(out, item)

    return write


def _write_length(out: bytearray, value: Any, length: Write, nullable: bool) -> bool:
    """True if elements follow."""
    if value is None:
        if not nullable:
            raise TypeError("None where the schema allows no null")
        length(out, -1)
        return False
    length(out, len(value))
    return True


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


# ---------------------------------------------------------------------- slices


class SliceBudget:
    """What may still be written in this slice, over all nested arrays."""

    __slots__ = ("bytes_end", "elements")

    def __init__(self) -> None:
        self.elements = _ELEMENTS_PER_SLICE
        self.bytes_end = _BYTES_PER_SLICE

    def renew(self, size: int) -> None:
        self.elements = _ELEMENTS_PER_SLICE
        self.bytes_end = size + _BYTES_PER_SLICE


SlicedWrite: TypeAlias = Callable[[bytearray, Any, SliceBudget], Generator[None, None, None]]


def compile_sliced_writer(plan: StructPlan) -> SlicedWrite | None:
    """A generator that appends one message to a buffer, and yields after each slice. None if the message has no arrays
    of structs: it is written at once."""
    if not any(f.struct is not None and f.is_array for f in plan.fields):
        return None
    steps = tuple(
        (f.name, _field(f, plan.flexible), _sliced_array(f, plan.flexible), f.default)
        for f in plan.fields
        if f.tag is None
    )
    end = compile_writer(
        StructPlan(plan.name, plan.flexible, tuple(f for f in plan.fields if f.tag is not None))
    )

    def write(out: bytearray, value: Mapping[str, Any], left: SliceBudget) -> Generator[None, None, None]:
        get = value.get
        for name, step, sliced, default in steps:
            if sliced is None:
                step(out, get(name, default))
            else:
                yield from sliced(out, get(name, default), left)
        end(out, value)

    return write


def _sliced_array(plan: FieldPlan, flexible: bool) -> SlicedWrite | None:
    if plan.struct is None or not plan.is_array:
        return None
    length: Write = _compact_length if flexible else _INT32
    element, sliced, nullable = compile_writer(plan.struct), compile_sliced_writer(plan.struct), plan.nullable

    def write(out: bytearray, value: Any, left: SliceBudget) -> Generator[None, None, None]:
        if not _write_length(out, value, length, nullable):
            return
        cost = value.cost if type(value) is Lazy else 1
        for item in value:
            if sliced is None:
                element(out, item)
            else:
                yield from sliced(out, item, left)
            left.elements -= cost
            if left.elements <= 0 or len(out) >= left.bytes_end:
                yield
                left.renew(len(out))

    return write
