//! The cluster's names for a program of the machine that runs inside the sandbox.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::network::DNS_ADDRESS;

/// What the C library's resolver reads.
const CONFIGURATION: &str = "/etc/resolv.conf";

/// Where daemons of the machine would answer in place of the resolver: systemd-resolved (nss-resolve) and nscd.
const DAEMONS: [&str; 2] = ["/run/systemd/resolve/io.systemd.Resolve", "/run/nscd/socket"];

/// Lets a command that will be started inside the sandbox resolve names as a pod of the namespace `default` does: it gets a mount
/// namespace of its own, in which `/etc/resolv.conf` is that of the cluster. The file is written to `folder`, which must exist
/// as long as the command runs.
///
/// # Errors
/// When the machine has no `/etc/resolv.conf` to put it over, or `folder` cannot be written.
pub fn use_cluster_names(command: &mut Command, folder: &Path) -> io::Result<()> {
    let named = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}"))
    };
    let source = folder.join("resolv.conf");
    fs::write(&source, resolv_conf()).map_err(named(&source))?;
    // The command may take another user, and this process may have a careful umask.
    fs::set_permissions(&source, fs::Permissions::from_mode(0o644)).map_err(named(&source))?;
    // It is often a link.
    let configuration = fs::canonicalize(CONFIGURATION).map_err(named(Path::new(CONFIGURATION)))?;
    let mut mounts = vec![(c_path(&source)?, c_path(&configuration)?)];
    for daemon in DAEMONS.iter().filter_map(|path| fs::canonicalize(path).ok()) {
        // No socket any more: the libraries then go on to the resolver.
        mounts.push((c_path(Path::new("/dev/null"))?, c_path(&daemon)?));
    }
    let enter = move || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        for (source, target) in &mounts {
            let none = None::<&std::ffi::CStr>;
            mount(Some(source.as_c_str()), target.as_c_str(), none, MsFlags::MS_BIND, none)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes only system calls, with texts that were allocated before.
    unsafe { command.pre_exec(enter) };
    Ok(())
}

/// As the kubelet writes it for a pod of the namespace `default`.
fn resolv_conf() -> String {
    format!(
        "search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver {DNS_ADDRESS}\noptions ndots:5\n"
    )
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}
