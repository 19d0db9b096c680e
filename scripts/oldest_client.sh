#!/bin/bash
# Installs the client's wheel with the oldest libraries that pyproject.toml allows, and runs an example with it against
# a broker of this checkout. Needs PyPI; `make oldest-client`.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'kill "${broker:-}" 2> /dev/null || true; wait; rm -rf "$folder"' EXIT
PYTHONPATH=scripts .venv/bin/python -c "import sys, pathlib, release; release.wheels(pathlib.Path(sys.argv[1]))" "$folder" > /dev/null
python3 -m venv "$folder/venv" 2> /dev/null || .venv/bin/python -m venv "$folder/venv"
# The lower bound of each dependency, as a constraint.
.venv/bin/python - > "$folder/oldest.txt" << 'END'
import re, tomllib
for each in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]:
    name, oldest = re.match(r"([\w-]+)>=([\d.]+)", each).groups()
    print(f"{name}=={oldest}.*" if oldest.count(".") < 2 else f"{name}=={oldest}")
END
cat "$folder/oldest.txt"
# The client of this checkout, whatever PyPI has; then what it needs.
"$folder/venv/bin/pip" install --quiet --no-index --no-deps --find-links "$folder" ottla-client
"$folder/venv/bin/pip" install --quiet --constraint "$folder/oldest.txt" ottla-client
.venv/bin/python - > "$folder/address" << 'END' &
import signal
from ottla_cli.local_cluster import LocalCluster
with LocalCluster() as cluster:
    print(cluster.grpc_bootstrap, flush=True)
    signal.sigwait([signal.SIGTERM])
END
broker=$!
for _ in $(seq 200); do [ -s "$folder/address" ] && break; sleep 0.1; done
"$folder/venv/bin/python" examples/blocking_script.py "$(cat "$folder/address")"
"$folder/venv/bin/python" examples/typed_records.py "$(cat "$folder/address")" typed
"$folder/venv/bin/pip" list 2> /dev/null | grep -E "^(ottla|grpcio|protobuf|aiokafka|cramjam|crc32c)"
