#!/usr/bin/env bash
# Certificates and kubeconfigs of one run of the node: two authorities, and a certificate for each component.
set -euo pipefail
. "$(dirname "$0")/settings.sh"
mkdir -p "$etc/pki"
cd "$etc/pki"

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }

authority() {
    key "$1"
    openssl req -x509 -new -key "$1.key" -subj "/CN=$1" -days 30 -out "$1.crt" \
        -addext "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"
}

# certificate NAME SUBJECT AUTHORITY [NAMES]
certificate() {
    key "$1"
    {
        echo "basicConstraints=CA:FALSE"
        echo "keyUsage=digitalSignature,keyEncipherment"
        echo "extendedKeyUsage=clientAuth,serverAuth"
        if [ -n "${4-}" ]; then echo "subjectAltName=$4"; fi
    } > "$1.ext"
    openssl req -new -key "$1.key" -subj "$2" |
        openssl x509 -req -CA "$3.crt" -CAkey "$3.key" -CAcreateserial -days 30 -extfile "$1.ext" -out "$1.crt" 2>/dev/null
}

# user NAME SUBJECT: with a certificate and a kubeconfig
user() {
    certificate "$1" "$2" ca
    cat > "$etc/$1.kubeconfig" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: ottla, cluster: {server: "https://$node_ip:6443", certificate-authority: $etc/pki/ca.crt}}]
users: [{name: $1, user: {client-certificate: $etc/pki/$1.crt, client-key: $etc/pki/$1.key}}]
contexts: [{name: ottla, context: {cluster: ottla, user: $1}}]
current-context: ottla
YAML
}

authority ca
authority front-proxy-ca
service=kubernetes.default.svc
certificate apiserver /CN=kube-apiserver ca \
    "DNS:kubernetes,DNS:kubernetes.default,DNS:$service,DNS:$service.cluster.local,DNS:localhost,IP:127.0.0.1,IP:$node_ip,IP:$api_ip"
certificate kubelet-server "/CN=$node" ca "DNS:$node,IP:$node_ip,IP:127.0.0.1"
certificate apiserver-to-kubelet /O=system:masters/CN=apiserver-to-kubelet ca
certificate front-proxy-client /CN=front-proxy-client front-proxy-ca
user admin /O=system:masters/CN=admin
user kubelet "/O=system:nodes/CN=system:node:$node"
user controller-manager /CN=system:kube-controller-manager
user scheduler /CN=system:kube-scheduler
user proxy /CN=system:kube-proxy
openssl genrsa -out service-accounts.key 2048 2>/dev/null
openssl rsa -in service-accounts.key -pubout -out service-accounts.pub 2>/dev/null
