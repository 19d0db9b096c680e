"""Decodes untrusted bytes to plain values by a schema plan. [P]

Every length and count is checked against what is left of the frame before anything is allocated, and the
number of array elements of one request is capped, because an element of one byte becomes an object of
hundreds. Unknown tagged fields are skipped, as the protocol asks. Whatever is wrong ends in `Malformed`,
never in another exception.

Used for all requests but Produce and Fetch, which have parsers of their own beside their handlers. Long requests are
read in slices: `compile_sliced_reader`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from struct import Struct
from struct import error as struct_error
from typing import Any, TypeAlias
from uuid import UUID

from ottla_broker.edge.kafka.schema import FieldPlan, StructPlan

#: Array elements in one request. The largest honest ones name each partition of a broker once; an element
#: costs up to 400 bytes and a microsecond or two, so the worst frame costs 30 MB and a tenth of a second.
ELEMENTS_MAX = 65_536
#: Kafka's names and configuration values are far shorter; longer text is never useful and always costs.
STRING_BYTES_MAX = 1 << 16
#: Array elements that are read in one slice; one costs a microsecond or two.
_ELEMENTS_PER_SLICE = 256


class Malformed(Exception):
    """The peer sent bytes that are no request. Costs the peer its connection."""


class Cursor:
    """A place in a frame, and how many array elements may still come, in the frame and in this slice."""

    __slots__ = ("at", "elements_left", "end", "slice_left", "view")

    def __init__(self, view: memoryview, at: int = 0) -> None:
        self.view = view
        self.at = at
        self.end = len(view)
        self.elements_left = ELEMENTS_MAX
        self.slice_left = _ELEMENTS_PER_SLICE

    def take(self, size: int) -> memoryview:
        start, after = self.at, self.at + size
        if size < 0 or after > self.end:
            raise Malformed(f"a length of {size} where {self.end - start} bytes are left")
        self.at = after
        return self.view[start:after]

    def uvarint(self) -> int:
        view, at = self.view, self.at
        if at >= self.end:
            raise Malformed("the frame ends within a number")
        value = view[at]
        if value < 0x80:
            self.at = at + 1
            return value
        value &= 0x7F
        for shift in (7, 14, 21, 28):
            at += 1
            if at >= self.end:
                raise Malformed("the frame ends within a number")
            byte = view[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > 0xFFFFFFFF:
                    break
                self.at = at + 1
                return value
        raise Malformed("a variable-length number is too long")

    def count(self, number: int) -> int:
        """Check an array's length: each element has at least one byte. A missing array (-1) is an empty one."""
        if number == -1:
            return 0
        if number < 0 or number > self.end - self.at or number > self.elements_left:
            raise Malformed(f"an array of {number} elements where {self.end - self.at} bytes are left")
        self.elements_left -= number
        return number

    def skip_tagged(self) -> None:
        """Skip a block of unknown tagged fields."""
        at = self.at
        if at < self.end and self.view[at] == 0:
            self.at = at + 1
            return
        number = self.uvarint()
        if number:
            for _ in range(self.count(number)):
                self.uvarint()
                self.take(self.uvarint())


Read: TypeAlias = Callable[[Cursor], Any]


def _fixed(form: str) -> Read:
    packed = Struct(form)
    size, unpack_from = packed.size, packed.unpack_from

    def read(cursor: Cursor) -> Any:
        at = cursor.at
        cursor.at = at + size
        return unpack_from(cursor.view, at)[0]

    return read


_INT16 = _fixed(">h")
_INT32 = _fixed(">i")


def _bool(cursor: Cursor) -> bool:
    return cursor.take(1)[0] != 0


def _uuid(cursor: Cursor) -> UUID:
    return UUID(bytes=bytes(cursor.take(16)))


_FIXED: dict[str, Read] = {
    "int8": _fixed(">b"),
    "int16": _INT16,
    "int32": _INT32,
    "int64": _fixed(">q"),
    "uint8": _fixed(">B"),
    "uint16": _fixed(">H"),
    "uint32": _fixed(">I"),
    "uint64": _fixed(">Q"),
    "float64": _fixed(">d"),
    "bool": _bool,
    "uuid": _uuid,
}


def _compact_length(cursor: Cursor) -> int:
    return cursor.uvarint() - 1


def _sized(kind: str, flexible: bool, nullable: bool) -> Read:
    """Strings and bytes; null is a length of -1, written as 0 where lengths are compact."""
    is_text = kind == "string"
    length_of: Read = _compact_length if flexible else (_INT16 if is_text else _INT32)

    def read(cursor: Cursor) -> Any:
        length = length_of(cursor)
        if length < 0:
            if length == -1 and nullable:
                return None
            raise Malformed(f"a length of {length}")
        if not is_text:
            return bytes(cursor.take(length))
        if length > STRING_BYTES_MAX:
            raise Malformed(f"a text of {length} bytes")
        return str(cursor.take(length), "utf-8")

    return read


def _array(element: Read, flexible: bool, nullable: bool) -> Read:
    length_of = _array_length(flexible, nullable)

    def read(cursor: Cursor) -> Any:
        length = length_of(cursor)
        return None if length is None else [element(cursor) for _ in range(length)]

    return read


