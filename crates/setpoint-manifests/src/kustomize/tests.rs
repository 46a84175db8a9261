use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::*;
use crate::{AdmissionWebhook, Scope};

/// An operator with everything.
fn install() -> Install {
    let mut install =
        Install::new("web-operator", "web-operator-system", "registry.example.com/web-operator:v1");
    install.crds = ["websites", "certs"]
        .map(|plural| {
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": format!("{plural}.example.com")}, "spec": {"group": "example.com"}})
        })
        .into();
    install.rights.allow("", "configmaps", true, ["get"]).allow("", "nodes", false, ["get"]);
    install.scope = Scope::Namespaces(["team-a".to_owned(), "team-b".to_owned()].into());
    install.replicas = 2;
    install.webhooks.admission = [true, false]
        .map(|mutating| AdmissionWebhook {
            name: format!("w{mutating}.websites.example.com"),
            path: "/w".to_owned(),
            mutating,
            resource: ["example.com", "v1", "websites"].map(str::to_owned),
            operations: vec!["CREATE".to_owned()],
            failure_policy: "Fail".to_owned(),
            timeout_seconds: 10,
            match_conditions: Vec::new(),
        })
        .into();
    install.authority_secret = Some("web-operator-webhook-certificates".to_owned());
    install.egress.push(json!({"ports": [{"port": 6379, "protocol": "TCP"}]}));
    install.secure_metrics();
    install
}

fn choices() -> Vec<Install> {
    let plain = Install::new("web-operator", "web", "web-operator:v1");
    let mut chosen = install();
    (chosen.network_policy, chosen.service_monitor) = (true, true);
    let mut one = install();
    one.network_policy = true;
    vec![plain, install(), one, chosen]
}

fn parse(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// An object by what makes it one in a cluster.
fn identity(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!("{} {} {} {}", object["apiVersion"], object["kind"], metadata["namespace"], metadata["name"])
}

fn sorted(mut objects: Vec<Value>) -> Vec<Value> {
    objects.sort_by_key(identity);
    objects
}

/// What kustomize makes of a folder in `files`: the rules that our own kustomizations use, and no other.
fn build(files: &BTreeMap<String, String>, folder: &str) -> Vec<Value> {
    let file = format!("{folder}/kustomization.yaml");
    let text = files.get(&file).unwrap_or_else(|| panic!("{file} does not exist"));
    let [kustomization] = &parse(text)[..] else { panic!("{file} is one document") };
    let known = ["apiVersion", "kind", "resources", "components"];
    for key in kustomization.as_object().unwrap().keys() {
        assert!(known.contains(&key.as_str()), "{file}: what does {key} do?");
    }
    let list = |key: &str| kustomization[key].as_array().cloned().unwrap_or_default();
    let mut objects = Vec::new();
    for (entry, component) in list("resources")
        .iter()
        .map(|entry| (entry, false))
        .chain(list("components").iter().map(|entry| (entry, true)))
    {
        let entry = entry.as_str().unwrap();
        if let Some(other) = entry.strip_prefix("../") {
            let kind = &parse(&files[&format!("{other}/kustomization.yaml")])[0]["kind"];
            assert_eq!(kind, if component { "Component" } else { "Kustomization" }, "{file}: {entry}");
            objects.extend(build(files, other));
        } else {
            let path = format!("{folder}/{entry}");
            let text =
                files.get(&path).unwrap_or_else(|| panic!("{file} lists {entry}, which does not exist"));
            objects.extend(parse(text));
        }
    }
    objects
}

#[test]
fn default_builds_what_is_installed() {
    for install in choices() {
        let files = install.kustomize().unwrap();
        assert_eq!(sorted(build(&files, "default")), sorted(install.objects().unwrap()));
    }
}

#[test]
fn every_file_is_listed_somewhere() {
    let files = install().kustomize().unwrap();
    let mut listed = BTreeSet::new();
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with("/kustomization.yaml")) {
        let folder = path.trim_end_matches("/kustomization.yaml");
        for entry in parse(text)[0]["resources"].as_array().unwrap() {
            listed.insert(format!("{folder}/{}", entry.as_str().unwrap()));
        }
    }
    for path in files.keys().filter(|path| !path.ends_with("/kustomization.yaml")) {
        assert!(listed.contains(path), "{path} is in no kustomization: {listed:?}");
    }
}

#[test]
fn what_is_not_chosen_is_one_character_away() {
    let files = install().kustomize().unwrap();
    let top = &files["default/kustomization.yaml"];
    let uncommented: Vec<&str> = top
        .lines()
        .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
        .collect();
    let mut all = files.clone();
    all.insert("default/kustomization.yaml".to_owned(), uncommented.join("\n"));
    let mut chosen = install();
    (chosen.network_policy, chosen.service_monitor) = (true, true);
    assert_eq!(sorted(build(&all, "default")), sorted(chosen.objects().unwrap()));
}

#[test]
fn the_folder_looks_like_this() {
    let mut text = String::new();
    for (path, content) in install().kustomize().unwrap() {
        // The objects themselves are shown by install.yaml.
        let shown = path.ends_with("kustomization.yaml")
            || path.contains("prometheus/")
            || path.contains("network-policy/");
        writeln!(text, "==> {path}").unwrap();
        if shown {
            text.push_str(&content);
        }
    }
    insta::assert_snapshot!(text);
}

/// The real thing, where there is one.
#[test]
fn kubectl_builds_the_same() {
    let kubectl = std::env::var_os("KUBEBUILDER_ASSETS").map(|assets| Path::new(&assets).join("kubectl"));
    let kubectl = kubectl.filter(|path| path.exists()).unwrap_or_else(|| "kubectl".into());
    if Command::new(&kubectl).args(["version", "--client"]).output().is_err() {
        println!("skipped: there is no kubectl");
        return;
    }
    for install in choices() {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in install.kustomize().unwrap() {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let output =
            Command::new(&kubectl).arg("kustomize").arg(directory.path().join("default")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let built = parse(&String::from_utf8(output.stdout).unwrap());
        assert_eq!(sorted(built), sorted(install.objects().unwrap()));
    }
}
