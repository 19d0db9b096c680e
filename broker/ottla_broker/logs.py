"""The broker's own log: structured lines on one stream, JSON or console format, with a rate limit. [A]

Components take `structlog.get_logger("ottla.<component>")` at import and log what an operator would want to
know: starts, stops, changes of role, refused peers, failures. No component logs per request. Three guards stand
between them and the stream, because any client can provoke log lines:

* a level filter in front, so that a disabled `debug` costs one call that does nothing;
* `RepeatGuard`: the same event gets through a few times, then rarely, with the number left out in between;
* long values are cut, and line breaks cannot be smuggled in.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, TextIO

import structlog

LEVELS: Final[Mapping[str, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

#: One event may repeat this often before it is held back: enough to see a pattern begin.
BURST: Final = 20
#: Afterwards one line per event in this many seconds: 256 events at most make ~25 lines a second.
REPEAT_EVERY_S: Final = 10.0
#: Distinct events with their own allowance; the rest share one, so that memory stays bounded.
EVENTS_MAX: Final = 256
#: A client id or topic name of 32 KiB says no more than its beginning.
VALUE_CHARS_MAX: Final = 500

_SHARED: Final = ("", "")

#: The audit log limits itself (`service/audit.py`): no line of it is held back here.
AUDIT_LOGGER: Final = "ottla.audit"

Event = MutableMapping[str, Any]


class StreamLogger:
    """The output of structlog: one `write` per line, so that lines of two processes do not mix."""

    __slots__ = ("_stream", "name")

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self.name = name

    def msg(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            # The log cannot be written (closed pipe, full disk). A broker does not stop for that, and
            # there is nowhere left to say it.
            return

    debug = info = warning = error = critical = msg


class RepeatGuard:
    """A token bucket per event; drops excess lines and logs their number later."""

    __slots__ = ("_buckets", "_now")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        #: (logger, event) -> [tokens, time of the last change, lines left out]
        self._buckets: dict[tuple[str, str], list[float]] = {}

    def __call__(self, logger: Any, method: str, event: Event) -> Event:
        key = (getattr(logger, "name", ""), str(event.get("event"))[:VALUE_CHARS_MAX])
        if key[0] == AUDIT_LOGGER:
            return event
        now = self._now()
        bucket = self._buckets.pop(key, None) or self._new_bucket(now)
        if bucket is None:
            key = _SHARED
            bucket = self._buckets.pop(key, None) or [float(BURST), now, 0.0]
        self._buckets[key] = bucket  # last in the order of use
        bucket[0] = min(float(BURST), bucket[0] + (now - bucket[1]) / REPEAT_EVERY_S)
        bucket[1] = now
        if bucket[0] < 1.0:
            bucket[2] += 1
            raise structlog.DropEvent
        bucket[0] -= 1.0
        if bucket[2]:
            event["left_out"] = int(bucket[2])
            bucket[2] = 0.0
        return event

    def _new_bucket(self, now: float) -> list[float] | None:
        """None when all are taken by events that were seen lately."""
        if len(self._buckets) >= EVENTS_MAX:
            oldest = next(iter(self._buckets))
            if now - self._buckets[oldest][1] < REPEAT_EVERY_S * BURST:
                return None
            del self._buckets[oldest]
        return [float(BURST), now, 0.0]


def _add_name(logger: Any, method: str, event: Event) -> Event:
    event["logger"] = getattr(logger, "name", "ottla")
    return event


def _tame_values(logger: Any, method: str, event: Event) -> Event:
    for name, value in event.items():
        if isinstance(value, str) and name != "exception":
            if len(value) > VALUE_CHARS_MAX:
                value = value[:VALUE_CHARS_MAX] + "…"
            if not value.isprintable():
                value = value.encode("unicode_escape").decode()
            event[name] = value
    return event


def _json_line(logger: Any, method: str, event: Event) -> str:
    ordered = {name: event.pop(name) for name in ("timestamp", "level", "logger", "event") if name in event}
    return json.dumps({**ordered, **event}, default=str, separators=(",", ":"))


class _IntoStructlog(logging.Handler):
    """Libraries (asyncio, grpc) speak to the standard `logging`; this carries their lines over."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        exc_info = record.exc_info if record.exc_info and record.exc_info[0] else None
        log.log(record.levelno, record.getMessage(), **({"exc_info": exc_info} if exc_info else {}))


def configure(
    log_format: str,
    level: str,
    *,
    now: Callable[[], float],
    stream: TextIO | None = None,
    context: Mapping[str, object] | None = None,
) -> None:
    """Set the process's log up, once. `context` is bound to every line (the broker's id)."""
    out = sys.stderr if stream is None else stream
    bound = dict(context or {})

    def add_context(logger: Any, method: str, event: Event) -> Event:
        return {**bound, **event}

    renderer: list[Any]
    if log_format == "json":
        renderer = [structlog.processors.format_exc_info, _tame_values, _json_line]
    else:
        colors = out.isatty()
        renderer = [
            _tame_values,
            structlog.dev.ConsoleRenderer(
                colors=colors, exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
            ),
        ]
    structlog.configure(
        processors=[
            RepeatGuard(now),
            add_context,
            _add_name,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *names: StreamLogger(out, str(names[0]) if names else "ottla"),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _IntoStructlog)]:
        root.removeHandler(old)
    root.addHandler(_IntoStructlog())
    # Libraries' debug and info lines are about the library.
    root.setLevel(max(LEVELS[level], logging.WARNING))
