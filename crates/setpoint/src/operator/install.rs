//! `install` and `uninstall`: the manifests, on a cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::cluster::{Cluster, ClusterError, named};
use super::plan::count;

/// How often the cluster is asked whether something is done.
const POLL: Duration = Duration::from_millis(200);
/// What takes longer is told.
const TELL_AFTER: Duration = Duration::from_secs(2);

/// Why `install` or `uninstall` stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum InstallError {
    /// An object.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The cluster-wide rights belong to an installation elsewhere.
    #[error(
        "{binding} is for namespace {theirs}, where the operator is installed: name that with --namespace, or uninstall it there first"
    )]
    Elsewhere {
        /// Kind and name.
        binding: String,
        /// Where it is.
        theirs: String,
    },
    /// Nothing can be put there.
    #[error(
        "there is no namespace {namespace}, where {object} would go: create it, or leave it out of --watch-namespaces"
    )]
    NoNamespace {
        /// Its name.
        namespace: String,
        /// The first object that would go there.
        object: String,
    },
    /// Something takes too long.
    #[error("{what} after {limit:?}: {detail}")]
    Late {
        /// What is not so.
        what: String,
        /// How long was waited.
        limit: Duration,
        /// What it is like, and what to do.
        detail: String,
    },
}

/// How to install.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// Take fields over that others own.
    pub(super) force: bool,
    /// Only try.
    pub(super) dry_run: bool,
    /// For each wait.
    pub(super) limit: Duration,
}

