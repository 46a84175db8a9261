use super::*;
use crate::documents;

fn crd(name: &str) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name}, "spec": {}})
}

fn install() -> Install {
    let mut install =
        Install::new("web-operator", "web-operator-system", "registry.example.com/web-operator:v1");
    install.crds = vec![crd("websites.example.com"), crd("certs.example.com")];
    install
        .rights
        .allow("example.com", "websites", true, ["get", "list", "watch", "patch"])
        .allow("example.com", "websites/status", true, ["patch"])
        .allow("", "configmaps", true, ["get", "list", "watch", "create", "patch"])
        .allow("", "nodes", false, ["get", "list", "watch"]);
    install
}

fn kinds(objects: &[Value]) -> Vec<&str> {
    objects.iter().map(|object| object["kind"].as_str().unwrap()).collect()
}

#[test]
fn install_yaml_for_all_namespaces() {
    insta::assert_snapshot!(documents(&install().objects().unwrap()).unwrap());
}

#[test]
fn install_yaml_for_two_namespaces() {
    let mut install = install();
    install.scope = Scope::Namespaces(["team-b".to_owned(), "team-a".to_owned()].into());
    install.crds.clear();
    insta::assert_snapshot!(documents(&install.objects().unwrap()).unwrap());
}

#[test]
fn what_others_need_comes_first() {
    assert_eq!(
        kinds(&install().objects().unwrap()),
        [
            "Namespace",
            "CustomResourceDefinition",
            "CustomResourceDefinition",
            "ServiceAccount",
            "ClusterRole",
            "ClusterRoleBinding",
            "Service",
            "Deployment"
        ]
    );
}

#[test]
fn the_order_of_declaration_does_not_show() {
    let mut other = install();
    other.crds.reverse();
    assert_eq!(other.objects().unwrap(), install().objects().unwrap());
}

#[test]
fn access_without_rights_is_an_account_alone() {
    let mut install = install();
    install.rights = Rights::new();
    assert_eq!(kinds(&install.access().unwrap()), ["ServiceAccount"]);
}

#[test]
fn a_rolling_update_only_with_several_replicas() {
    let mut install = install();
    assert_eq!(install.deployment()["spec"]["strategy"]["type"], "Recreate");
    install.replicas = 2;
    assert_eq!(install.deployment()["spec"]["strategy"]["type"], "RollingUpdate");
}

#[test]
fn the_selector_selects_the_pods_of_deployment_and_service() {
    let install = install();
    let deployment = install.deployment();
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&deployment["spec"]["selector"]["matchLabels"], labels);
    assert_eq!(&install.metrics_service()["spec"]["selector"], labels);
}

#[test]
fn bad_names_are_named() {
    let mut bad = install();
    bad.name = "Web_Operator".to_owned();
    assert_eq!(
        bad.objects().unwrap_err().to_string(),
        "operator name \"Web_Operator\": at most 55 lower-case letters, digits and '-', and a letter or digit at both ends"
    );
    let mut bad = install();
    bad.image.clear();
    assert!(bad.objects().unwrap_err().to_string().starts_with("image \"\""));
    let mut bad = install();
    bad.crds.push(json!({"kind": "ConfigMap"}));
    assert_eq!(bad.objects().unwrap_err(), ManifestError::NotACrd { index: 2 });
}

#[test]
fn install_yaml_with_webhooks() {
    let mut install = install();
    install.scope = Scope::Namespaces(["team-a".to_owned()].into());
    let webhook = |mutating: bool| AdmissionWebhook {
        name: format!("{}.websites.v1.example.com", if mutating { "default" } else { "validate" }),
        path: format!("/{}-example-com-v1-website", if mutating { "mutate" } else { "validate" }),
        mutating,
        resource: ["example.com", "v1", "websites"].map(str::to_owned),
        operations: vec!["CREATE".to_owned(), "UPDATE".to_owned()],
        failure_policy: "Fail".to_owned(),
        timeout_seconds: 10,
        match_conditions: Vec::new(),
    };
    let conditions = vec![("not-admin".to_owned(), "request.userInfo.username != 'admin'".to_owned())];
    install.webhooks.admission =
        vec![webhook(false), AdmissionWebhook { match_conditions: conditions, ..webhook(true) }];
    install.webhooks.converted = ["websites.example.com".to_owned()].into();
    insta::assert_snapshot!(documents(&install.objects().unwrap()).unwrap());
}

#[test]
fn install_yaml_with_every_optional_part() {
    let mut install = install();
    install.crds.clear();
    install.replicas = 2;
    install.network_policy = true;
    install.service_monitor = true;
    install.egress.push(json!({"ports": [{"port": 6379, "protocol": "TCP"}]}));
    install.secure_metrics();
    insta::assert_snapshot!(documents(&install.objects().unwrap()).unwrap());
}

#[test]
fn scraping_without_tls_needs_neither_token_nor_authority() {
    let monitor = install().service_monitor_object();
    assert_eq!(
        monitor["spec"]["endpoints"],
        json!([{"path": "/metrics", "port": "metrics", "scheme": "http"}])
    );
}
