"""A broker with a planted fault: the disk takes nothing for topics named `doomed`."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence

from ottla_broker.__main__ import main
from ottla_core.ports.disk import Buffer
from ottla_core.real.disk import RealFile

_append = RealFile.append


def _fail(self: RealFile, buffers: Sequence[Buffer]) -> int:
    if "/doomed-" in self.path:
        raise OSError(errno.EIO, "planted", self.path)
    return _append(self, buffers)


if __name__ == "__main__":
    RealFile.append = _fail  # type: ignore[method-assign]
    sys.exit(main())