/// Applies `objects` in their order. A CustomResourceDefinition is waited for until the cluster serves it. `tell`
/// gets a line for each object.
pub(super) async fn install(
    cluster: &Cluster,
    objects: &[Value],
    options: Options,
    tell: &mut impl FnMut(String),
) -> Result<(), InstallError> {
    not_elsewhere(cluster, objects).await?;
    namespaces_exist(cluster, objects).await?;
    for object in objects {
        let applied = cluster.apply(object, options.force).await;
        for warning in cluster.warnings() {
            tell(format!("Warning: {warning}"));
        }
        match applied {
            Ok(applied) => tell(format!("{} {}", named(object), applied.as_str())),
            // Its namespace was only tried, too.
            Err(error) if options.dry_run && error.is_without_namespace() => {
                tell(format!("{} created", named(object)));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if options.dry_run {
        return Ok(());
    }
    for crd in objects.iter().filter(|object| object["kind"] == "CustomResourceDefinition") {
        until(options.limit, tell, async || {
            let found = cluster.get(crd).await?;
            let conditions = found.as_ref().and_then(|crd| crd.data["status"]["conditions"].as_array());
            let state = |kind: &str| {
                conditions.into_iter().flatten().find(|condition| condition["type"] == kind).cloned()
            };
            if state("Established").is_some_and(|condition| condition["status"] == "True") {
                return Ok(None);
            }
            let refused = state("NamesAccepted").filter(|condition| condition["status"] == "False");
            let why = refused.map_or_else(
                || "the cluster has not said why".to_owned(),
                |condition| condition["message"].as_str().unwrap_or_default().to_owned(),
            );
            Ok(Some((format!("{} is not established", named(crd)), why)))
        })
        .await?;
    }
    Ok(())
}

/// Removes `objects`: what calls the operator first, then, if `crds`, the objects of its CustomResourceDefinitions
/// while the operator still runs and can clean up, then these; then the operator. Namespaces stay: others may use them.
pub(super) async fn uninstall(
    cluster: &Cluster,
    objects: &[Value],
    crds: bool,
    options: Options,
    tell: &mut impl FnMut(String),
) -> Result<(), InstallError> {
    not_elsewhere(cluster, objects).await?;
    let kind = |object: &Value| object["kind"].as_str().unwrap_or_default().to_owned();
    let remove = async |object: &Value, tell: &mut dyn FnMut(String)| -> Result<(), InstallError> {
        let there = cluster.delete(object).await?;
        tell(format!("{} {}", named(object), if there { "deleted" } else { "not found" }));
        Ok(())
    };
    for object in objects.iter().filter(|object| kind(object).ends_with("WebhookConfiguration")) {
        remove(object, tell).await?;
    }
    for crd in objects.iter().filter(|object| kind(object) == "CustomResourceDefinition") {
        let instances = cluster.instances(crd).await?;
        let plural = crd["metadata"]["name"].as_str().unwrap_or_default();
        if !crds {
            let held = instances.iter().filter(|object| object.metadata.finalizers.is_some()).count();
            if !instances.is_empty() {
                tell(format!(
                    "{plural}: the CRD and its {} stay{}",
                    count(instances.len(), "object"),
                    if held > 0 {
                        format!("; {held} have finalizers that nobody removes without the operator")
                    } else {
                        String::new()
                    }
                ));
            }
            continue;
        }
        for instance in &instances {
            cluster.delete_instance(crd, instance).await?;
        }
        if !options.dry_run {
            until(options.limit, tell, async || {
                let left = cluster.instances(crd).await?;
                let Some(first) = left.first() else { return Ok(None) };
                let name = first.metadata.name.clone().unwrap_or_default();
                let place =
                    first.metadata.namespace.clone().map_or(name.clone(), |space| format!("{space}/{name}"));
                let finalizers = first.metadata.finalizers.clone().unwrap_or_default().join(", ");
                Ok(Some((
                    format!(
                        "{} of {plural} {} still there",
                        count(left.len(), "object"),
                        if left.len() == 1 { "is" } else { "are" }
                    ),
                    format!("{place} waits for its finalizers ({finalizers}); does the operator run?"),
                )))
            })
            .await?;
        }
        tell(format!("{plural}: {} deleted", count(instances.len(), "object")));
        remove(crd, tell).await?;
    }
    // The rights last but for the account: a pod that still stops may need them.
    let rest = objects.iter().rev().filter(|object| {
        !kind(object).ends_with("WebhookConfiguration")
            && !["CustomResourceDefinition", "Namespace"].contains(&kind(object).as_str())
    });
    for object in rest {
        remove(object, tell).await?;
    }
    for object in objects.iter().filter(|object| kind(object) == "Namespace") {
        tell(format!("{} stays: others may use it", named(object)));
    }
    Ok(())
}

/// Refuses if a ClusterRoleBinding of this name gives its rights to an account in another namespace: it is that of
/// another installation, which would lose them.
async fn not_elsewhere(cluster: &Cluster, objects: &[Value]) -> Result<(), InstallError> {
    for binding in objects.iter().filter(|object| object["kind"] == "ClusterRoleBinding") {
        let Some(found) = cluster.get(binding).await? else { continue };
        let namespace = |subjects: &Value| subjects[0]["namespace"].as_str().map(str::to_owned);
        let (ours, theirs) = (namespace(&binding["subjects"]), namespace(&found.data["subjects"]));
        if let Some(theirs) = theirs.filter(|theirs| Some(theirs) != ours.as_ref()) {
            return Err(InstallError::Elsewhere { binding: named(binding), theirs });
        }
    }
    Ok(())
}

/// Refuses, before anything is applied, if an object's namespace neither exists nor is among the objects.
async fn namespaces_exist(cluster: &Cluster, objects: &[Value]) -> Result<(), InstallError> {
    let mut known: BTreeSet<&str> = objects
        .iter()
        .filter(|object| object["kind"] == "Namespace")
        .filter_map(|object| object["metadata"]["name"].as_str())
        .collect();
    for object in objects {
        let Some(name) = object["metadata"]["namespace"].as_str().filter(|name| known.insert(name)) else {
            continue;
        };
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        if cluster.get(&namespace).await?.is_none() {
            return Err(InstallError::NoNamespace { namespace: name.to_owned(), object: named(object) });
        }
    }
    Ok(())
}

/// Waits until `left` gives nothing; it gives what is not so yet, and the detail.
async fn until(
    limit: Duration,
    tell: &mut impl FnMut(String),
    mut left: impl AsyncFnMut() -> Result<Option<(String, String)>, InstallError>,
) -> Result<(), InstallError> {
    let begun = Instant::now();
    let mut told = None;
    while let Some((what, detail)) = left().await? {
        if begun.elapsed() >= limit {
            return Err(InstallError::Late { what, limit, detail });
        }
        let waiting = format!("waiting: {what}: {detail}");
        if begun.elapsed() >= TELL_AFTER && told.as_ref() != Some(&waiting) {
            tell(waiting.clone());
            told = Some(waiting);
        }
        sleep(POLL).await;
    }
    Ok(())
}
