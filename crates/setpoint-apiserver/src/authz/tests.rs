use serde_json::json;

use super::{
    escalation::{Refusal, check},
    *,
};

struct Fixed(Vec<Arc<Value>>);

impl Policies for Fixed {
    fn list(&self, plural: &str, namespace: Option<&str>) -> Vec<Arc<Value>> {
        let of = |object: &Value| {
            let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
            format!("{kind}s") == plural && object["metadata"]["namespace"].as_str() == namespace
        };
        self.0.iter().filter(|object| of(object)).cloned().collect()
    }

    fn get(&self, plural: &str, namespace: Option<&str>, name: &str) -> Option<Arc<Value>> {
        self.list(plural, namespace).into_iter().find(|object| object["metadata"]["name"] == name)
    }
}

fn cluster(more: impl IntoIterator<Item = Value>) -> Fixed {
    Fixed(bootstrap::policy().into_iter().chain(more).map(Arc::new).collect())
}

fn role(name: &str, rules: &Value) -> Value {
    json!({"kind": "Role", "metadata": {"name": name, "namespace": "default"}, "rules": rules})
}

fn bind(kind: &str, name: &str, subject: &Value) -> Value {
    json!({"kind": "RoleBinding", "metadata": {"name": name, "namespace": "default"},
        "subjects": [subject], "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}})
}

fn ask<'a>(
    user: &'a Identity,
    verb: &'a str,
    resource: &'a str,
    namespace: Option<&'a str>,
) -> Attributes<'a> {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    Attributes { user, verb, group: "", resource, subresource, namespace, name: "", path: None }
}

#[test]
fn the_bootstrap_policy_is_complete() {
    let policy = bootstrap::policy();
    assert_eq!(policy.len(), setpoint_kinds::bootstrap_policy().count(), "a line is malformed");
    for name in [
        "cluster-admin",
        "admin",
        "edit",
        "view",
        "system:discovery",
        "system:basic-user",
        "system:public-info-viewer",
    ] {
        assert!(policy.iter().any(|o| o["kind"] == "ClusterRole" && o["metadata"]["name"] == name), "{name}");
    }
    assert!(policy.iter().all(|object| object["apiVersion"] == "rbac.authorization.k8s.io/v1"));
}

#[test]
fn anyone_may_read_discovery_and_little_else() {
    let policies = cluster([]);
    let bob = Identity::new("bob", ["dev"]);
    let path = |path| Attributes { path: Some(path), ..ask(&bob, "get", "", None) };
    for allowed in ["/api", "/apis/apps/v1", "/openapi/v3", "/version", "/healthz"] {
        assert!(authorize(&path(allowed), &policies).allowed, "{allowed}");
    }
    assert!(!authorize(&path("/metrics"), &policies).allowed);
    assert!(!authorize(&ask(&bob, "get", "pods", Some("default")), &policies).allowed);
    assert!(authorize(&ask(&Identity::admin(), "delete", "nodes", None), &policies).allowed);
}

#[test]
fn a_binding_in_a_namespace_grants_there_only_and_names_itself() {
    let bob = Identity::new("bob", ["dev"]);
    let pods =
        role("pods", &json!([{"apiGroups": [""], "resources": ["pods", "*/log"], "verbs": ["get", "list"]}]));
    let policies = cluster([pods, bind("Role", "pods", &json!({"kind": "Group", "name": "dev"}))]);
    let decide = |verb, resource, namespace| authorize(&ask(&bob, verb, resource, namespace), &policies);
    assert_eq!(
        decide("list", "pods", Some("default")),
        Decision {
            allowed: true,
            reason: r#"RBAC: allowed by RoleBinding "pods/default" of Role "pods" to Group "dev""#.to_owned()
        }
    );
    assert!(decide("get", "pods/log", Some("default")).allowed);
    assert!(!decide("get", "pods/status", Some("default")).allowed);
    assert!(!decide("watch", "pods", Some("default")).allowed);
    assert!(!decide("list", "pods", Some("other")).allowed);
    assert!(!decide("list", "pods", None).allowed);
}

#[test]
fn aggregated_roles_and_service_accounts() {
    let account = Identity::service_account("default", "app", "1");
    let subject = json!({"kind": "ServiceAccount", "name": "app"});
    let more = json!({"kind": "ClusterRole", "metadata": {"name": "redis-view", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"apiGroups": ["x.io"], "resources": ["redises"], "verbs": ["get"]}]});
    let policies = cluster([bind("ClusterRole", "admin", &subject), more]);
    let may = |verb, resource| authorize(&ask(&account, verb, resource, Some("default")), &policies).allowed;
    assert!(may("get", "pods"), "from view, by edit, by admin");
    assert!(may("delete", "secrets"), "from edit, by admin");
    assert!(!may("delete", "nodes"));
    let redis = Attributes { group: "x.io", ..ask(&account, "get", "redises", Some("default")) };
    assert!(authorize(&redis, &policies).allowed);
    let other = Identity::service_account("other", "app", "1");
    assert!(!authorize(&ask(&other, "get", "pods", Some("default")), &policies).allowed);
}

