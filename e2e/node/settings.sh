# Names and addresses of the node, in one place. Sourced by the other scripts; e2e/ottla_e2e/places.py uses it too.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# What is built and what runs, never inside a checkout: bin, var (state, gone when the node is down), images.
home=${OTTLA_NODE_HOME:-$HOME/.cache/ottla-node}
bin=$home/bin var=$home/var etc=$home/var/etc

node=ottla
node_ip=10.99.0.2 machine_ip=10.99.0.1          # the two ends of the veth pair between node and machine
pod_cidr=10.245.0.0/24
service_cidr=10.97.0.0/16 api_ip=10.97.0.1 dns_ip=10.97.0.10
containerd_socket=/run/containerd/containerd.sock   # in the node's own /run

. "$here/cgroups.sh"
export KUBECONFIG=$etc/admin.kubeconfig
say() { printf '%s  node: %s\n' "$(date +%T)" "$*"; }
die() { printf 'node: %s\n' "$*" >&2; exit 1; }

# The pid of the node's init, if it runs: another process may have reused the number. The node may be of another checkout.
node_pid() {
    local pid
    pid=$(cat "$var/node.pid" 2>/dev/null) || return 1
    grep -qz "/e2e/node/init.sh$" "/proc/$pid/cmdline" 2>/dev/null && echo "$pid"
}
inside() { nsenter --target "$(node_pid)" --mount --net --pid "$@"; }
ctr_inside() { inside ctr --address $containerd_socket --namespace k8s.io "$@"; }
