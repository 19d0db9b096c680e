"""What `--decode` of `ottla consume` and of the Spark jobs asks for: `[key=]FORMAT[:FILE][#MESSAGE]`. [P]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Serializers with a schema registry write a zero byte and the 4-byte id of the schema first.
REGISTRY_HEADER_BYTES = 5
_REGISTRY = "-confluent"
_FORMATS = ("json", "avro", "protobuf")
_NAMES = ", ".join((*_FORMATS, *(f"{each}{_REGISTRY}" for each in _FORMATS)))


class SchemaProblem(ValueError):
    """A schema file, or a library for it, is missing or wrong; one sentence."""


@dataclass(frozen=True, slots=True)
class DecodeSpec:
    #: `key` or `value`.
    part: str
    #: `json`, `avro` or `protobuf`.
    format: str
    #: The schema file; empty: none.
    file: str
    #: The Protobuf message; empty: the only one of the file.
    message: str
    #: Whether the bytes begin with the header of serializers with a schema registry.
    registry: bool


def decode_specs(texts: Sequence[str]) -> list[DecodeSpec]:
    """ValueError with a sentence."""
    specs = [_spec(text) for text in texts]
    if len({each.part for each in specs}) < len(specs):
        raise ValueError("--decode may be given once for the value and once for the key (key=FORMAT:FILE).")
    return specs


def _spec(text: str) -> DecodeSpec:
    part, what = "value", text
    for name in ("key", "value"):
        if text.startswith(f"{name}="):
            part, what = name, text[len(name) + 1 :]
    name, _, file = what.partition(":")
    form = name.removesuffix(_REGISTRY)
    if form not in _FORMATS:
        raise ValueError(f"--decode takes FORMAT:FILE with one of {_NAMES}, not {text!r}.")
    message = ""
    if form == "protobuf" and "#" in file:
        file, _, message = file.rpartition("#")
    if not file and form != "json":
        example = "avro:order.avsc" if form == "avro" else "protobuf:order.proto#Order"
        raise ValueError(f"--decode {text} needs a schema file, for example {example}.")
    return DecodeSpec(part, form, file, message, name != form)


def unframed(data: bytes) -> bytes:
    """The bytes after the registry's header. ValueError if they do not begin with one."""
    if len(data) < REGISTRY_HEADER_BYTES or data[0] != 0:
        raise ValueError("it does not begin with the id of a schema (a zero byte and four more)")
    return data[REGISTRY_HEADER_BYTES:]


def has_header(data: bytes) -> bool:
    """Whether bytes look as if they began with the id of a schema: ids of registries are small."""
    return len(data) > REGISTRY_HEADER_BYTES and data[:2] == b"\0\0"


def message_indexes(data: bytes) -> tuple[list[int], bytes]:
    """Which message of a .proto file follows, as a path of indexes, and the bytes of the message. Serializers write
    the path after the header: zigzag varints, its length first; length 0 stands for the first message."""
    count, data = _zigzag(data)
    if not 0 <= count <= 32:
        raise ValueError("after the id of the schema there is no list of message indexes")
    path = []
    for _ in range(count):
        index, data = _zigzag(data)
        path.append(index)
    return path or [0], data


def _zigzag(data: bytes) -> tuple[int, bytes]:
    number = 0
    for at, byte in enumerate(data[:5]):
        number |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), data[at + 1 :]
    raise ValueError("after the id of the schema there is no list of message indexes")
