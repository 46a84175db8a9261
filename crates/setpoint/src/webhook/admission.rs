//! Defaulting and validating: the traits that authors implement, and what stands between them and a review.

use std::marker::PhantomData;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::patch;
use super::request::{Asked, Operation};
use super::review::{Review, refusing, status};
use crate::{Error, Kind, Object, Result};

/// Fills in what a user left open, before the object is validated and stored.
///
/// ```
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// use setpoint::{Defaulter, Result, Review};
///
/// struct Page;
///
/// impl Defaulter for Page {
///     type Object = ConfigMap;
///     async fn default(&self, page: &mut ConfigMap, _: &mut Review) -> Result<()> {
///         page.data.get_or_insert_default().entry("title".to_owned()).or_insert("Untitled".to_owned());
///         Ok(())
///     }
/// }
/// ```
///
/// Only what the defaulter changes is patched: fields that the type doesn't know stay as they are. It may be
/// asked twice about one request, so it must change nothing the second time.
pub trait Defaulter: Send + Sync + 'static {
    /// The kind it is for.
    type Object: Object;
    /// The operations it is asked about. Default: create and update.
    const OPERATIONS: &'static [Operation] = &[Operation::Create, Operation::Update];

    /// Changes `object`. It may find faults, too.
    ///
    /// # Errors
    /// When the defaults cannot be told: the request is refused as an internal error.
    fn default(
        &self,
        object: &mut Self::Object,
        review: &mut Review,
    ) -> impl Future<Output = Result<()>> + Send;
}

/// Decides whether an object may become what a user wants. What is wrong goes into the [`Review`], field by field.
///
/// ```
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// use setpoint::{Result, Review, Validator};
///
/// struct Page;
///
/// impl Validator for Page {
///     type Object = ConfigMap;
///     async fn validate_create(&self, page: &ConfigMap, review: &mut Review) -> Result<()> {
///         if page.data.is_none() {
///             review.required("data", "a page needs a text");
///         }
///         Ok(())
///     }
/// }
/// ```
///
/// Not asked are updates of an object that is being deleted which change nothing but its metadata: a finalizer can
/// be taken from an object that has become invalid meanwhile.
pub trait Validator: Send + Sync + 'static {
    /// The kind it is for.
    type Object: Object;
    /// The operations it is asked about. Default: create and update; add [`Operation::Delete`] for
    /// [`validate_delete`](Self::validate_delete).
    const OPERATIONS: &'static [Operation] = &[Operation::Create, Operation::Update];

    /// Whether `object` may be created.
    ///
    /// # Errors
    /// When it cannot be told: the request is refused as an internal error.
    fn validate_create(
        &self,
        object: &Self::Object,
        review: &mut Review,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Whether `old` may become `new`. Default: what may be created may also be come to by a change.
    ///
    /// # Errors
    /// As for [`validate_create`](Self::validate_create).
    fn validate_update(
        &self,
        old: &Self::Object,
        new: &Self::Object,
        review: &mut Review,
    ) -> impl Future<Output = Result<()>> + Send {
        let _ = old;
        self.validate_create(new, review)
    }

    /// Whether `object` may be deleted. Default: it may.
    ///
    /// # Errors
    /// As for [`validate_create`](Self::validate_create).
    fn validate_delete(
        &self,
        object: &Self::Object,
        review: &mut Review,
    ) -> impl Future<Output = Result<()>> + Send {
        let (_, _) = (object, review);
        async { Ok(()) }
    }
}

/// What decides about a review, whatever its kind: gives the `response`.
pub(super) trait Admit: Send + Sync {
    fn admit(self: Arc<Self>, asked: Asked) -> BoxFuture<'static, Value>;
}

pub(super) struct Validating<V> {
    pub(super) validator: V,
    pub(super) kind: Kind,
}

pub(super) struct Defaulting<D> {
    pub(super) defaulter: D,
    pub(super) kind: Kind,
}

/// Why a webhook could not decide.
enum Failure {
    /// The object is none of the kind.
    Unfit(String),
    /// The author's code failed.
    Undecided(Error),
}

