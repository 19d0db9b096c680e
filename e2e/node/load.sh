#!/usr/bin/env bash
# Gives the node the images of an archive. Usage: load.sh ARCHIVE
set -euo pipefail
. "$(dirname "$0")/settings.sh"
node_pid >/dev/null || die "there is none; \`make node\` brings one up"
ctr_inside images import "$1" >/dev/null
