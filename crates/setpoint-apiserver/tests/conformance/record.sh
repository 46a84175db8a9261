#!/bin/sh
# Sends the requests of cases.txt to a freshly started kube-apiserver, in order, and writes its answers to recorded.txt.
#
#   record.sh BIN       BIN: a folder with kube-apiserver and etcd of one Kubernetes version
#
# Each line of cases.txt is: METHOD PATH CONTENT-TYPE BODY (BODY may be missing), with a ~ before METHOD where only the codes must be
# equal (the reasons are in tests/api/conformance.rs). It needs curl and openssl; both servers run on
# loopback ports in a folder of their own and are stopped at the end.
set -eu
bin=$1
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
etcd_port=${ETCD_PORT:-27590}
peer_port=${PEER_PORT:-27600}
port=${API_PORT:-27543}
cleanup() {
    kill "${api:-0}" "${etcd:-0}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap cleanup EXIT INT TERM
openssl genrsa -out "$dir/sa.key" 2048 2>/dev/null
echo "record,kubernetes-admin,,system:masters" >"$dir/tokens"
"$bin/etcd" --data-dir "$dir/etcd" --unsafe-no-fsync --listen-client-urls "http://127.0.0.1:$etcd_port" \
    --advertise-client-urls "http://127.0.0.1:$etcd_port" --listen-peer-urls "http://127.0.0.1:$peer_port" >"$dir/etcd.log" 2>&1 &
etcd=$!
"$bin/kube-apiserver" --etcd-servers "http://127.0.0.1:$etcd_port" --secure-port "$port" --bind-address 127.0.0.1 \
    --endpoint-reconciler-type none --cert-dir "$dir/certs" --service-account-key-file "$dir/sa.key" \
    --service-account-signing-key-file "$dir/sa.key" --service-account-issuer https://kubernetes.default.svc \
    --token-auth-file "$dir/tokens" --authorization-mode RBAC --service-cluster-ip-range 10.96.0.0/16 \
    --disable-admission-plugins ServiceAccount >"$dir/api.log" 2>&1 &
api=$!
call() { # call METHOD PATH CONTENT-TYPE BODY: the code, a space, and the body as one line
    curl -sk -X "$1" -H "Authorization: Bearer record" -H "Content-Type: $3" -A test/1 ${4:+--data-binary "$4"} \
        -o "$dir/answer" -w '%{http_code} ' "https://127.0.0.1:$port$2"
    tr -d '\n' <"$dir/answer"
    echo
}
tries=0
until [ "$(call GET /readyz application/json '' 2>/dev/null)" = "200 ok" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || { echo "kube-apiserver did not become ready; its log ends:" >&2; tail -5 "$dir/api.log" >&2; exit 1; }
    sleep 1
done
while read -r method path type body; do
    call "${method#"~"}" "$path" "$type" "$body"
    # A definition is served a little later than it is created.
    case $method$path in POST*customresourcedefinitions*) sleep 2 ;; esac
done <"$here/cases.txt" >"$here/recorded.txt"
echo "recorded $(wc -l <"$here/recorded.txt") answers"