impl Failure {
    fn status(&self) -> Value {
        match self {
            Self::Unfit(message) => status(400, "BadRequest", message),
            Self::Undecided(error) => status(500, "InternalError", &error.to_string()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Undecided(error)
    }
}

impl<V: Validator> Validating<V> {
    async fn decide(&self, object: Value, old: Value, review: &mut Review) -> Result<(), Failure> {
        match review.request().operation {
            Operation::Create | Operation::Connect => {
                let object = decode(object, &self.kind)?;
                self.validator.validate_create(&object, review).await?;
            }
            Operation::Update => {
                let new = decode(object, &self.kind)?;
                match decode(old, &self.kind) {
                    Ok(old) => self.validator.validate_update(&old, &new, review).await?,
                    // What is stored is no such object, and this change would cure it.
                    Err(_) => self.validator.validate_create(&new, review).await?,
                }
            }
            Operation::Delete => {
                let object = decode(old, &self.kind)?;
                self.validator.validate_delete(&object, review).await?;
            }
        }
        Ok(())
    }
}

impl<D: Defaulter> Defaulting<D> {
    /// The patch that sets the defaults.
    async fn patch(&self, original: &Value, review: &mut Review) -> Result<Vec<Value>, Failure> {
        let mut object: D::Object = decode(original.clone(), &self.kind)?;
        let before = serde_json::to_value(&object).map_err(Error::from)?;
        self.defaulter.default(&mut object, review).await?;
        let after = serde_json::to_value(&object).map_err(Error::from)?;
        Ok(patch::changes(original, &before, &after))
    }
}

impl<V: Validator> Admit for Validating<V> {
    fn admit(self: Arc<Self>, asked: Asked) -> BoxFuture<'static, Value> {
        async move {
            let name = name(&asked);
            let Asked { request, object, old } = asked;
            let mut review = Review::new(request);
            if is_release(&object, &old) {
                return review.response(&self.kind, &name);
            }
            let uid = review.request().uid.clone();
            match self.decide(object, old, &mut review).await {
                Ok(()) => review.response(&self.kind, &name),
                Err(failure) => refusing(&uid, &failure.status()),
            }
        }
        .boxed()
    }
}

impl<D: Defaulter> Admit for Defaulting<D> {
    fn admit(self: Arc<Self>, asked: Asked) -> BoxFuture<'static, Value> {
        async move {
            let name = name(&asked);
            let Asked { request, object: original, .. } = asked;
            let mut review = Review::new(request);
            let uid = review.request().uid.clone();
            let patch = match self.patch(&original, &mut review).await {
                Ok(patch) => patch,
                Err(failure) => return refusing(&uid, &failure.status()),
            };
            let refused = review.refused();
            let mut response = review.response(&self.kind, &name);
            if !patch.is_empty() && !refused {
                response["patchType"] = json!("JSONPatch");
                response["patch"] = json!(STANDARD.encode(Value::Array(patch).to_string()));
            }
            response
        }
        .boxed()
    }
}

fn decode<T: DeserializeOwned>(object: Value, kind: &Kind) -> Result<T, Failure> {
    serde_json::from_value(object)
        .map_err(|error| Failure::Unfit(format!("the object does not fit {kind}: {error}")))
}

/// The name in messages: that of the request, which an object with a generated name does not have yet.
fn name(asked: &Asked) -> String {
    let metadata =
        |object: &Value| object.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned);
    if asked.request.name.is_empty() {
        metadata(&asked.object).or_else(|| metadata(&asked.old)).unwrap_or_default()
    } else {
        asked.request.name.clone()
    }
}

/// Whether an object that is being deleted changes in nothing but its metadata.
fn is_release(object: &Value, old: &Value) -> bool {
    let without_metadata = |object: &Value| -> Option<Map<String, Value>> {
        let mut object = object.as_object()?.clone();
        object.remove("metadata");
        Some(object)
    };
    object.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null())
        && without_metadata(object).is_some_and(|new| Some(new) == without_metadata(old))
}

/// A closure that is a validator of creations and updates.
pub(super) struct ValidateWith<K, F>(pub(super) F, pub(super) PhantomData<fn(K)>);

impl<K, F> Validator for ValidateWith<K, F>
where
    K: Object,
    F: Fn(&K, &mut Review) + Send + Sync + 'static,
{
    type Object = K;

    async fn validate_create(&self, object: &K, review: &mut Review) -> Result<()> {
        (self.0)(object, review);
        Ok(())
    }
}

/// A closure that is a defaulter.
pub(super) struct DefaultWith<K, F>(pub(super) F, pub(super) PhantomData<fn(K)>);

impl<K, F> Defaulter for DefaultWith<K, F>
where
    K: Object,
    F: Fn(&mut K, &mut Review) + Send + Sync + 'static,
{
    type Object = K;

    async fn default(&self, object: &mut K, review: &mut Review) -> Result<()> {
        (self.0)(object, review);
        Ok(())
    }
}
