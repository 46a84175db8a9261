//! The plugin `ResourceQuota`: what a namespace may have in all (`k8s.io/apiserver/pkg/admission/plugin/resourcequota`).
//!
//! ```text
//! new object ─▶ usage ─▶ quotas of the namespace that count it: status.used + usage ≤ status.hard? ─▶ status.used
//! ```
//!
//! As upstream, admission only charges. What quotas allow gets into their status, and what is gone is given back, by a controller
//! ([`crate::ApiServer::quota_status`] reckons for it).

mod counted;
mod scopes;

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use serde_json::{Value, json};

use self::counted::Counted;
use super::{Attributes, Operation};
use crate::builtin::Amounts;
use crate::builtin::Quantity;
use crate::catalog::Resource;
use crate::object::fields;
use crate::registry::Registry;
use crate::status::{Result, Status};
use crate::store::{Change, EventKind, Expect, Key};

const QUOTAS: &str = "resourcequotas";

/// How long what is written is gathered before quotas are reckoned again: that looks at everything in a namespace.
const GATHER: Duration = Duration::from_millis(200);

/// Whether a write may change how much of a quota is used. As upstream, of the changes of objects only those of three kinds do.
fn counts(storage: &str, kind: EventKind) -> bool {
    let changing = matches!(storage, "pods" | "services" | "persistentvolumeclaims");
    storage != "events" && (kind != EventKind::Modified || changing)
}

/// Resources that quotas do not count.
fn is_ignored(resource: &Resource) -> bool {
    match resource.group.as_str() {
        "" => matches!(resource.plural.as_str(), "bindings" | "events"),
        "events.k8s.io" => resource.plural == "events",
        "authentication.k8s.io" | "authorization.k8s.io" => true,
        _ => false,
    }
}

impl Registry {
    /// Charges a write to the quotas of its namespace.
    ///
    /// # Errors
    /// 403 when a quota has no room for it, or does not say yet what it has.
    pub(super) fn charge_quotas(&self, request: &Attributes<'_>, object: &Value) -> Result<()> {
        let resource = request.resource();
        let place = request.place;
        if !resource.namespaced || !request.subresource.is_empty() || is_ignored(resource) {
            return Ok(());
        }
        let counted = Counted::of(resource);
        let handled = match request.operation {
            Operation::Create => true,
            Operation::Update => counted.changes(),
            Operation::Delete | Operation::Connect => false,
        };
        let quotas = self.store.snapshot(QUOTAS);
        let mut quotas = quotas.range(&place.namespace, None).peekable();
        if !handled || quotas.peek().is_none() {
            return Ok(());
        }
        let _charging = self.charging.lock();
        let mut concerned = Vec::new();
        for (key, quota) in quotas {
            let hard = Amounts::of(&quota.value["status"]["hard"]);
            let names: Vec<&str> =
                hard.0.keys().map(String::as_str).filter(|name| counted.has(name)).collect();
            if names.is_empty() || !scopes::include(&quota.value["spec"], resource, object) {
                continue;
            }
            if let Err(why) = counted.constrain(&names, object) {
                return Err(request.forbidden(object, &format!("failed quota: {}: {why}", key.name)));
            }
            let used = Amounts::of(&quota.value["status"]["used"]);
            if names.iter().any(|name| used.get(name).is_none()) {
                let why = format!("status unknown for quota: {}, resources: {}", key.name, names.join(","));
                return Err(request.forbidden(object, &why));
            }
            concerned.push(key.clone());
        }
        let mut usage = counted.usage(object);
        if let Some(old) = request.old {
            usage = usage.beyond(&counted.usage(old));
        }
        let usage = usage.only(|name| usage.get(name).is_some_and(|quantity| quantity.nanos() != 0));
        if concerned.is_empty() || usage.0.is_empty() {
            return Ok(());
        }
        for key in &concerned {
            self.charge(request, object, key, &usage, false)?;
        }
        if !request.dry_run() {
            for key in &concerned {
                self.charge(request, object, key, &usage, true)?;
            }
            // What is charged may still not come about.
            self.store.tell(&place.namespace);
        }
        Ok(())
    }

