//! Who may do what.

use std::path::Path;

use crate::dev::{Dev, contains, text};

#[test]
fn access() {
    let Some(dev) = Dev::start() else { return };
    assert_eq!(dev.ok("auth can-i '*' '*'").trim(), "yes");
    dev.ok("create serviceaccount reader");
    dev.ok("create role reader --verb=get,list --resource=configmaps");
    dev.ok("create rolebinding reader --role=reader --serviceaccount=default:reader");
    let reader = "--as=system:serviceaccount:default:reader";
    assert_eq!(dev.ok(&format!("auth can-i list configmaps {reader}")).trim(), "yes");
    let refused = dev.run(&format!("auth can-i delete configmaps {reader}"), "");
    assert_eq!(text(&refused.stdout).trim(), "no");
    let token = dev.ok("create token reader");
    let with_token = dev.run(&format!("get secrets --token={}", token.trim()), "");
    // The kubeconfig's own token wins or loses by kubectl's rules; a reader must never see secrets.
    if !with_token.status.success() {
        contains(
            &text(&with_token.stderr),
            &[
                "secrets is forbidden: User \"system:serviceaccount:default:reader\" cannot list resource \"secrets\" in API group \"\" in the namespace \"default\"",
            ],
        );
    }
    contains(
        &dev.fails(&format!("get secrets {reader}"), ""),
        &[
            "secrets is forbidden: User \"system:serviceaccount:default:reader\" cannot list resource \"secrets\"",
        ],
    );
}

#[test]
fn the_kubeconfig_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let Some(dev) = Dev::start() else { return };
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dev.path("kubeconfig")), 0o600);
}

#[test]
fn what_one_may_do() {
    let Some(dev) = Dev::start() else { return };
    contains(&dev.ok("auth can-i --list"), &["*.*", "[*]", "/healthz"]);
    let alice = dev.ok("auth can-i --list --as=alice");
    contains(&alice, &["selfsubjectaccessreviews.authorization.k8s.io"]);
    assert!(!alice.contains("*.*"), "{alice}");
    contains(&dev.ok("auth whoami"), &["system:masters"]);
    contains(&dev.ok("auth whoami --as=alice"), &["alice", "system:authenticated"]);
    contains(
        &dev.fails("get pods --as=alice", ""),
        &[
            "pods is forbidden: User \"alice\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"",
        ],
    );
    contains(&dev.ok("version"), &["Server Version: v1.37"]);
    contains(&dev.ok("cluster-info"), &["control plane"]);
}
