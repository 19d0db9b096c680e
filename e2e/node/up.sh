#!/usr/bin/env bash
# Starts a new node, after removing an old one: about 15 seconds until pods, DNS and volumes work.
# Usage: up.sh ARCHIVE   (OCI archive of the node's own images)
set -euo pipefail
. "$(dirname "$0")/settings.sh"
[ "$(id -u)" = 0 ] || die "a local node needs root; name a cluster with E2E_CONTEXT, or install Docker and kind"

"$here/down.sh"
mkdir -p "$var"
"$here/pki.sh"
"$here/config.sh"
cgroup_make

setsid nohup unshare --mount --net --pid --uts --ipc --fork --mount-proc --propagation private \
    "$here/init.sh" </dev/null >"$var/init.out" 2>&1 &
outer=$!
for _ in $(seq 600); do
    [ -e "$var/init.ready" ] && break
    kill -0 $outer 2>/dev/null || break
    sleep 0.05
done
[ -e "$var/init.ready" ] || die "the node does not start: $(tail -3 "$var/init.out")"
pgrep --parent $outer > "$var/node.pid"
pid=$(node_pid)

ip link add node0h type veth peer name node0 netns "$pid"
ip address add $machine_ip/30 dev node0h
ip link set node0h up
nsenter --target "$pid" --net ip address add $node_ip/30 dev node0
nsenter --target "$pid" --net ip link set node0 up
nsenter --target "$pid" --net ip route add default via $machine_ip
ip route replace $pod_cidr via $node_ip          # programs of this machine reach pods and services as well
ip route replace $service_cidr via $node_ip

# wait_for SECONDS WHAT COMMAND...
wait_for() {
    local deadline=$((SECONDS + $1)) what=$2; shift 2
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || die "no $what in time; see $var/log"
        sleep 0.2
    done
}
kubectl() { "$bin/kubectl" "$@"; }
is_ready() { kubectl wait --for=condition=Ready --timeout=1s node/$node; }

wait_for 60 containerd ctr_inside version
ctr_inside images import "$1" >/dev/null
wait_for 180 "API server" kubectl get --raw /readyz
wait_for 180 "Ready node" is_ready
wait_for 60 "service account" kubectl get serviceaccount default
for manifest in "$here"/manifests/*.yaml; do
    sed "s|@VOLUMES@|$var/volumes|; s|@DNS@|$dns_ip|" "$manifest" | kubectl apply --server-side -f - >/dev/null
done
kubectl --namespace kube-system wait --for=condition=Available --timeout=180s deployment --all >/dev/null
say "Kubernetes $(kubectl version -o json | sed -n 's/.*"gitVersion": "\(.*\)".*/\1/p' | tail -1) is up"
