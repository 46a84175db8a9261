//! What is written installs on an API server that takes no unknown field, and its pod passes the restricted Pod Security Standard.

use serde_json::{Value, json};
use setpoint::{Election, Operator};

use super::world::{World, operator, with_webhook};

/// With everything that the API server itself has kinds for.
fn objects(operator: &Operator) -> Vec<Value> {
    let mut install = operator.manifests("op-system");
    install.network_policy = true;
    install.objects().unwrap()
}

fn kinds(objects: &[Value]) -> Vec<&str> {
    objects.iter().map(|object| object["kind"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn the_api_server_knows_every_field() {
    let operator = with_webhook().election(Election::new("op.example.com")).metrics_secure(true);
    let objects = objects(&operator);
    for kind in ["NetworkPolicy", "PodDisruptionBudget", "Deployment", "ValidatingWebhookConfiguration"] {
        assert!(kinds(&objects).contains(&kind), "{kind} is missing");
    }
    let world = World::new();
    for object in &objects {
        world.apply(object).await;
    }
    // It would have said so.
    let mut wrong = objects.into_iter().find(|object| object["kind"] == "NetworkPolicy").unwrap();
    wrong["spec"]["ingres"] = json!([]);
    let error = world.try_apply(&wrong).await.unwrap_err().to_string();
    assert!(error.contains("ingres"), "{error}");
}

/// The pod that the Deployment makes, by hand: nothing here runs Deployments.
fn pod(objects: &[Value]) -> Value {
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
    let mut pod = deployment["spec"]["template"].clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!("op-0");
    pod["metadata"]["namespace"] = json!("op-system");
    pod
}

#[tokio::test(start_paused = true)]
async fn the_pod_is_admitted_to_a_restricted_namespace() {
    for operator in [operator(), with_webhook().metrics_secure(true)] {
        let (world, objects) = (World::new(), objects(&operator));
        let namespace = &objects[0];
        assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
        for object in objects
            .iter()
            .filter(|object| ["Namespace", "ServiceAccount"].contains(&object["kind"].as_str().unwrap()))
        {
            world.apply(object).await;
        }
        let pod = pod(&objects);
        let mut container = pod["spec"]["containers"][0].clone();
        for (what, change) in [
            ("allowPrivilegeEscalation", json!(true)),
            ("capabilities", json!({"drop": []})),
            ("runAsNonRoot", json!(false)),
        ] {
            container["securityContext"] = pod["spec"]["containers"][0]["securityContext"].clone();
            container["securityContext"][what] = change;
            let mut weaker = pod.clone();
            weaker["spec"]["containers"][0] = container.clone();
            let error = world.try_apply(&weaker).await.unwrap_err().to_string();
            assert!(error.contains("violates PodSecurity \"restricted"), "{what}: {error}");
        }
        world.apply(&pod).await;
    }
}

/// Beyond the standard: what it does not ask for.
#[test]
fn the_container_can_write_nowhere() {
    let pod = pod(&objects(&operator()));
    let context = &pod["spec"]["containers"][0]["securityContext"];
    assert_eq!(context["readOnlyRootFilesystem"], true);
    assert_eq!(pod["spec"]["securityContext"]["runAsNonRoot"], true);
    assert_ne!(pod["spec"]["securityContext"]["runAsUser"], 0);
    assert_eq!(pod["spec"]["volumes"], Value::Null);
}

#[test]
fn one_replica_has_no_budget_and_metrics_are_open_unless_asked_for() {
    let objects = operator().manifests("op-system").objects().unwrap();
    for kind in ["PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor"] {
        assert!(!kinds(&objects).contains(&kind), "{kind}");
    }
    let names: Vec<&Value> = objects.iter().map(|object| &object["metadata"]["name"]).collect();
    assert!(!names.contains(&&json!("op-metrics-auth")), "{names:?}");
}
