"""Requests made from the message schemas: plausible ones, and the same with something wrong in them.

Names, partitions and groups are mostly ones that exist, so that a request gets past the first check. Times to wait are
short. What is wrong is one of: a field with an extreme value, an array repeated, emptied or absent, and bytes that are
flipped, cut, inserted or replaced by the largest counts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any
from uuid import UUID

from broker.edge.kafka_batches import batch
from ottla_broker.edge.kafka import schema
from ottla_broker.edge.kafka.encode import compile_writer
from ottla_broker.edge.kafka.schema import FieldPlan, StructPlan
from ottla_broker.edge.kafka.versions import Api

TOPICS = ("fuzz-0", "fuzz-1", "fuzz-2", "__consumer_offsets", "no-such-topic", "", "a/b", ".", "x" * 250)
GROUPS = ("g0", "g1", "g2", "", "x" * 300)
NAMES = ("range", "consumer", "retention.ms", "cleanup.policy", "segment.bytes", "0", "")
_RANGES = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
#: The longest time that a request may ask the broker to wait.
WAIT_MS = 50
_MAXIMAL = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x7f\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 5,
    b"\x80",
)


@cache
def _writer(api: Api, version: int) -> tuple[StructPlan, Callable[[bytearray, Any], None]]:
    plan = schema.load(api, version, "request")
    return plan, compile_writer(plan)


def body(api: Api, version: int, chance: random.Random) -> tuple[bytes, bool]:
    """A request's body, and whether its bytes were damaged: then it may ask for any time to wait."""
    plan, write = _writer(api, version)
    value = _struct(plan, chance)
    kind = chance.random()
    if kind < 0.35:
        for _ in range(chance.choice((1, 1, 2, 4))):
            _spoil(plan, value, chance)
    out = bytearray()
    write(out, value)
    if kind < 0.55 or not out:
        return bytes(out), False
    return _damage(out, chance), True


def _struct(plan: StructPlan, chance: random.Random) -> dict[str, Any]:
    return {field.name: _value(field, chance) for field in plan.fields}


def _value(field: FieldPlan, chance: random.Random) -> Any:
    if field.nullable and chance.random() < 0.15:
        return None
    if field.is_array:
        return [_one(field, chance) for _ in range(chance.choice((0, 1, 1, 1, 2, 3)))]
    return _one(field, chance)


def _one(field: FieldPlan, chance: random.Random) -> Any:
    kind, name = field.kind, field.name
    if field.struct is not None:
        return _struct(field.struct, chance)
    if kind == "string":
        return _text(name, chance)
    if kind == "records":
        return _records(chance)
    if kind == "bytes":
        return chance.randbytes(chance.choice((0, 4, 40)))
    if kind == "uuid":
        return UUID(int=chance.choice((0, 1, chance.getrandbits(128))))
    if kind == "bool":
        return chance.random() < 0.5
    if kind == "float64":
        return chance.random()
    return _number(name, chance)


def _text(name: str, chance: random.Random) -> str:
    if "topic" in name or name == "name":
        return chance.choice(TOPICS)
    if "group" in name or name in ("key", "coordinator_keys"):
        return chance.choice(GROUPS)
    if "member" in name:
        return chance.choice(("", "", "m1", "x" * 100))
    return chance.choice((*NAMES, "é" * chance.randrange(20)))


def _number(name: str, chance: random.Random) -> int:
    if "timeout" in name or "wait" in name:
        return chance.randrange(WAIT_MS)
    if "partition" in name and "count" not in name and "num" not in name:
        return chance.choice((0, 0, 1, 2, 3, 7, -1))
    if name in ("num_partitions", "count"):
        return chance.choice((-1, 0, 1, 2, 3, 2**31 - 1))
    if name == "replication_factor":
        return chance.choice((-1, 0, 1, 1, 3))
    if name == "acks":
        return chance.choice((-1, 1, 1, 0))
    if "epoch" in name or "offset" in name or "timestamp" in name:
        return chance.choice((-2, -1, -1, 0, 0, 1, 5, 100))
    if "bytes" in name:
        return chance.choice((0, 1, 1000, 1 << 20))
    return chance.randrange(0, 40)


def _records(chance: random.Random) -> bytes:
    made = bytearray(batch(*(b"v%d" % n for n in range(chance.choice((1, 1, 3))))))
    kind = chance.random()
    if kind < 0.4:
        made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
    elif kind < 0.5:
        del made[chance.randrange(len(made)) :]
    elif kind < 0.6:
        made += bytes(made)
    return bytes(made)


def _spoil(plan: StructPlan, value: dict[str, Any], chance: random.Random) -> None:
    """One field of it, or of something in it, becomes extreme."""
    if not plan.fields:
        return
    field = chance.choice(plan.fields)
    held = value[field.name]
    inner = [held] if field.struct and isinstance(held, dict) else held if field.struct else None
    if field.struct and inner and chance.random() < 0.7:
        _spoil(field.struct, chance.choice(inner), chance)
    elif field.is_array:
        many = chance.choice((0, 2, 50, 1000))
        value[field.name] = None if field.nullable and not many else [_one(field, chance)] * many
    elif field.kind == "string":
        value[field.name] = chance.choice(("x" * 30_000, "\0", "../..", "é" * 5000, "", "%s%n", "\u202e"))
    elif field.kind in _RANGES:
        value[field.name] = _extreme(field, chance)


def _extreme(field: FieldPlan, chance: random.Random) -> int:
    bits = _RANGES[field.kind]
    if "timeout" in field.name or "wait" in field.name:
        return chance.choice((-1, -(1 << bits), 0))
    return chance.choice((-1, -(1 << bits), (1 << bits) - 1, 0, -2))


def _damage(out: bytearray, chance: random.Random) -> bytes:
    at = chance.randrange(len(out))
    kind = chance.randrange(5)
    if kind == 0:
        for _ in range(chance.choice((1, 1, 1, 3, 10))):
            out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)
    elif kind == 1:
        del out[at:]
    elif kind == 2:
        largest = chance.choice(_MAXIMAL)
        out[at : at + len(largest)] = largest
    elif kind == 3:
        out[at:at] = chance.randbytes(chance.choice((1, 4, 200)))
    else:
        out += chance.randbytes(chance.choice((1, 4, 200)))
    return bytes(out)
