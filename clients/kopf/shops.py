"""An operator built with Kopf: each Shop asks for a Deployment and a ConfigMap; run by `kopf run`."""

import kopf
import kubernetes

GROUP = "kopf.example.com"


def children(name, spec):
    page = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-page"},
        "data": {"index.html": spec["text"]},
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": spec.get("replicas", 1),
            "selector": {"matchLabels": {"shop": name}},
            "template": {
                "metadata": {"labels": {"shop": name}},
                "spec": {"containers": [{"name": "web", "image": "nginx:1.27"}]},
            },
        },
    }
    kopf.adopt([page, deployment])
    return page, deployment


@kopf.on.startup()
def startup(settings: kopf.OperatorSettings, **_):
    kubernetes.config.load_kube_config()
    settings.posting.enabled = True
    settings.persistence.finalizer = f"{GROUP}/farewell"


@kopf.on.create(GROUP, "v1", "shops")
def create(name, namespace, spec, body, **_):
    page, deployment = children(name, spec)
    kubernetes.client.CoreV1Api().create_namespaced_config_map(namespace, page)
    kubernetes.client.AppsV1Api().create_namespaced_deployment(namespace, deployment)
    kopf.info(body, reason="Opened", message="the shop is open")
    return {"deployment": name}


@kopf.on.update(GROUP, "v1", "shops", field="spec")
def update(name, namespace, spec, diff, **_):
    page, deployment = children(name, spec)
    kubernetes.client.CoreV1Api().patch_namespaced_config_map(f"{name}-page", namespace, page)
    kubernetes.client.AppsV1Api().patch_namespaced_deployment(name, namespace, deployment)
    return {"changed": [".".join(field) for _, field, _, _ in diff]}


@kopf.on.delete(GROUP, "v1", "shops")
def delete(name, namespace, **_):
    # Without an owner: nothing else in the cluster would have made it.
    note = {"metadata": {"name": f"{name}-gone"}}
    kubernetes.client.CoreV1Api().create_namespaced_config_map(namespace, note)


@kopf.on.field("apps", "v1", "deployments", field="status.readyReplicas", labels={"owned": kopf.ABSENT})
def ready(namespace, meta, new, **_):
    """A built-in kind that the operator watches: its owner tells how many pods are ready."""
    for owner in meta.get("ownerReferences", []):
        if owner["kind"] == "Shop":
            kubernetes.client.CustomObjectsApi().patch_namespaced_custom_object(
                GROUP, "v1", namespace, "shops", owner["name"], {"status": {"ready": new}}
            )
