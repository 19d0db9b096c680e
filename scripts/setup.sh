#!/usr/bin/env bash
# Sets up what `make demo` and `make test` need: a virtual environment with the project, its hot path compiled if there is a
# compiler (scripts/compile.py), and the system packages named as arguments (installed with apt when root; otherwise an error says what is missing).
# Packages after --optional are installed if possible, and only mentioned otherwise.
# Usage: scripts/setup.sh [command-or-file:package ...] [--optional command:package ...]
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
by_apt() {
    say "installing $* with apt"
    # apt-get update may fail for an unrelated source: continue. A failed install stops the script.
    apt-get update -qq || say "apt-get update failed; trying with the existing lists"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

python=${PYTHON:-python3}
command -v "$python" >/dev/null || die "python3 is missing; install Python 3.11 or newer"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$("$python" --version) is too old; Ottla needs Python 3.11 or newer (set PYTHON=/path/to/python3.11)"

missing=() wanted=() optional=
for pair in "$@"; do
    if [ "$pair" = --optional ]; then
        optional=yes
    elif ! command -v "${pair%%:*}" >/dev/null && [[ ! ${pair%%:*} = /* || ! -e ${pair%%:*} ]]; then
        if [ "$optional" ]; then wanted+=("${pair#*:}"); else missing+=("${pair#*:}"); fi
    fi
done
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if ((${#missing[@]})); then
    command -v apt-get >/dev/null || die "missing: ${missing[*]}; install them with this system's package manager"
    [ "$(id -u)" = 0 ] || die "missing: ${missing[*]}; run: sudo apt-get install ${missing[*]}"
    by_apt "${missing[@]}"
fi
if ((${#wanted[@]})); then
    { command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] && by_apt "${wanted[@]}"; } ||
        say "continuing without ${wanted[*]}: installing it needs apt and root"
fi

stamp=.venv/.ottla-installed
if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
    say "creating the virtual environment in .venv"
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    .venv/bin/python -m pip install --quiet --upgrade pip
    # The build needs no compiler of its own: compile.py below uses the one of this environment.
    OTTLA_PURE=1 .venv/bin/python -m pip install --quiet --editable '.[dev]'
    # For compiling; without them, everything runs as pure Python.
    tools=()
    command -v cc >/dev/null || tools+=(gcc libc6-dev)
    "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
        tools+=(python3-dev)
    if ((${#tools[@]})) && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then by_apt "${tools[@]}" || true; fi
    touch "$stamp"
fi
.venv/bin/python scripts/compile.py
