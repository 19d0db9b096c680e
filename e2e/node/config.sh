#!/usr/bin/env bash
# Configuration files of containerd, its network, kubelet and kube-proxy.
set -euo pipefail
. "$(dirname "$0")/settings.sh"
mkdir -p "$etc/cni"

# Without CAP_SYS_RESOURCE, which containers of a CI rarely have, oom_score_adj cannot be lowered: hence oom_score,
# restrict_oom_score_adj and oomScoreAdj. Left out, runc dies with "can't get final child's PID from pipe".
cat > "$etc/containerd.toml" <<TOML
version = 2
root = "$var/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "$containerd_socket"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$etc/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "$(command -v runc)"
        SystemdCgroup = false
TOML

cat > "$etc/cni/10-bridge.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": true, "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$pod_cidr"}]], "dataDir": "/run/cni-addresses"}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON

echo "nameserver $dns_ip" > "$etc/resolv.conf"

cat > "$etc/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup
enforceNodeAllocatable: [pods]
containerRuntimeEndpoint: unix://$containerd_socket
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $etc/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $etc/pki/kubelet-server.crt
tlsPrivateKeyFile: $etc/pki/kubelet-server.key
clusterDNS: [$dns_ip]
clusterDomain: cluster.local
resolvConf: $etc/resolv.conf
failSwapOn: false
oomScoreAdj: 0
# Images come from archives and from nowhere else: never throw one away.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 200Mi, nodefs.available: 2%, imagefs.available: 2%, nodefs.inodesFree: 1%}
YAML

cat > "$etc/proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: $pod_cidr
hostnameOverride: $node
bindAddress: $node_ip
oomScoreAdj: 0
clientConnection: {kubeconfig: $etc/proxy.kubeconfig}
# Not writable in a network namespace other than the first.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
YAML
