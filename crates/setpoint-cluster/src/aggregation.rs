//! Rules of aggregated ClusterRoles: those of the roles that the selectors pick, written into the role, as kube-controller-manager does
//! (`pkg/controller/clusterroleaggregation`).

use std::sync::Arc;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use setpoint::kube::ResourceExt;
use setpoint::kube::core::ObjectMeta;
use setpoint::{Action, Context, Controller, Key, Lookup, Reconciler, Result, Verb};

use crate::labels;

/// Keeps `rules` of ClusterRoles that have an `aggregationRule`.
pub(crate) struct RoleAggregation;

impl RoleAggregation {
    pub(crate) fn controller() -> Controller<Self> {
        Controller::new(Self)
            .named("clusterrole-aggregation")
            .field_manager("clusterrole-aggregation-controller")
            .watches::<ClusterRole>(aggregated)
            .uses::<ClusterRole>(&[Verb::Create, Verb::Patch])
    }
}

/// The roles that a change may be for: each that aggregates, since a label can come and go.
fn aggregated(old: Option<&ClusterRole>, new: Option<&ClusterRole>, lookup: &Lookup) -> Vec<Key> {
    let says = |role: Option<&ClusterRole>| role.map(|role| (role.rules.clone(), role.labels().clone()));
    if says(old) == says(new) {
        return Vec::new();
    }
    let roles = lookup.list::<ClusterRole>(None);
    let aggregating = roles.iter().filter(|role| role.aggregation_rule.is_some());
    aggregating.map(|role| Key::cluster(role.name_any())).collect()
}

impl Reconciler for RoleAggregation {
    type Object = ClusterRole;

    async fn reconcile(&self, role: Arc<ClusterRole>, cx: &Context<ClusterRole>) -> Result<Action> {
        if let Some(rules) = gather(&role, &cx.list_all::<ClusterRole>().await?)
            && rules.as_slice() != role.rules.as_deref().unwrap_or_default()
        {
            let metadata = ObjectMeta { name: role.metadata.name.clone(), ..ObjectMeta::default() };
            let rules = (!rules.is_empty()).then_some(rules);
            cx.apply(ClusterRole { metadata, rules, ..ClusterRole::default() }).unowned().adopt().await?;
        }
        Ok(Action::await_change())
    }
}

/// The rules of all roles that `role` selects, each once: selector by selector, and by the names of the roles. `roles` are in
/// that order. `None`: it selects none on its own account.
fn gather(role: &ClusterRole, roles: &[Arc<ClusterRole>]) -> Option<Vec<PolicyRule>> {
    let selectors = role.aggregation_rule.as_ref()?.cluster_role_selectors.iter().flatten();
    let mut rules: Vec<PolicyRule> = Vec::new();
    for selector in selectors {
        let selected = roles.iter().filter(|other| {
            other.metadata.name != role.metadata.name
                && labels::matches(selector, other.metadata.labels.as_ref())
        });
        for rule in selected.flat_map(|other| other.rules.iter().flatten()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    Some(rules)
}
