//! Who makes a request.

use std::collections::BTreeMap;

/// Who makes a request, as authentication found out: what Kubernetes calls user info.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// User name, such as `jane` or `system:serviceaccount:NAMESPACE:NAME`.
    pub user: String,
    /// Unique id, empty when there is none; for a service account the uid of its object.
    pub uid: String,
    /// Groups, such as `system:masters`.
    pub groups: Vec<String>,
    /// Anything else that authentication knows, such as the pod that a token belongs to.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// A user of these groups and of `system:authenticated`.
    pub fn new(user: impl Into<String>, groups: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut groups: Vec<String> = groups.into_iter().map(Into::into).collect();
        let authenticated = "system:authenticated";
        if !groups.iter().any(|group| group == authenticated) {
            groups.push(authenticated.to_owned());
        }
        Self { user: user.into(), groups, ..Self::default() }
    }

    /// The administrator that the cluster's own kubeconfig names: member of `system:masters`, for whom no rule is checked.
    pub fn admin() -> Self {
        Self::new("kubernetes-admin", ["system:masters"])
    }

    /// The service account of this namespace and name.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        Self { uid: uid.to_owned(), ..Self::new(format!("system:serviceaccount:{namespace}:{name}"), groups) }
    }

    /// Whether this user is in the group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}
