#!/usr/bin/env bash
# Process 1 of the node, in its own pid, mount, network, uts and ipc namespaces: when it ends, the whole node ends.
# The machine's firewall, sysctls, mounts and processes do not change. Started by up.sh.
set -euo pipefail
. "$(dirname "$0")/settings.sh"
logs=$var/log pki=$etc/pki
mkdir -p "$logs" "$var"/{etcd,kubelet,containerd,volumes,pods,cni}

hostname $node
mount --make-rprivate /
mount -t tmpfs -o mode=755 node-run /run
mkdir -p /run/lock /run/netns /run/containerd
mkdir -p /var/lib/kubelet /var/log/pods /var/log/containers /var/lib/cni /opt/cni
mount --bind "$var/kubelet" /var/lib/kubelet
mount --bind "$var/pods" /var/log/pods
mount --bind "$var/cni" /var/lib/cni
mount -t tmpfs node-containers /var/log/containers
mount --make-rshared /                          # within the node, for volumes that kubelet mounts into pods

# Kubelet requires some machine-wide sysctls: mount files with the expected values over them.
mkdir /run/sysctl
for pair in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=/run/sysctl/$(tr / _ <<<"${pair%=*}")
    echo "${pair#*=}" > "$file"
    mount --bind "$file" "/proc/sys/${pair%=*}"
done
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
if [ -e /proc/sys/net/bridge/bridge-nf-call-iptables ]; then echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables; fi

touch "$var/init.ready"
for _ in $(seq 600); do
    ip -4 address show dev node0 2>/dev/null | grep -q $node_ip && break
    sleep 0.05
done

# run NAME COMMAND...: starts the command, and restarts it when it ends, as a service manager would
run() {
    local name=$1; shift
    (
        cd /
        while :; do
            code=0
            "$@" >>"$logs/$name.log" 2>&1 || code=$?
            echo "$(date +%T) $name ended with $code; starting it again" >>"$logs/init.log"
            sleep 1
        done
    ) &
}

run containerd containerd --config "$etc/containerd.toml"
# The node lives for minutes, so etcd need not survive a power cut.
run etcd "$bin/etcd" --name $node --data-dir "$var/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
    --initial-cluster $node=http://127.0.0.1:2380
run apiserver "$bin/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --advertise-address=$node_ip --secure-port=6443 \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" --client-ca-file="$pki/ca.crt" \
    --service-account-key-file="$pki/service-accounts.pub" --service-account-signing-key-file="$pki/service-accounts.key" \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local --service-cluster-ip-range=$service_cidr \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
    --kubelet-client-certificate="$pki/apiserver-to-kubelet.crt" --kubelet-client-key="$pki/apiserver-to-kubelet.key" \
    --kubelet-certificate-authority="$pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
    --requestheader-client-ca-file="$pki/front-proxy-ca.crt" --requestheader-allowed-names=front-proxy-client \
    --requestheader-extra-headers-prefix=X-Remote-Extra- --requestheader-group-headers=X-Remote-Group \
    --requestheader-username-headers=X-Remote-User \
    --proxy-client-cert-file="$pki/front-proxy-client.crt" --proxy-client-key-file="$pki/front-proxy-client.key"
until "$bin/kubectl" --kubeconfig="$etc/admin.kubeconfig" get --raw /readyz >/dev/null 2>&1; do sleep 0.2; done
run controller-manager "$bin/kube-controller-manager" --kubeconfig="$etc/controller-manager.kubeconfig" \
    --service-account-private-key-file="$pki/service-accounts.key" --root-ca-file="$pki/ca.crt" \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" \
    --use-service-account-credentials=true --leader-elect=false --bind-address=127.0.0.1 \
    --service-cluster-ip-range=$service_cidr --cluster-cidr=$pod_cidr
run scheduler "$bin/kube-scheduler" --kubeconfig="$etc/scheduler.kubeconfig" --leader-elect=false --bind-address=127.0.0.1
run kubelet "$bin/kubelet" --config="$etc/kubelet.yaml" --kubeconfig="$etc/kubelet.kubeconfig" \
    --hostname-override=$node --node-ip=$node_ip --node-labels=topology.kubernetes.io/zone=zone-a
run proxy "$bin/kube-proxy" --config="$etc/proxy.yaml"

trap 'exit 0' TERM
while :; do sleep 3600 & wait $! || true; done     # bash as process 1 also reaps orphans: containers and their shims
