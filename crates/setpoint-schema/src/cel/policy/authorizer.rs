//! `authorizer`: whether the user of the request, or a service account, may do something
//! (`k8s.io/apiserver/pkg/cel/library/authz.go`).

use std::fmt;
use std::sync::Arc;

use kube_cel::cel::extractors::This;
use kube_cel::cel::objects::Opaque;
use kube_cel::cel::{Context, ExecutionError, Value};

/// What is asked of an authorizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Namespace and name of the service account that is asked about, or the user of the request.
    pub service_account: Option<(String, String)>,
    /// A path that is no resource.
    pub path: Option<String>,
    /// API group.
    pub group: String,
    /// Plural name.
    pub resource: String,
    /// Subresource, or empty.
    pub subresource: String,
    /// Namespace, or empty for all of them or none.
    pub namespace: String,
    /// Name, or empty.
    pub name: String,
    /// Verb.
    pub verb: String,
}

/// What an authorizer answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether it may be done.
    pub allowed: bool,
    /// Why.
    pub reason: String,
}

/// Decides who may do what.
pub trait Authorizer: Send + Sync {
    /// Decides about one check.
    fn check(&self, check: &Check) -> Decision;

    /// The resource that the request itself is about: what `authorizer.requestResource` asks of.
    fn request_resource(&self) -> Check;
}

/// A value of the interpreter: a question that is being put together, or its answer.
#[derive(Clone)]
struct Asking {
    authorizer: Arc<dyn Authorizer>,
    check: Check,
    decision: Option<Decision>,
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asking")
            .field("check", &self.check)
            .field("decision", &self.decision)
            .finish_non_exhaustive()
    }
}

impl PartialEq for Asking {
    fn eq(&self, other: &Self) -> bool {
        self.check == other.check && self.decision == other.decision
    }
}

impl Eq for Asking {}

impl Opaque for Asking {
    fn runtime_type_name(&self) -> &'static str {
        "kubernetes.authorization.Authorizer"
    }
}

impl From<Asking> for Value {
    fn from(asking: Asking) -> Self {
        Self::Opaque(Arc::new(asking))
    }
}

/// The names that stand for an authorizer.
pub(super) fn roots(authorizer: &Arc<dyn Authorizer>) -> [(&'static str, Value); 2] {
    let of = |check| Asking { authorizer: Arc::clone(authorizer), check, decision: None };
    // A field of an opaque value cannot be selected: the expression is rewritten to the second name.
    [
        ("authorizer", of(Check::default()).into()),
        (REQUEST_RESOURCE, of(authorizer.request_resource()).into()),
    ]
}

/// What `authorizer.requestResource` becomes before it runs.
pub(super) const REQUEST_RESOURCE: &str = "@authorizer.requestResource";

/// Changes a question.
fn with(this: &Value, function: &str, change: impl FnOnce(&mut Asking)) -> Result<Value, ExecutionError> {
    let Value::Opaque(opaque) = this else { return Err(ExecutionError::NoSuchOverload) };
    let asking = opaque.downcast_ref::<Asking>();
    let asking = asking.ok_or_else(|| ExecutionError::not_supported_as_method(function, this.clone()))?;
    let mut asking = asking.clone();
    change(&mut asking);
    Ok(asking.into())
}

fn answer(this: &Value) -> Result<Decision, ExecutionError> {
    let Value::Opaque(opaque) = this else { return Err(ExecutionError::NoSuchOverload) };
    let decision = opaque.downcast_ref::<Asking>().and_then(|asking| asking.decision.clone());
    decision.ok_or(ExecutionError::NoSuchOverload)
}

fn text(text: String) -> Value {
    Value::String(Arc::new(text))
}

/// Adds the functions of authorizers.
pub(super) fn add_functions(context: &mut Context<'_>) {
    macro_rules! part {
        ($name:literal, $field:ident) => {
            context.add_function($name, |This(this): This<Value>, value: Arc<String>| {
                with(&this, $name, |asking| asking.check.$field = value.as_str().to_owned())
            });
        };
    }
    part!("group", group);
    part!("resource", resource);
    part!("subresource", subresource);
    part!("namespace", namespace);
    part!("name", name);
    context.add_function("path", |This(this): This<Value>, path: Arc<String>| {
        with(&this, "path", |asking| asking.check.path = Some(path.as_str().to_owned()))
    });
    context.add_function(
        "serviceAccount",
        |This(this): This<Value>, namespace: Arc<String>, name: Arc<String>| {
            with(&this, "serviceAccount", |asking| {
                asking.check.service_account =
                    Some((namespace.as_str().to_owned(), name.as_str().to_owned()));
            })
        },
    );
    context.add_function("check", |This(this): This<Value>, verb: Arc<String>| {
        with(&this, "check", |asking| {
            asking.check.verb.clone_from(&verb);
            asking.decision = Some(asking.authorizer.check(&asking.check));
        })
    });
    context.add_function("allowed", |This(this): This<Value>| answer(&this).map(|decision| decision.allowed));
    context.add_function("reason", |This(this): This<Value>| {
        answer(&this).map(|decision| text(decision.reason))
    });
    context.add_function("errored", |This(this): This<Value>| answer(&this).map(|_| false));
    context.add_function("error", |This(this): This<Value>| answer(&this).map(|_| text(String::new())));
}
