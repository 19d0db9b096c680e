"""Metric families as Prometheus' text format, version 0.0.4. [P]

Forty lines instead of `prometheus_client`, whose import costs a broker 50 ms of start-up and 5 MB
for the same text; the tests read it back with that library's parser.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla_broker.exposed import Family
from ottla_broker.steps import Slice, Steps, exhaust

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Written in one slice: a line costs about a microsecond.
LINES_PER_STEP = 256


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(value)


def write_text(families: Iterable[Family]) -> str:
    return exhaust(text_steps(families)).decode()


def text_steps(families: Iterable[Family | None]) -> Steps[bytes]:
    """The page in slices. A None among the families is a pause in what makes them."""
    page = bytearray()
    lines: list[str] = []
    written = Slice(LINES_PER_STEP)
    for family in families:
        if family is None:
            yield None
            continue
        name, kind, doc, samples = family
        lines.append(f"# HELP {name} {_escaped(doc)}")
        lines.append(f"# TYPE {name} {kind}")
        for suffix, labels, value in samples:
            inside = ",".join(
                f'{key}="{_escaped(text).replace(chr(34), chr(92) + chr(34))}"' for key, text in labels
            )
            lines.append(
                f"{name}{suffix}{{{inside}}} {_number(value)}"
                if inside
                else f"{name}{suffix} {_number(value)}"
            )
            if written.over():
                _move(lines, page)
                yield None
    _move(lines, page)
    return bytes(page)


def _move(lines: list[str], page: bytearray) -> None:
    """Encoded slice by slice, because the whole text at once takes milliseconds."""
    lines.append("")
    page += "\n".join(lines).encode()
    lines.clear()
