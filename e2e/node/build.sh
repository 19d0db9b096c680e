#!/usr/bin/env bash
# Builds the programs of the node into its cache, once: what has been built from the same sources is left alone.
# The multi-call binary takes 14 minutes of CPU time; the rest takes one.
set -euo pipefail
. "$(dirname "$0")/settings.sh"

kubernetes=v1.34.4
provisioner=v0.0.30
go_needed=1.24
# What the Go module proxy serves as a module, to machines whose Go is missing or too old.
toolchain=v0.0.1-go1.24.9.linux-amd64
toolchain_sha256=2a683c9c1d65a0e221519c21850a3ed5fe5ff287d39d74e35e4af7ceb9e333b2

go_is_new_enough() {
    command -v go >/dev/null &&
        printf 'go%s\n%s\n' $go_needed "$(GOTOOLCHAIN=local go env GOVERSION)" | sort --check=quiet --version-sort
}

fetch_go() {
    local proxy=${GOPROXY:-https://proxy.golang.org} zip=$home/toolchain.zip
    [ "$(uname -m)" = x86_64 ] || die "Go $go_needed or newer is missing; install it (go.dev/dl)"
    if [ ! -x "$home/go/bin/go" ]; then
        say "Go $go_needed or newer is missing: fetching it from the module proxy"
        curl --fail --silent --show-error --location --max-time 600 --output "$zip" \
            "${proxy%%,*}/golang.org/toolchain/@v/$toolchain.zip"
        echo "$toolchain_sha256  $zip" | sha256sum --check --quiet || die "the Go toolchain is not the expected one"
        rm -rf "$home/go" "$home/go.part"
        python3 -m zipfile --extract "$zip" "$home/go.part"
        mv "$home/go.part/golang.org/toolchain@$toolchain" "$home/go"
        chmod +x "$home"/go/bin/* "$home"/go/pkg/tool/*/*     # zip files of modules carry no modes
        rm -rf "$zip" "$home/go.part"
    fi
    PATH=$home/go/bin:$PATH
}

# current NAME SOURCE...: is bin/NAME made from exactly these files and this script?
current() {
    local name=$1; shift
    key=$(find "$here/build.sh" "$@" -type f -print0 | sort --zero-terminated | xargs -0 cat | sha256sum)
    [ -x "$bin/$name" ] && [ "$(cat "$bin/$name.key" 2>/dev/null)" = "$key" ]
}
built() { mv "$bin/$1.part" "$bin/$1"; echo "$key" > "$bin/$1.key"; say "$1 is built"; }
# One line per 200 packages, so that ten minutes are not ten minutes of silence.
progress() { awk -v name="$1" '/^go: downloading/ {next} /[^a-zA-Z0-9_.\/~-]/ {print; next} ++n % 200 == 0 {
    "date +%T" | getline now; close("date +%T"); print now "  node: " name ": " n " packages compiled"; fflush() }'; }

# compile NAME FOLDER PACKAGE [ldflags]
compile() {
    (cd "$2" && nice -n 5 go build -v -p "${BUILD_JOBS:-$(nproc)}" -trimpath -ldflags "-s -w ${4-}" -o "$bin/$1.part" "$3") 2>&1 | progress "$1"
    built "$1"
}

mkdir -p "$bin"
export CGO_ENABLED=0 GOFLAGS="-buildvcs=false -mod=mod" GOTOOLCHAIN=local
go_is_new_enough || fetch_go

if ! current hyperkube "$here/hyperkube" "$here/go.mod" "$here/go.sum"; then
    say "compiling Kubernetes $kubernetes and etcd into one binary (once; about ten minutes on two cores)"
    flags=
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do   # else it calls itself v0.0.0
        flags+=" -X $package.gitVersion=$kubernetes -X $package.gitMajor=1 -X $package.gitMinor=34 -X $package.gitTreeState=clean"
    done
    compile hyperkube "$here" ./hyperkube "$flags"
fi
current coredns "$here/dns" || compile coredns "$here/dns" .
current pause "$here/pause" || compile pause "$here" ./pause
if ! current local-path-provisioner; then
    GOBIN=$home/gobin go install -trimpath -ldflags "-s -w" "github.com/rancher/local-path-provisioner@$provisioner" \
        2>&1 | progress local-path-provisioner
    mv "$home/gobin/local-path-provisioner" "$bin/local-path-provisioner.part"; rmdir "$home/gobin"
    built local-path-provisioner
fi
for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
    ln -sf hyperkube "$bin/$name"
done
