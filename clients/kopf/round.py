"""A round in the life of the Kopf operator beside this file, driven with the official Python client: create, change, delete.

Needs KUBECONFIG. Ends with 0 if everything came out as on any Kubernetes."""

import pathlib
import subprocess
import sys
import time

import kubernetes
from kubernetes.client import ApiException

GROUP, NAMESPACE, PATIENCE = "kopf.example.com", "kopf", 60
PRESERVE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SPEC = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string"}, "replicas": {"type": "integer", "default": 2}},
}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"shops.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": "shops", "singular": "shop", "kind": "Shop"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": SPEC, "status": PRESERVE}}},
            }
        ],
    },
}


def eventually(what, check):
    """Waits until `check` gives something true; names the last thing seen when that does not come."""
    end, seen = time.monotonic() + PATIENCE, None
    while time.monotonic() < end:
        try:
            done, seen = check()
            if done:
                print("  ", what, flush=True)
                return seen
        except ApiException as error:
            if error.status != 404:
                raise
            seen = error.reason
        time.sleep(0.05)
    sys.exit(f"failed: {what}; last seen: {seen}")


def gone(read):
    try:
        return False, read()
    except ApiException as error:
        if error.status != 404:
            raise
        return True, None


def main():
    kubernetes.config.load_kube_config()
    core, apps = kubernetes.client.CoreV1Api(), kubernetes.client.AppsV1Api()
    custom, definitions = kubernetes.client.CustomObjectsApi(), kubernetes.client.ApiextensionsV1Api()
    definitions.create_custom_resource_definition(DEFINITION)

    def established():
        conditions = definitions.read_custom_resource_definition(f"shops.{GROUP}").status.conditions or []
        return any(one.type == "Established" and one.status == "True" for one in conditions), conditions

    eventually("the definition is established", established)
    core.create_namespace({"metadata": {"name": NAMESPACE}})
    operator = pathlib.Path(__file__).with_name("shops.py")
    log = open(sys.argv[1], "w", encoding="utf-8")
    running = subprocess.Popen(
        [sys.executable, "-m", "kopf", "run", "--standalone", "-n", NAMESPACE, str(operator)], stderr=log
    )
    try:
        drive(core, apps, custom)
    finally:
        running.terminate()
        code = running.wait(PATIENCE)
        log.close()
    if code != 0:
        sys.exit(f"failed: kopf ended with {code}")
    text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    wrong = [line for line in text.splitlines() if "[ERROR" in line or "Traceback" in line]
    if wrong:
        sys.exit("failed: the operator complained:\n" + "\n".join(wrong))
    print("kopf: create, change and delete came out right")


def drive(core, apps, custom):
    at = (GROUP, "v1", NAMESPACE, "shops")
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Shop", "metadata": {"name": "home"}, "spec": {"text": "hello"}}
    shop = custom.create_namespaced_custom_object(*at, body)
    assert shop["spec"]["replicas"] == 2, shop

    def deployed():
        made = apps.read_namespaced_deployment("home", NAMESPACE)
        return made.metadata.owner_references[0].uid == shop["metadata"]["uid"], made.metadata

    eventually("the Deployment is made and owned", deployed)

    def told():
        status = custom.get_namespaced_custom_object(*at, "home").get("status", {})
        return status.get("create", {}).get("deployment") == "home", status

    eventually("the handler's result is in the status", told)

    def noted():
        events = core.list_namespaced_event(NAMESPACE, field_selector="involvedObject.name=home,reason=Opened")
        return len(events.items) == 1, events.items

    eventually("an event about the shop", noted)
    ready = {"status": {"replicas": 2, "readyReplicas": 2}}
    apps.patch_namespaced_deployment_status("home", NAMESPACE, ready)

    def counted():
        status = custom.get_namespaced_custom_object(*at, "home").get("status", {})
        return status.get("ready") == 2, status

    eventually("the status of the child reaches its owner", counted)

    custom.patch_namespaced_custom_object(*at, "home", {"spec": {"text": "changed", "replicas": 3}})

    def changed():
        page = core.read_namespaced_config_map("home-page", NAMESPACE).data["index.html"]
        size = apps.read_namespaced_deployment("home", NAMESPACE).spec.replicas
        return (page, size) == ("changed", 3), (page, size)

    eventually("page and Deployment change", changed)

    custom.delete_namespaced_custom_object(*at, "home")
    eventually("the shop goes", lambda: gone(lambda: custom.get_namespaced_custom_object(*at, "home")))
    eventually("its Deployment goes", lambda: gone(lambda: apps.read_namespaced_deployment("home", NAMESPACE)))
    eventually("its page goes", lambda: gone(lambda: core.read_namespaced_config_map("home-page", NAMESPACE)))
    core.read_namespaced_config_map("home-gone", NAMESPACE)


if __name__ == "__main__":
    main()