    /// Quotas, by namespace and name, of whose use there may be another amount than their status says: whenever something was written that
    /// they may count, all that comes at about the same time once.
    pub(crate) fn quotas_to_reckon(self: &Arc<Self>) -> impl Stream<Item = (String, String)> + Send + use<> {
        let listener = self.store.listen(counts);
        let registry = Arc::clone(self);
        stream::unfold((registry, listener), |(registry, listener)| async {
            listener.some().await;
            tokio::time::sleep(GATHER).await;
            let quotas = registry.store.snapshot(QUOTAS);
            let in_namespace = |namespace: String| {
                let found = quotas.range(&namespace, None);
                found.map(|(key, _)| (key.namespace.clone(), key.name.clone())).collect::<Vec<_>>()
            };
            let concerned: Vec<_> = listener.take().into_iter().flat_map(in_namespace).collect();
            Some((stream::iter(concerned), (registry, listener)))
        })
        .flatten()
    }

    /// Checks that one quota has room, and adds to what is used of it.
    fn charge(
        &self,
        request: &Attributes<'_>,
        object: &Value,
        key: &Key,
        usage: &Amounts,
        write: bool,
    ) -> Result<()> {
        loop {
            // One that has gone in the meantime limits nothing.
            let Some(stored) = self.store.get(QUOTAS, key) else { return Ok(()) };
            let status = &stored.value["status"];
            let (hard, used) = (Amounts::of(&status["hard"]), Amounts::of(&status["used"]));
            let requested = usage.only(|name| hard.get(name).is_some());
            let mut new = used.clone();
            new.add(&requested);
            let exceeded = |name: &str| {
                let over = |(hard, new): (_, Quantity)| new.nanos() > Quantity::nanos(hard);
                requested.get(name).is_some() && hard.get(name).zip(new.get(name)).is_some_and(over)
            };
            let over = requested.only(exceeded);
            if !over.0.is_empty() {
                return Err(request.forbidden(
                    object,
                    &format!(
                        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
                        key.name,
                        over.print(),
                        used.only(exceeded).print(),
                        hard.only(exceeded).print()
                    ),
                ));
            }
            if !write || requested.0.is_empty() {
                return Ok(());
            }
            let mut quota: Value = Value::clone(&stored.value);
            fields(&mut quota["status"]).insert("used".to_owned(), new.to_value());
            if let Some(resource) = self.catalog.find("", "v1", QUOTAS) {
                self.own_status_as_server(&resource, &stored.value, &mut quota);
            }
            let expect = Expect::Revision(stored.revision);
            if self.store.write(&QUOTAS.into(), key, expect, Change::Put(quota)).is_ok() {
                return Ok(());
            }
        }
    }

    /// The status that a quota should have: what its spec allows, and what there is of it (upstream: the quota controller).
    pub(crate) fn quota_status(&self, namespace: &str, name: &str) -> Result<Value> {
        let missing = || Status::not_found(crate::status::Subject { group: "", kind: QUOTAS, name });
        let quota = self.store.get(QUOTAS, &Key::new(namespace, name)).ok_or_else(missing)?;
        let spec = &quota.value["spec"];
        let hard = Amounts::of(&spec["hard"]);
        let mut used = Amounts::default();
        let mut seen: Vec<Arc<str>> = Vec::new();
        for resource in
            self.catalog.all().iter().filter(|resource| resource.namespaced && !is_ignored(resource))
        {
            let counted = Counted::of(resource);
            let names: Vec<&str> =
                hard.0.keys().map(String::as_str).filter(|name| counted.has(name)).collect();
            if names.is_empty() || seen.contains(&resource.storage) {
                continue;
            }
            seen.push(Arc::clone(&resource.storage));
            for name in &names {
                used.count(*name, 0);
            }
            let snapshot = self.store.snapshot(&resource.storage);
            for (_, stored) in snapshot.range(namespace, None) {
                let object = &stored.decode();
                if scopes::include(spec, resource, object) {
                    used.add(&counted.usage(object).only(|name| names.contains(&name)));
                }
            }
        }
        Ok(json!({"hard": spec["hard"], "used": used.to_value()}))
    }
}
