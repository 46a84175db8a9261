//! Sums of resources: names with quantities (`k8s.io/apiserver/pkg/quota/v1`, `k8s.io/component-helpers/resource`).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::Quantity;

/// Quantities by the names of resources.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Amounts(pub(crate) BTreeMap<String, Quantity>);

impl Amounts {
    /// Reads a resource list; what is no quantity is left out, since validation refuses it.
    pub(crate) fn of(list: &Value) -> Self {
        let entries = list.as_object().into_iter().flatten();
        let read = |(name, value): (&String, &Value)| Some((name.clone(), Quantity::parse(value.as_str()?)?));
        Self(entries.filter_map(read).collect())
    }

    pub(crate) fn to_value(&self) -> Value {
        let entry = |(name, quantity): (&String, &Quantity)| (name.clone(), quantity.to_string().into());
        Value::Object(self.0.iter().map(entry).collect::<Map<_, _>>())
    }

    pub(crate) fn get(&self, name: &str) -> Option<Quantity> {
        self.0.get(name).copied()
    }

    pub(crate) fn set(&mut self, name: impl Into<String>, quantity: Quantity) {
        self.0.insert(name.into(), quantity);
    }

    pub(crate) fn count(&mut self, name: impl Into<String>, count: u64) {
        self.set(name, Quantity::whole(count));
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (name, quantity) in &other.0 {
            let sum = self.get(name).map_or(*quantity, |own| own.plus(*quantity));
            self.set(name.clone(), sum);
        }
    }

    fn at_least(&mut self, other: &Self) {
        for (name, quantity) in &other.0 {
            if self.get(name).is_none_or(|own| own.nanos() < quantity.nanos()) {
                self.set(name.clone(), *quantity);
            }
        }
    }

    /// What there is more of than in `other`.
    pub(crate) fn beyond(&self, other: &Self) -> Self {
        let more = self.0.iter().filter_map(|(name, quantity)| {
            let rest = other.get(name).map_or(*quantity, |other| quantity.minus(other));
            (rest.nanos() > 0).then(|| (name.clone(), rest))
        });
        Self(more.collect())
    }

    /// Only the resources that `keep` wants.
    pub(crate) fn only(&self, keep: impl Fn(&str) -> bool) -> Self {
        let kept = self.0.iter().filter(|(name, _)| keep(name));
        Self(kept.map(|(name, quantity)| (name.clone(), *quantity)).collect())
    }

    /// `a=1,b=2`.
    pub(crate) fn print(&self) -> String {
        let entries: Vec<String> =
            self.0.iter().map(|(name, quantity)| format!("{name}={quantity}")).collect();
        entries.join(",")
    }
}

/// What the containers of a pod have as `requests` or `limits` together: those that run at once, or the largest of what runs
/// before them.
pub(crate) fn of_pod(pod: &Value, key: &str) -> Amounts {
    let spec = &pod["spec"];
    let mut sum = of_containers(spec, key);
    let whole = Amounts::of(&spec["resources"][key]);
    for (name, quantity) in whole.0 {
        sum.set(name, quantity);
    }
    let overhead = Amounts::of(&spec["overhead"]);
    // No limit plus something is no limit.
    sum.add(&overhead.only(|name| key == "requests" || sum.get(name).is_some()));
    sum
}

/// The same without what the pod itself says.
pub(crate) fn of_containers(spec: &Value, key: &str) -> Amounts {
    let containers = |list: &str| spec[list].as_array().into_iter().flatten();
    let of = |container: &Value| Amounts::of(&container["resources"][key]);
    let mut sum = Amounts::default();
    for container in containers("containers") {
        sum.add(&of(container));
    }
    // Those that always restart run beside everything that comes after them.
    let (mut beside, mut before) = (Amounts::default(), Amounts::default());
    for container in containers("initContainers") {
        let own = of(container);
        if container["restartPolicy"] == "Always" {
            sum.add(&own);
            beside.add(&own);
            before.at_least(&beside);
        } else {
            let mut now = own;
            now.add(&beside);
            before.at_least(&now);
        }
    }
    sum.at_least(&before);
    sum
}
