#!/usr/bin/env bash
# Pushes the images of an archive to the registry that their names begin with. Usage: push.sh ARCHIVE
# Needs skopeo, logged in if the registry requires it (`skopeo login`).
set -euo pipefail
command -v skopeo >/dev/null || { echo "push: skopeo is missing; install it (apt-get install skopeo)" >&2; exit 1; }

tar --extract --to-stdout --file "$1" manifest.json |
    python3 -c 'import json, sys; print(*(name for each in json.load(sys.stdin) for name in each["RepoTags"]), sep="\n")' |
    while read -r name; do
        echo "pushing $name"
        skopeo copy --quiet "docker-archive:$1:$name" "docker://$name"
    done
