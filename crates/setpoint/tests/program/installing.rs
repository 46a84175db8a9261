//! What a person does with the example operator at a cluster: install, plan, uninstall.

use std::path::PathBuf;
use std::process::Output;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use serde_json::{Value, json};
use setpoint_test::TestEnv;

use super::{apply, example, program, stderr, until};

/// A server with sockets and its administrator's kubeconfig.
pub(super) struct Site {
    pub(super) admin: Client,
    pub(super) file: PathBuf,
    _directory: tempfile::TempDir,
    _env: TestEnv,
}

impl Site {
    pub(super) async fn new() -> Self {
        let env = TestEnv::without_controllers().await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kubeconfig");
        std::fs::write(&file, env.kubeconfig().unwrap()).unwrap();
        Self { admin: env.client(), file, _directory: directory, _env: env }
    }

    /// The example operator with this server's kubeconfig. Waits for it; the server has threads of its own.
    pub(super) fn run(&self, arguments: &[&str]) -> Output {
        program().args(arguments).arg("--kubeconfig").arg(&self.file).output().unwrap()
    }

    pub(super) fn websites(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("example.com", "v1", "Website");
        Api::namespaced_with(self.admin.clone(), "default", &ApiResource::from_gvk(&kind))
    }
}

fn stdout(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(super) const SHOP: &str = "apiVersion: example.com/v1\nkind: Website\nmetadata: {name: shop, namespace: default}\nspec: {text: hello}\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_tells_what_would_change_and_changes_nothing() {
    let site = Site::new().await;
    assert_eq!(site.run(&["install", "--crds"]).status.code(), Some(0));
    apply(&site.admin, SHOP).await;
    let before = site.websites().get("shop").await.unwrap();

    let plan = stdout(&site.run(&["plan"]));
    for line in [
        "Website.example.com default/shop (website)",
        "  apply ConfigMap default/shop-page (new)",
        "    + data[\"index.html\"]: \"hello\"",
        "  apply Website.example.com default/shop (status)",
        "    + status.page: \"shop-page\"",
        "  event Published: the page of shop is in a ConfigMap",
        "1 object looked at, 2 writes planned, 0 failed",
    ] {
        assert!(plan.lines().any(|other| other == line), "{line:?} is missing in\n{plan}");
    }
    let pages: Api<ConfigMap> = Api::namespaced(site.admin.clone(), "default");
    assert!(pages.get_opt("shop-page").await.unwrap().is_none(), "nothing was written");
    let after = site.websites().get("shop").await.unwrap();
    assert_eq!(before.metadata.resource_version, after.metadata.resource_version);

    let output = site.run(&["plan", "default/shop", "--output", "json", "--detailed-exit-code"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let entries: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        entries[0]["writes"][1]["changes"],
        json!([{"path": "status.page", "before": null, "after": "shop-page"}])
    );
    assert_eq!(entries[0]["waitsFor"], "a change");

    for (name, says) in [
        (
            "default/none",
            "error: Website.example.com default/none does not exist: see `kubectl get websites.example.com --all-namespaces`\n",
        ),
        (
            "shop",
            "error: plan shop failed: objects of Website.example.com have namespaces: say NAMESPACE/shop\n",
        ),
    ] {
        let missing = site.run(&["plan", name]);
        assert_eq!((missing.status.code(), stderr(&missing).as_str()), (Some(1), says));
    }
    let nowhere = site.run(&["plan", "--watch-namespaces", "nowhere"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert_eq!(
        stderr(&nowhere),
        "error: plan failed: there is no namespace nowhere, which --watch-namespaces names\n"
    );
    let unknown = site.run(&["plan", "--controller", "shop"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert_eq!(
        stderr(&unknown),
        "error: controller shop failed: website-operator has no controller of this name, only website\n"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_without_the_crd_says_what_is_missing() {
    let site = Site::new().await;
    let output = site.run(&["plan", "--timeout-seconds", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.starts_with("error: plan failed: not done after 1s: controller website: waits for Website"),
        "{text}"
    );
    assert!(text.contains("are the CRDs installed"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_installed_can_be_removed() {
    let site = Site::new().await;
    let tried = stderr(&site.run(&["install", "--dry-run", "--crds"]));
    assert_eq!(tried, "CustomResourceDefinition websites.example.com created (dry run)\n");
    let crds: Api<CustomResourceDefinition> = Api::all(site.admin.clone());
    assert!(crds.get_opt("websites.example.com").await.unwrap().is_none());

    let nothing = site.run(&["install", "--namespace", "sites"]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(
        stderr(&nothing).starts_with("error: no image of website-operator is known: name one with --image"),
        "{}",
        stderr(&nothing)
    );
    let nowhere = site.run(&[
        "install",
        "--namespace",
        "sites",
        "--watch-namespaces",
        "nowhere",
        "--image",
        "registry.example.com/website:v1",
    ]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert_eq!(
        stderr(&nowhere),
        "error: there is no namespace nowhere, where Role nowhere/website-operator would go: create it, or leave it out of \
         --watch-namespaces\n",
        "before anything is applied"
    );
    let tried = stderr(&site.run(&[
        "install",
        "--dry-run",
        "--namespace",
        "sites",
        "--image",
        "registry.example.com/website:v1",
    ]));
    assert!(tried.contains("Deployment sites/website-operator created (dry run)\n"), "{tried}");

    let first =
        stderr(&site.run(&["install", "--namespace", "sites", "--image", "registry.example.com/website:v1"]));
    assert!(first.contains("Deployment sites/website-operator created\n"), "{first}");
    let again =
        stderr(&site.run(&["install", "--namespace", "sites", "--image", "registry.example.com/website:v1"]));
    assert!(again.lines().all(|line| line.ends_with(" unchanged")), "{again}");

    // Its rights are those of one installation.
    for command in ["install", "uninstall"] {
        let refused =
            site.run(&[command, "--namespace", "other", "--image", "registry.example.com/website:v1"]);
        assert_eq!(refused.status.code(), Some(1));
        assert_eq!(
            stderr(&refused),
            "error: ClusterRoleBinding website-operator is for namespace sites, where the operator is installed: name that with --namespace, or uninstall it there first\n"
        );
    }

    // Somebody else owns a field: it is taken only when asked for.
    let deployments: Api<Deployment> = Api::namespaced(site.admin.clone(), "sites");
    let theirs = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "website-operator"},
        "spec": {"replicas": 5}});
    deployments
        .patch("website-operator", &PatchParams::apply("someone").force(), &Patch::Apply(&theirs))
        .await
        .unwrap();
    let refused =
        site.run(&["install", "--namespace", "sites", "--image", "registry.example.com/website:v1"]);
    assert_eq!(refused.status.code(), Some(1));
    let text = stderr(&refused);
    assert!(
        text.contains(".spec.replicas") && text.ends_with("--force-conflicts takes the fields over\n"),
        "{text}"
    );
    let forced = stderr(&site.run(&[
        "install",
        "--namespace",
        "sites",
        "--image",
        "registry.example.com/website:v1",
        "--force-conflicts",
    ]));
    assert!(forced.contains("Deployment sites/website-operator configured\n"), "{forced}");

    apply(&site.admin, SHOP).await;
    let kept = stderr(&site.run(&["uninstall", "--namespace", "sites"]));
    assert!(kept.contains("websites.example.com: the CRD and its 1 object stay\n"), "{kept}");
    assert!(kept.ends_with("Namespace sites stays: others may use it\n"), "{kept}");
    assert!(deployments.get_opt("website-operator").await.unwrap().is_none());
    assert!(site.websites().get_opt("shop").await.unwrap().is_some());

    let gone = stderr(&site.run(&["uninstall", "--namespace", "sites", "--crds"]));
    assert!(gone.contains("websites.example.com: 1 object deleted\n"), "{gone}");
    assert!(gone.contains("Deployment sites/website-operator not found\n"), "{gone}");
    // A kube-apiserver first looks for objects that are left.
    let no_log = std::path::Path::new("");
    let gone = async || crds.get_opt("websites.example.com").await.unwrap().is_none().then_some(());
    until("the end of the definition", no_log, gone).await;
    assert!(Api::<Namespace>::all(site.admin.clone()).get_opt("sites").await.unwrap().is_some());
}

/// A function of kube-rs writes by the operator's client, so a plan sees to it that nothing is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_covers_what_a_function_of_kube_rs_writes() {
    let site = Site::new().await;
    apply(
        &site.admin,
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: default, labels: {copy: 'yes'}}\ndata: {color: red}\n",
    )
    .await;
    let mut command = example("from_kube_rs");
    let output = command.args(["plan", "default/settings", "--kubeconfig"]).arg(&site.file).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "what it cannot try it says: {}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("ConfigMap default/settings (configmap)\n  error: "), "{text}");
    let secrets: Api<Secret> = Api::namespaced(site.admin.clone(), "default");
    assert!(secrets.get_opt("settings").await.unwrap().is_none());
}

/// A finalizer that nobody removes is named, and nothing hangs for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_do_not_go_are_named() {
    let site = Site::new().await;
    site.run(&["install", "--crds"]);
    let held = SHOP.replace("namespace: default}", "namespace: default, finalizers: [example.com/hold]}");
    apply(&site.admin, &held).await;
    let output = site.run(&["uninstall", "--crds", "--timeout-seconds", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.ends_with(
            "error: 1 object of websites.example.com is still there after 1s: default/shop waits for its finalizers \
             (example.com/hold); does the operator run?\n"
        ),
        "{text}"
    );
}