#[test]
fn resource_names_restrict() {
    let bob = Identity::new("bob", ["dev"]);
    let rule = json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"], "verbs": ["get", "list"]}]);
    let policies = cluster([role("s", &rule), bind("Role", "s", &json!({"kind": "User", "name": "bob"}))]);
    let named = |name| Attributes { name, ..ask(&bob, "get", "secrets", Some("default")) };
    assert!(authorize(&named("mine"), &policies).allowed);
    assert!(!authorize(&named("other"), &policies).allowed);
    assert!(!authorize(&named(""), &policies).allowed);
}

#[test]
fn denials_are_worded_as_kubernetes_words_them() {
    let bob = Identity::new("bob", ["dev"]);
    let cases = [
        (
            ask(&bob, "list", "pods", Some("default")),
            r#"User "bob" cannot list resource "pods" in API group "" in the namespace "default""#,
        ),
        (
            ask(&bob, "get", "nodes/proxy", None),
            r#"User "bob" cannot get resource "nodes/proxy" in API group "" at the cluster scope"#,
        ),
        (
            Attributes { path: Some("/metrics"), ..ask(&bob, "get", "", None) },
            r#"User "bob" cannot get path "/metrics""#,
        ),
    ];
    for (attributes, wanted) in cases {
        assert_eq!(denial(&attributes, ""), wanted);
    }
    let policies = cluster([bind("Role", "gone", &json!({"kind": "User", "name": "bob"}))]);
    let decision = authorize(&ask(&bob, "list", "pods", Some("default")), &policies);
    assert_eq!(decision.reason, r#"RBAC: role.rbac.authorization.k8s.io "gone" not found"#);
}

#[test]
fn nobody_grants_what_he_does_not_hold() {
    let bob = Identity::new("bob", ["dev"]);
    let own = role(
        "own",
        &json!([
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}]),
    );
    let policies = cluster([own, bind("Role", "own", &json!({"kind": "User", "name": "bob"}))]);
    let held = role("x", &json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]));
    assert_eq!(check(&bob, "roles", Some("default"), &held, None, &policies), Ok(()));
    let more =
        role("x", &json!([{"apiGroups": [""], "resources": ["secrets", "pods"], "verbs": ["get", "list"]}]));
    let wanted = "user \"bob\" (groups=[\"dev\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n\
        {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}";
    assert_eq!(
        check(&bob, "roles", Some("default"), &more, None, &policies),
        Err(Refusal::Forbidden(wanted.to_owned()))
    );
    let admin = bind("ClusterRole", "cluster-admin", &json!({"kind": "User", "name": "al"}));
    let refusal = check(&bob, "rolebindings", Some("default"), &admin, None, &policies);
    assert!(
        matches!(&refusal, Err(Refusal::Forbidden(text)) if text.ends_with(
        "{APIGroups:[\"*\"], Resources:[\"*\"], Verbs:[\"*\"]}\n{NonResourceURLs:[\"*\"], Verbs:[\"*\"]}")),
        "{refusal:?}"
    );
    let missing = bind("Role", "nosuch", &json!({"kind": "User", "name": "al"}));
    assert_eq!(
        check(&bob, "rolebindings", Some("default"), &missing, None, &policies),
        Err(Refusal::NotFound("nosuch".to_owned()))
    );
    assert_eq!(check(&Identity::admin(), "rolebindings", Some("default"), &admin, None, &policies), Ok(()));
}

#[test]
fn reviews_are_answered() {
    let bob = Identity::new("bob", ["dev"]);
    let policies = cluster([]);
    let answer = |kind, spec| {
        review::answer(
            kind,
            json!({"kind": kind, "spec": spec}),
            &bob,
            None,
            "2026-01-01T00:00:00Z",
            &policies,
        )
    };
    let who = answer("SelfSubjectReview", json!({})).expect("whoami");
    assert_eq!(
        who["status"]["userInfo"],
        json!({"username": "bob", "groups": ["dev", "system:authenticated"]})
    );
    let can = answer(
        "SelfSubjectAccessReview",
        json!({"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}),
    );
    assert_eq!(can.expect("can-i")["status"], json!({"allowed": false}));
    let path = json!({"nonResourceAttributes": {"verb": "get", "path": "/healthz"}});
    assert_eq!(answer("SelfSubjectAccessReview", path).expect("path")["status"]["allowed"], true);
    assert!(answer("SelfSubjectAccessReview", json!({})).is_err());
    assert!(answer("SubjectAccessReview", json!({"resourceAttributes": {"verb": "get"}})).is_err());
    let other = json!({"user": "root", "groups": ["system:masters"], "resourceAttributes": {"verb": "get", "resource": "pods"}});
    assert_eq!(answer("SubjectAccessReview", other).expect("other")["status"]["allowed"], true);
    let list = answer("SelfSubjectRulesReview", json!({"namespace": "default"})).expect("rules");
    assert_eq!(list["status"]["incomplete"], false);
    assert!(list["status"]["resourceRules"].as_array().is_some_and(|rules| rules.len() >= 2));
}
