"""Protobuf messages made from their descriptors, plausible ones and damaged ones: see `kafka_requests`."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from attack.kafka_requests import GROUPS, NAMES, TOPICS, WAIT_MS
from broker.edge.kafka_batches import batch

_DEPTH_MAX = 4
_SIGNED_32 = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_ENUM)
_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}


def request(kind: type[Message], chance: random.Random) -> tuple[bytes, bool]:
    """An encoded message, and whether its bytes were damaged: then it may ask for any time to wait."""
    made = kind()
    fill(made, chance)
    data = bytearray(made.SerializeToString())
    if chance.random() < 0.6 or not data:
        return bytes(data), False
    at = chance.randrange(len(data))
    way = chance.randrange(4)
    if way == 0:
        for _ in range(chance.choice((1, 1, 3, 10))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif way == 1:
        del data[at:]
    elif way == 2:
        data[at:at] = chance.choice((b"\xff" * 10, b"\x0a\xff\xff\xff\xff\x07", chance.randbytes(20)))
    else:
        data += chance.randbytes(20)
    return bytes(data), True


def fill(message: Any, chance: random.Random, depth: int = 0) -> None:
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.1:
            continue
        if field.message_type is not None and depth >= _DEPTH_MAX:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), field, chance)
        elif field.is_repeated:
            for _ in range(chance.choice((0, 1, 1, 2, 300 if chance.random() < 0.02 else 3))):
                if field.message_type is not None:
                    fill(getattr(message, field.name).add(), chance, depth + 1)
                else:
                    getattr(message, field.name).append(_scalar(field, chance))
        elif field.message_type is not None:
            held = getattr(message, field.name)
            held.SetInParent()
            fill(held, chance, depth + 1)
        else:
            setattr(message, field.name, _scalar(field, chance))


def _fill_map(held: Any, field: FieldDescriptor, chance: random.Random) -> None:
    assert field.message_type is not None
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    for _ in range(chance.choice((0, 1, 2))):
        if value.message_type is not None:
            fill(held[_scalar(key, chance)], chance, _DEPTH_MAX)
        else:
            held[_scalar(key, chance)] = _scalar(value, chance)


def _scalar(field: FieldDescriptor, chance: random.Random) -> Any:
    kind, name = field.cpp_type, field.name
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return _bytes(name, chance)
        if "topic" in name or name == "name":
            return chance.choice(TOPICS)
        if "group" in name:
            return chance.choice(GROUPS)
        return chance.choice((*NAMES, "", "x" * 5000))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return chance.random()
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        return chance.choice([value.number for value in field.enum_type.values])
    if "timeout" in name or "wait" in name:
        return chance.randrange(WAIT_MS)
    if name in ("partitions", "partition_count", "count"):
        return chance.choice((0, 1, 2, 3, 2**31 - 1))
    low, high = _BITS[kind]
    small = (0, 1, 2, 3, 7, 1000)
    return chance.choice((*small, *small, max(low, -1), low, high))


def _bytes(name: str, chance: random.Random) -> bytes:
    if name == "records":
        made = bytearray(batch(b"v"))
        if chance.random() < 0.5:
            made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
        return bytes(made)
    return chance.randbytes(chance.choice((0, 4, 16, 40)))
