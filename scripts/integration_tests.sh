#!/usr/bin/env bash
# Runs the tests that start real processes. Tests that mostly wait for other processes run on two workers, a file at a
# time; tests that measure time, memory or the event loop follow with the machine to themselves. Tests that failed run
# once more and are listed at the end: real processes on a shared machine can miss a deadline. A test that needs the second
# run is a defect to fix (docs/roadmap.md), and one that fails again fails the run.
set -uo pipefail
cd "$(dirname "$0")/.."
waiting=(tests/cli tests/client tests/conformance tests/examples tests/interop tests/observe tests/operator_ tests/spark)
marked="integration or java"

.venv/bin/pytest -rs --durations=12 --cache-clear -n 2 --dist loadfile -m "$marked" "${waiting[@]}"
first=$?
.venv/bin/pytest -rs --durations=12 -m "$marked" "${waiting[@]/#/--ignore=}" tests
second=$?
# Everything but success and failed tests is final: interrupted, a usage error, no tests.
for code in $first $second; do ((code <= 1)) || exit "$code"; done
failed="" code=0
if ((first || second)); then
    failed=$(.venv/bin/python -c 'import json; print("\n".join(json.load(open(".pytest_cache/v/cache/lastfailed"))))')
    echo "==> a second run of the tests that failed"
    .venv/bin/pytest --last-failed --last-failed-no-failures none -m "$marked" tests
    code=$?
fi
# Also in a file, for the end of a longer run.
{
    echo "==> tests that needed a second run: $(grep -c . <<<"$failed")"
    [ -z "$failed" ] || sed 's/^/      /' <<<"$failed"
} | tee .second-run
exit $code
