//! The kernel's switches that keep namespaces from users, and what to do about them: a pure function.

use std::fs;

use nix::errno::Errno;

/// What to do where no switch explains a refusal.
pub(super) const ELSEWHERE: &str =
    "run as root outside of a container, or in a container with CAP_SYS_ADMIN and CAP_NET_ADMIN";

/// The switches' text in `/proc/sys`; empty where the kernel does not have one.
#[derive(Debug, Default)]
pub(super) struct Switches {
    /// Debian's `kernel.unprivileged_userns_clone`.
    user_namespaces: String,
    /// Ubuntu's `kernel.apparmor_restrict_unprivileged_userns`: user namespaces can be made, but nothing in them.
    apparmor: String,
    /// `user.max_user_namespaces`.
    limit: String,
}

impl Switches {
    pub(super) fn read() -> Self {
        let text = |path: &str| fs::read_to_string(format!("/proc/sys/{path}")).unwrap_or_default();
        Self {
            user_namespaces: text("kernel/unprivileged_userns_clone"),
            apparmor: text("kernel/apparmor_restrict_unprivileged_userns"),
            limit: text("user/max_user_namespaces"),
        }
    }

    /// Which switch explains that the kernel refused something with `error` (none = unknown), and what to do.
    /// `privileged` processes need no user namespace.
    pub(super) fn cause(&self, privileged: bool, error: Option<Errno>) -> Option<&'static str> {
        let denied = !privileged && matches!(error, None | Some(Errno::EPERM | Errno::EACCES));
        let full = matches!(error, None | Some(Errno::ENOSPC | Errno::EUSERS));
        if denied && self.user_namespaces.trim() == "0" {
            return Some("run as root, or allow it: sysctl -w kernel.unprivileged_userns_clone=1");
        }
        if denied && self.apparmor.trim() == "1" {
            return Some(
                "run as root, or allow it: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
            );
        }
        if full && self.limit.trim() == "0" {
            return Some("run as root, or allow it: sysctl -w user.max_user_namespaces=10000");
        }
        match error {
            Some(Errno::ENOSPC | Errno::EUSERS) => Some(
                "the limits in /proc/sys/user (max_user_namespaces and its neighbours) are reached: raise them",
            ),
            Some(Errno::EINVAL | Errno::ENOSYS) => Some("this kernel is built without them: use another"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(switches: &Switches, privileged: bool, error: Errno) -> &'static str {
        switches.cause(privileged, Some(error)).unwrap_or("unknown")
    }

    #[test]
    fn the_switch_that_is_off_is_named() {
        let debian =
            Switches { user_namespaces: "0\n".into(), limit: "96365\n".into(), ..Switches::default() };
        assert!(cause(&debian, false, Errno::EPERM).ends_with("kernel.unprivileged_userns_clone=1"));
        let off = Switches { limit: "0\n".into(), ..Switches::default() };
        assert!(cause(&off, false, Errno::ENOSPC).ends_with("user.max_user_namespaces=10000"));
        let reached = Switches { limit: "5\n".into(), ..Switches::default() };
        assert!(cause(&reached, false, Errno::ENOSPC).contains("are reached"));
        assert!(cause(&reached, true, Errno::ENOSPC).contains("are reached"));
    }

    #[test]
    fn apparmor_is_named_wherever_it_shows() {
        let ubuntu = Switches { apparmor: "1\n".into(), limit: "96365\n".into(), ..Switches::default() };
        // The user mapping is refused with EPERM, mounts with EACCES; `ip` tells only a text.
        for error in [Some(Errno::EPERM), Some(Errno::EACCES), None] {
            let cause = ubuntu.cause(false, error).unwrap();
            assert!(cause.ends_with("kernel.apparmor_restrict_unprivileged_userns=0"), "{cause}");
        }
        assert_eq!(ubuntu.cause(true, None), None, "root is not restricted by it");
        let allowed = Switches { apparmor: "0\n".into(), ..Switches::default() };
        assert_eq!(allowed.cause(false, None), None);
    }
}
