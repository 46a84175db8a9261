#!/bin/sh
# Saves the discovery and OpenAPI v3 documents, the columns of tables and the roles of a freshly started kube-apiserver for the generator beside this file.
#
#   fetch.sh BIN MODULES SOURCES OUT
#
# BIN: a folder with kube-apiserver and etcd of one Kubernetes version; MODULES: the folder with that version's Go modules
# api@…, apimachinery@… and apiextensions-apiserver@… (`$(go env GOMODCACHE)/k8s.io`), whose .proto files have the field numbers and whose Go types
# say which zero values JSON leaves out; SOURCES: a folder with the go.mod and go.sum by which that version is built (see scripts/build-kubernetes);
# OUT: where the documents go.
#
# It needs Go, curl and openssl, starts both servers on free loopback ports in a folder of their own, and stops them at the end.
set -eu
bin=$1
modules=$2
sources=$3
out=$4
dir=$(mktemp -d)
etcd_port=${ETCD_PORT:-23790}
peer_port=${PEER_PORT:-23800}
port=${API_PORT:-26443}
token=fetch-$$
cleanup() {
    # The API server would wait for its etcd: no grace.
    kill -9 $api $etcd 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$dir"
}
api=
etcd=
trap cleanup EXIT INT TERM
mkdir -p "$out"
openssl genrsa -out "$dir/sa.key" 2048 2>/dev/null
echo "$token,admin,admin,system:masters" >"$dir/tokens"

"$bin/etcd" --data-dir "$dir/etcd" --unsafe-no-fsync --listen-client-urls "http://127.0.0.1:$etcd_port" \
    --advertise-client-urls "http://127.0.0.1:$etcd_port" --listen-peer-urls "http://127.0.0.1:$peer_port" >"$dir/etcd.log" 2>&1 &
etcd=$!
"$bin/kube-apiserver" --etcd-servers "http://127.0.0.1:$etcd_port" --secure-port "$port" --bind-address 127.0.0.1 \
    --endpoint-reconciler-type none --cert-dir "$dir/certs" --service-account-key-file "$dir/sa.key" \
    --service-account-signing-key-file "$dir/sa.key" --service-account-issuer https://kubernetes.default.svc \
    --token-auth-file "$dir/tokens" --authorization-mode RBAC --service-cluster-ip-range 10.96.0.0/16 \
    --disable-admission-plugins ServiceAccount >"$dir/api.log" 2>&1 &
api=$!

get() { # get PATH FILE [ACCEPT]
    curl -sSfk -H "Authorization: Bearer $token" -H "Accept: ${3:-application/json}" "https://127.0.0.1:$port$1" -o "$out/$2"
}
tries=0
# Ready includes that the cluster roles have been made.
until get /readyz ready 2>/dev/null; do
    tries=$((tries + 1))
    if [ "$tries" -gt 60 ]; then
        echo "kube-apiserver did not become ready; its log ends:" >&2
        tail -5 "$dir/api.log" >&2
        exit 1
    fi
    sleep 1
done
rm "$out/ready"

aggregated='application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList'
table='application/json;as=Table;g=meta.k8s.io;v=v1'
get /version version.json
get /api api.json "$aggregated"
get /apis apis.json "$aggregated"
get /apis/rbac.authorization.k8s.io/v1/clusterroles clusterroles.json
get /apis/rbac.authorization.k8s.io/v1/clusterrolebindings clusterrolebindings.json
get /apis/rbac.authorization.k8s.io/v1/roles roles.json
get /apis/rbac.authorization.k8s.io/v1/rolebindings rolebindings.json
get /openapi/v3 index.json
# Every `"path":{"serverRelativeURL"` key of the index. Those of group versions have resources.
tr '{,' '\n\n' <"$out/index.json" | sed -n 's/^ *"\([^"]*\)":$/\1/p' | grep -v '^paths$' | while read -r path; do
    get "/openapi/v3/$path" "openapi-$(echo "$path" | tr / _).json"
    case $path in
        api/v1 | apis/*/*)
            get "/$path" list.json
            # A resource for each line; those that can be listed tell the columns of their tables.
            (tr -d '\n' <"$out/list.json" | tr '{' '\n'; echo) | sed -n '/"list"/s/.*"name": *"\([^"\/]*\)".*/\1/p' | while read -r plural; do
                get "/$path/$plural?limit=1" "columns-$(echo "$path" | tr / _)_$plural.json" "$table"
            done
            ;;
    esac
done
rm "$out/list.json"
# The table of a scale needs one.
curl -sSfk -H "Authorization: Bearer $token" -H 'Content-Type: application/json' -o "$out/scaled" \
    -d '{"apiVersion":"v1","kind":"ReplicationController","metadata":{"name":"a"},"spec":{"replicas":0,"selector":{"a":"b"},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}' \
    "https://127.0.0.1:$port/api/v1/namespaces/default/replicationcontrollers"
rm "$out/scaled"
get /api/v1/namespaces/default/replicationcontrollers/a/scale columns-apis_autoscaling_v1_scales.json "$table"
# Modules of 1.N are tagged 0.N.
tag=$(sed -n 's/.*"gitVersion": *"v1\.\([0-9.]*\)".*/v0.\1/p' "$out/version.json")
for module in api apimachinery apiextensions-apiserver; do
    (cd "$modules/$module@$tag" && find . -name generated.proto) | while read -r file; do
        cp "$modules/$module@$tag/$file" "$out/$module$(echo "${file#.}" | tr / -)"
        for types in "$modules/$module@$tag/${file%/*}"/types*.go; do
            case $types in *'*'* | *_test.go | *_generated.go) continue ;; esac
            cat "$types"
        done >"$out/$module$(echo "${file#.}" | tr / - | sed 's/generated\.proto$/types.go/')"
    done
done
cp "$sources/go.mod" "$sources/go.sum" "$dir/"
cp "$(dirname "$0")/go-types.go" "$dir/main.go"
(cd "$dir" && GOFLAGS=-mod=mod go run .) >"$out/go-types.txt"
chmod -R u+w "$out"
echo "saved $(ls "$out" | wc -l) documents of $(sed -n 's/.*"gitVersion": *"\([^"]*\)".*/\1/p' "$out/version.json") in $out"
