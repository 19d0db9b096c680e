"""A broker with a planted bug: whoever asks for an offset meets a promise that does not hold."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from ottla_broker.__main__ import main
from ottla_broker.service.records import RecordService
from ottla_core.errors import InvariantViolation

PROMISE = "the high watermark never goes back"


def _break(self: RecordService, *_: Any, **__: Any) -> NoReturn:
    raise InvariantViolation(PROMISE)


if __name__ == "__main__":
    RecordService.list_offset = _break  # type: ignore[method-assign]
    sys.exit(main())
