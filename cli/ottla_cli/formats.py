r"""How a record looks on standard output: a named format, or a template like kcat's. [P]

A format is a function from a record to the bytes to write, built once and called per record. JSON is one
object per line, in the form that `produce --format json` reads: text stays text, bytes that are not UTF-8 become
base64 in a field named `…_base64`, null is null.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

from ottla_cli.quantities import show_time
from ottla_client.json_text import JsonText, json_line
from ottla_client.record import ConsumerRecord, Headers

Formatter = Callable[[ConsumerRecord], bytes]

NAMES = ("value", "key-value", "json", "hex")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(rb"%(.)", re.DOTALL)


def unescape(text: str) -> bytes:
    r"""Bytes of an argument with the escapes `\n`, `\t`, `\r`, `\0`, `\xFF`; ValueError for any other escape."""
    made, position = b"", 0
    for found in _ESCAPE.finditer(text):
        made += as_given(text[position : found.start()])
        code = found[1]
        if code not in _ESCAPES and len(code) != 3:
            raise ValueError(f"\\{code} in {text!r} is not an escape; write \\n \\r \\t \\0 \\\\ and \\xFF.")
        made += bytes([int(code[1:], 16)]) if len(code) == 3 else _ESCAPES[code]
        position = found.end()
    return made + as_given(text[position:])


def as_given(argument: str) -> bytes:
    """The bytes of a command-line argument, even if they are not UTF-8."""
    return argument.encode(errors="surrogateescape")


def formatter(name: str, *, key_separator: bytes = b"\t", null: bytes = b"") -> Formatter:
    """The function for a format name, or for a template if it contains a `%`. ValueError with a sentence."""
    if "%" in name:
        return template(name, null)
    if name == "value":
        return lambda record: (null if record.value is None else record.value) + b"\n"
    if name == "key-value":
        return lambda record: b"".join((_or(record.key, null), key_separator, _or(record.value, null), b"\n"))
    if name == "json":
        return as_json_line
    if name == "hex":
        return _hex
    raise ValueError(
        f"There is no format {name!r}; choose {', '.join(NAMES)}, or a template such as '%p %o %k %v\\n'."
    )


def _or(data: bytes | None, null: bytes) -> bytes:
    return null if data is None else data


# --- JSON ---


def json_fields(name: str, data: bytes | None) -> dict[str, Any]:
    """`{"value": "text"}`, or `{"value_base64": "…"}` for bytes that are not UTF-8; decoded data is JSON itself."""
    if data is None:
        return {name: None}
    if isinstance(data, JsonText):
        return {name: data.parsed()}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def as_json(record: ConsumerRecord) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "timestamp_type": "append" if record.timestamp_type else "create",
        **json_fields("key", record.key),
        **json_fields("value", record.value),
        "headers": [{"key": name, **json_fields("value", value)} for name, value in record.headers],
    }


def as_json_line(record: ConsumerRecord) -> bytes:
    return json_line(as_json(record)) + b"\n"


# --- templates ---

_TOKENS: dict[str, tuple[str, Callable[[ConsumerRecord, bytes], bytes]]] = {
    "t": ("topic", lambda r, null: r.topic.encode()),
    "p": ("partition", lambda r, null: b"%d" % r.partition),
    "o": ("offset", lambda r, null: b"%d" % r.offset),
    "k": ("key", lambda r, null: _or(r.key, null)),
    "K": ("size of the key, -1 if null", lambda r, null: _size(r.key)),
    "v": ("value", lambda r, null: _or(r.value, null)),
    "s": ("value, as kcat calls it", lambda r, null: _or(r.value, null)),
    "V": ("size of the value, -1 if null", lambda r, null: _size(r.value)),
    "S": ("size of the value, as kcat calls it", lambda r, null: _size(r.value)),
    "T": ("timestamp in ms", lambda r, null: b"%d" % r.timestamp_ms),
    "d": ("timestamp as ISO", lambda r, null: show_time(r.timestamp_ms).encode()),
    "h": ("headers, a=1,b=2", lambda r, null: show_headers(r.headers, null)),
    "%": ("a percent sign", lambda r, null: b"%"),
}

TEMPLATE_HELP = ", ".join(f"%{token} {what}" for token, (what, _) in _TOKENS.items())


def template(text: str, null: bytes = b"") -> Formatter:
    """kcat's `-f`. No newline is added: a line ends only where the template has `\\n`."""
    pieces: list[bytes | Callable[[ConsumerRecord, bytes], bytes]] = []
    plain, position = unescape(text), 0
    for found in _TOKEN.finditer(plain):
        name = found[1].decode(errors="replace")
        if name not in _TOKENS:
            raise ValueError(f"%{name} in the template is not a token; choose from: {TEMPLATE_HELP}.")
        pieces += [plain[position : found.start()], _TOKENS[name][1]]
        position = found.end()
    if plain[position:].endswith(b"%"):
        raise ValueError("The template ends with an incomplete token; write %% for a percent sign.")
    pieces.append(plain[position:])

    def fill(record: ConsumerRecord) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(record, null) for piece in pieces)

    return fill


def show_headers(headers: Headers, null: bytes = b"") -> bytes:
    return b",".join(b"%s=%s" % (name.encode(), _or(value, null)) for name, value in headers)


def _size(data: bytes | None) -> bytes:
    return b"%d" % (-1 if data is None else len(data))


# --- hex ---


def _hex(record: ConsumerRecord) -> bytes:
    """A line with topic, partition, offset and time, then key and value like `hexdump -C`."""
    lines = [f"{record.topic}-{record.partition} offset {record.offset} {show_time(record.timestamp_ms)}"]
    parts = [("key", record.key), ("value", record.value)]
    parts += [(f"header {name}", value) for name, value in record.headers]
    for name, data in parts:
        lines.append(f"  {name}: null" if data is None else f"  {name}: {len(data)} bytes")
        lines += [f"    {line}" for line in hex_dump(data or b"")]
    return "\n".join(lines).encode() + b"\n"


def hex_dump(data: bytes) -> list[str]:
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        halves = " ".join(f"{byte:02x}" for byte in row[:8]), " ".join(f"{byte:02x}" for byte in row[8:])
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {halves[0]:23}  {halves[1]:23}  |{text}|")
    return lines
