//! What a kube-apiserver v1.37.2 answered, replayed: the JSON files beside this one hold its recorded answers.

mod apply;
mod causes;
mod patches;
#[cfg(feature = "cel")]
mod ratchet;
#[cfg(feature = "cel")]
mod rules;
mod validation;