def _array_length(flexible: bool, nullable: bool) -> Callable[[Cursor], int | None]:
    """None for a null array."""
    length_of: Read = _compact_length if flexible else _INT32

    def read(cursor: Cursor) -> int | None:
        length: int = length_of(cursor)
        if length < 0:
            if length == -1 and nullable:
                return None
            raise Malformed(f"an array of {length} elements")
        return cursor.count(length)

    return read


def _nullable_struct(inner: Read) -> Read:
    marker_of = _FIXED["int8"]

    def read(cursor: Cursor) -> Any:
        return None if marker_of(cursor) < 0 else inner(cursor)

    return read


def _field(plan: FieldPlan, flexible: bool) -> Read:
    read = _element(plan, flexible)
    return _array(read, flexible, plan.nullable) if plan.is_array else read


def _element(plan: FieldPlan, flexible: bool) -> Read:
    """The field itself, or one element if it is an array."""
    if plan.struct is not None:
        read = _struct(plan.struct)
        return _nullable_struct(read) if plan.nullable and not plan.is_array else read
    if plan.kind in _FIXED:
        return _FIXED[plan.kind]
    return _sized(plan.kind, flexible, plan.nullable and not plan.is_array)


def _struct(plan: StructPlan) -> Read:
    steps = tuple((f.name, _field(f, plan.flexible)) for f in plan.fields if f.tag is None)
    tagged = {f.tag: (f.name, _field(f, plan.flexible)) for f in plan.fields if f.tag is not None}
    absent = {f.name: f.default for f in plan.fields if f.tag is not None}
    flexible = plan.flexible

    def read(cursor: Cursor) -> dict[str, Any]:
        value = {name: step(cursor) for name, step in steps}
        if flexible:
            if absent:
                value.update(absent)
            number = cursor.uvarint()
            if number:
                _read_tagged(cursor, cursor.count(number), tagged, value)
        return value

    return read


def _read_tagged(
    cursor: Cursor, number: int, known: dict[int, tuple[str, Read]], value: dict[str, Any]
) -> None:
    for _ in range(number):
        tag, size = cursor.uvarint(), cursor.uvarint()
        content = cursor.take(size)
        if tag in known:
            name, step = known[tag]
            inner = Cursor(content)
            inner.elements_left = cursor.elements_left
            value[name] = step(inner)
            cursor.elements_left = inner.elements_left


def compile_reader(plan: StructPlan) -> Callable[[memoryview], dict[str, Any]]:
    """A function that reads one message. Bytes after its end are ignored, as Kafka's own reader does."""
    read = _struct(plan)

    def decode(view: memoryview) -> dict[str, Any]:
        try:
            value: dict[str, Any] = read(Cursor(view))
        except (struct_error, IndexError, UnicodeDecodeError) as error:
            raise Malformed(f"{plan.name}: {error}") from error
        return value

    return decode


# ---------------------------------------------------------------------- slices

SlicedRead: TypeAlias = Callable[[Cursor], Generator[None, None, Any]]


def _sliced_array(plan: FieldPlan, flexible: bool) -> SlicedRead:
    length_of = _array_length(flexible, plan.nullable)
    element = _element(plan, flexible)
    sliced = None if plan.struct is None else _sliced_struct(plan.struct)

    def read(cursor: Cursor) -> Generator[None, None, Any]:
        length = length_of(cursor)
        if length is None:
            return None
        found = []
        for _ in range(length):
            found.append(element(cursor) if sliced is None else (yield from sliced(cursor)))
            cursor.slice_left -= 1
            if cursor.slice_left <= 0:
                yield
                cursor.slice_left = _ELEMENTS_PER_SLICE
        return found

    return read


def _sliced_struct(plan: StructPlan) -> SlicedRead | None:
    """None if the struct has no arrays: it is read at once. The tagged fields of a struct are."""
    if not any(f.is_array and f.tag is None for f in plan.fields):
        return None
    steps = tuple(
        (f.name, _field(f, plan.flexible), _sliced_array(f, plan.flexible) if f.is_array else None)
        for f in plan.fields
        if f.tag is None
    )
    end = _struct(StructPlan(plan.name, plan.flexible, tuple(f for f in plan.fields if f.tag is not None)))

    def read(cursor: Cursor) -> Generator[None, None, dict[str, Any]]:
        value: dict[str, Any] = {}
        for name, step, sliced in steps:
            value[name] = step(cursor) if sliced is None else (yield from sliced(cursor))
        value.update(end(cursor))
        return value

    return read


def compile_sliced_reader(plan: StructPlan) -> Callable[[memoryview], Generator[None, None, dict[str, Any]]]:
    """A generator that reads one message, yields after each slice, and returns what `compile_reader` would."""
    sliced, at_once = _sliced_struct(plan), _struct(plan)

    def decode(view: memoryview) -> Generator[None, None, dict[str, Any]]:
        cursor = Cursor(view)
        try:
            value: dict[str, Any] = at_once(cursor) if sliced is None else (yield from sliced(cursor))
        except (struct_error, IndexError, UnicodeDecodeError) as error:
            raise Malformed(f"{plan.name}: {error}") from error
        return value

    return decode
