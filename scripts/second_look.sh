#!/usr/bin/env bash
# Runs the integration tests that failed once more, by themselves, and lists them at the end of the run. Real processes on
# a shared machine can miss a deadline; a test that needs a second look is a defect to fix (docs/roadmap.md), and one that
# fails again stops everything.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=$(.venv/bin/python -c 'import json; print("\n".join(json.load(open(".pytest_cache/v/cache/lastfailed"))))')
echo "==> a second look at what failed"
.venv/bin/pytest --last-failed --last-failed-no-failures none -m "integration or java" tests
code=$?
echo "==> tests that needed a second look: $(grep -c . <<<"$failed")"
sed 's/^/      /' <<<"$failed"
exit $code
