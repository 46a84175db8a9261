#!/bin/sh
# A release's life with Helm: install, upgrade, roll back, uninstall. Needs helm, kubectl and KUBECONFIG.
set -eu
helm=${HELM:-helm}
kubectl=${SETPOINT_KUBECTL:-kubectl}
chart=$(cd "$(dirname "$0")" && pwd)/chart
HELM_CACHE_HOME=$(mktemp -d)
export HELM_CACHE_HOME HELM_CONFIG_HOME=$HELM_CACHE_HOME HELM_DATA_HOME=$HELM_CACHE_HOME
trap 'rm -rf "$HELM_CACHE_HOME"' EXIT

is() { # WHAT EXPECTED: compares what a command line prints
    got=$(cat)
    [ "$got" = "$2" ] || { echo "failed: $1 is \"$got\" instead of \"$2\"" >&2; exit 1; }
    echo "   $1 is $2"
}
field() { "$kubectl" -n helm get "$1" rose -o "jsonpath=$2"; }

"$helm" install rose "$chart" --namespace helm --create-namespace --wait --timeout 60s >/dev/null
field configmap '{.data.text}' | is "the text after install" hello
field garden '{.spec.text}' | is "the custom resource's text after install" hello
field statefulset '{.status.readyReplicas}' | is "the count of ready pods after install, with --wait" 2
field configmap '{.metadata.labels.app\.kubernetes\.io/managed-by}' | is "the label of who manages it" Helm

"$helm" upgrade rose "$chart" --namespace helm --set text=changed --set replicas=3 --wait --timeout 60s >/dev/null
field configmap '{.data.text}' | is "the text after upgrade" changed
field garden '{.spec.text}' | is "the custom resource's text after upgrade" changed
field statefulset '{.status.readyReplicas}' | is "the count of ready pods after upgrade" 3
"$kubectl" -n helm get configmap rose-hook -o 'jsonpath={.data.revision}' | is "the hook's revision" 2

"$helm" rollback rose 1 --namespace helm --wait --timeout 60s >/dev/null
field garden '{.spec.text}' | is "the custom resource's text after rollback" hello
field statefulset '{.spec.replicas}' | is "the wanted count of pods after rollback" 2
"$helm" history rose --namespace helm -o json | tr , '\n' | grep -c '"revision"' | is "the count of revisions" 3
"$helm" get values rose --namespace helm --revision 2 -o json | is "what revision 2 set" '{"replicas":3,"text":"changed"}'

"$helm" uninstall rose --namespace helm --wait --timeout 60s >/dev/null
"$kubectl" -n helm get serviceaccount,role,rolebinding,service,statefulset,pod,garden,secret -o name |
    grep -v '^serviceaccount/default$' | is "what is left after uninstall" ""
"$helm" list --namespace helm --all -q 2>/dev/null | is "the list of releases" "" 
echo "helm: install, upgrade, rollback and uninstall came out right"
