"""Makes the generated protobuf and gRPC code run with older libraries than those that generated it. Run by `make gen`.

Generated code refuses libraries that are older than the generator, though it uses nothing that they lack, except two
arguments of gRPC: `_registered_method` and `add_registered_method_handlers`, which gRPC's asyncio API ignores. The
checks and both arguments are removed. `scripts/oldest_client.sh` tries the oldest libraries of pyproject.toml.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_RULES = [
    # protobuf: `_runtime_version` is not imported and not asked.
    (r"^from google\.protobuf import runtime_version as _runtime_version\n", ""),
    (r"^_runtime_version\.ValidateProtobufRuntimeVersion\(\n(?:    .*\n)+\)\n", ""),
    # gRPC: the block from the version to the error, and what only newer versions accept.
    (r"^GRPC_GENERATED_VERSION = .*\n(?:.*\n)*?    \)\n", ""),
    (r"^import warnings\n", ""),
    (r",\n +_registered_method=True\)", ")"),
    (r",\n +_registered_method=True\n", ",\n"),
    (r"^ +_registered_method=True,?\n", ""),
    (r"^    server\.add_registered_method_handlers\(.*\)\n", ""),
]


def portable(text: str) -> str:
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def main() -> None:
    for path in Path(sys.argv[1]).glob("*_pb2*.py"):
        path.write_text(portable(path.read_text()))


if __name__ == "__main__":
    main()
