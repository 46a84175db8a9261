//! What the tests of a suite used of an operator's rights, together: each writes it into a folder when its operator stops, since test
//! programs and threads know nothing of each other.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use setpoint::Operator;

use crate::env::EnvError;
use crate::rights::{Right, granted, unused};

/// The environment variable that names the folder.
const FOLDER: &str = "SETPOINT_TEST_RIGHTS";
/// The operator of single reconciles, whose controllers may be anybody's.
pub(crate) const SINGLE: &str = "reconcile-once";

/// The folder that `SETPOINT_TEST_RIGHTS` names, if it does.
fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).filter(|name| !name.is_empty()).map(PathBuf::from)
}

/// Notes what `operator` has used, where the suite is watched.
pub(crate) fn note(operator: &str, used: &BTreeSet<Right>) {
    let Some(folder) = folder() else { return };
    if let Err(error) = write(&folder, operator, used) {
        eprintln!("{FOLDER}: {error}");
    }
}

fn write(folder: &Path, operator: &str, used: &BTreeSet<Right>) -> std::io::Result<()> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let lines: Vec<_> =
        used.iter().map(|Right { group, resource, verb }| format!("{group} {resource} {verb}\n")).collect();
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join(format!("{operator}.{}.{number}", std::process::id())), lines.concat())
}

/// The rights that `operator` declares and that no test of the suite has used, in words; but for those of the resources in `except`
/// (`pods/eviction`, `statefulsets.apps`).
///
/// The tests write what they use into the folder of `SETPOINT_TEST_RIGHTS`, so this is asked after them, for instance by a test that
/// is ignored otherwise:
///
/// ```no_run
/// # fn operator() -> setpoint::Operator { setpoint::Operator::new("web") }
/// #[test]
/// #[ignore = "after the others"]
/// fn every_right_is_used() {
///     let unused = setpoint_test::unused_rights(&operator(), &[]).unwrap();
///     assert!(unused.is_empty(), "{unused:#?}");
/// }
/// ```
///
/// ```console
/// export SETPOINT_TEST_RIGHTS=$(mktemp -d)
/// cargo test && cargo test every_right_is_used -- --ignored
/// ```
///
/// # Errors
/// When the variable is not set, or no test has run an operator of this name.
pub fn unused_rights(operator: &Operator, except: &[&str]) -> Result<Vec<String>, EnvError> {
    let folder = folder().ok_or_else(|| {
        EnvError::Suite(format!(
            "{FOLDER} names no folder: set it to an empty one for the tests and for this question"
        ))
    })?;
    unused_in(&folder, operator, except)
}

fn unused_in(folder: &Path, operator: &Operator, except: &[&str]) -> Result<Vec<String>, EnvError> {
    let failed = |source| EnvError::Machine { what: format!("read {}", folder.display()), source };
    let mut used = BTreeSet::new();
    let mut of_operator = false;
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_stem().and_then(|name| Path::new(name).file_stem()).unwrap_or_default();
        if name != operator.name() && name != SINGLE {
            continue;
        }
        of_operator = true;
        for line in std::fs::read_to_string(&path).map_err(failed)?.lines() {
            let mut words = line.split(' ').map(str::to_owned);
            if let (Some(group), Some(resource), Some(verb)) = (words.next(), words.next(), words.next()) {
                used.insert(Right { group, resource, verb });
            }
        }
    }
    if !of_operator {
        return Err(EnvError::Suite(format!(
            "no test has run {} with {FOLDER}={}: run the suite with it first",
            operator.name(),
            folder.display()
        )));
    }
    let except = except.iter().map(|resource| (*resource).to_owned()).collect();
    Ok(unused(&granted(operator), &used, &except))
}

#[cfg(test)]
mod tests {
    use setpoint::k8s_openapi::api::core::v1::{ConfigMap, Secret};
    use setpoint::{Action, Context, Controller, Reconciler, Result, Verb};

    use super::*;

    struct Web;

    impl Reconciler for Web {
        type Object = ConfigMap;

        async fn reconcile(&self, _: std::sync::Arc<ConfigMap>, _: &Context<ConfigMap>) -> Result<Action> {
            Ok(Action::await_change())
        }
    }

    fn right(resource: &str, verb: &str) -> BTreeSet<Right> {
        BTreeSet::from([Right { group: String::new(), resource: resource.to_owned(), verb: verb.to_owned() }])
    }

    #[test]
    fn what_all_tests_together_used_counts() {
        let folder = tempfile::tempdir().unwrap();
        let controller = Controller::new(Web).uses::<Secret>(&[Verb::Create, Verb::Delete]);
        let operator = Operator::new("web.v1").controller(controller);
        let unused = |except: &[&str]| unused_in(folder.path(), &operator, except);
        let error = unused(&[]).unwrap_err().to_string();
        assert!(error.starts_with("no test has run web.v1 with SETPOINT_TEST_RIGHTS="), "{error}");
        write(folder.path(), "another", &right("secrets", "delete")).unwrap();
        assert!(unused(&[]).is_err());
        write(folder.path(), "web.v1", &right("configmaps", "watch")).unwrap();
        write(folder.path(), "web.v1", &right("configmaps/status", "patch")).unwrap();
        assert_eq!(
            unused(&[]).unwrap(),
            ["never used is create and patch on secrets", "never used is delete on secrets"]
        );
        assert_eq!(unused(&["secrets"]).unwrap(), Vec::<String>::new());
        write(folder.path(), SINGLE, &right("secrets", "delete")).unwrap();
        write(folder.path(), "web.v1", &right("secrets", "create")).unwrap();
        assert_eq!(unused(&[]).unwrap(), Vec::<String>::new());
    }
}
