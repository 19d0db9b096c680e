"""A broker with two log folders, each of which fails while a file `<folder>.failed` is beside it."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from ottla_broker.__main__ import main
from ottla_core.ports.disk import Buffer
from ottla_core.real.disk import RealFile

_FLAG = "log.dirs="
_append = RealFile.append


def folders_of(log_dir: str) -> tuple[str, str]:
    return f"{log_dir}/first", f"{log_dir}/second"


def _append_or_fail(self: RealFile, buffers: Sequence[Buffer]) -> int:
    # <folder>/<partition>/<file>
    folder = os.path.dirname(os.path.dirname(self.path))
    if os.path.exists(f"{folder}.failed"):
        raise OSError(errno.EIO, "planted", self.path)
    return _append(self, buffers)


if __name__ == "__main__":
    RealFile.append = _append_or_fail  # type: ignore[method-assign]
    for at, argument in enumerate(sys.argv):
        if argument.startswith(_FLAG):
            sys.argv[at] = _FLAG + ",".join(folders_of(argument.removeprefix(_FLAG)))
    sys.exit(main())
