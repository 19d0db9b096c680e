"""The operator's log: events with fields, through the handlers that kopf configures for itself. [A]

Components take `structlog.get_logger("ottla.<component>")` at import. An event is one short sentence; values are
fields, never inside the text. With JSON each field is a key of the line; in text they follow the event as `key=value`.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import kopf
import structlog


def configure(*, as_json: bool) -> None:
    kopf.configure(log_format=kopf.LogFormat.JSON if as_json else kopf.LogFormat.FULL)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.render_to_log_kwargs if as_json else _one_line,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _one_line(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> tuple[Any, ...]:
    """Arguments of a logging call whose message has the fields in it. A value may contain a percent sign."""
    passed = {key: event.pop(key) for key in ("exc_info", "stack_info", "stacklevel") if key in event}
    text = event.pop("event")
    return ("%s", text + "".join(f" {key}={value!r}" for key, value in event.items())), passed
