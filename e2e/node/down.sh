#!/usr/bin/env bash
# Ends the node with all its processes, and removes its state. Does nothing if there is no node.
set -euo pipefail
. "$(dirname "$0")/settings.sh"

if pid=$(node_pid); then
    kill -KILL "$pid"                           # process 1 of its pid namespace: the kernel ends the others with it
    for _ in $(seq 100); do [ -d "/proc/$pid" ] || break; sleep 0.1; done
fi
ip link delete node0h 2>/dev/null || true       # gone already, as a rule, with the network namespace
for _ in $(seq 20); do                          # a cgroup can be removed a moment after its last process
    left=
    for folder in $(cgroup_folders); do
        [ -d "$folder" ] || continue
        find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null || left=$folder
    done
    [ -n "$left" ] || break
    sleep 0.2
done
[ -z "$left" ] || die "processes are left in $left"
rm -rf "$var"
