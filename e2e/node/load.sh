#!/usr/bin/env bash
# Loads the images of an archive into the node. Usage: load.sh ARCHIVE
set -euo pipefail
. "$(dirname "$0")/settings.sh"
node_pid >/dev/null || die "there is no node; \`make node\` starts one"
ctr_inside images import "$1" >/dev/null
