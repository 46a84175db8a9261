use std::fmt;
use std::sync::Arc;

use kube::Resource as _;
use serde_json::{Map, Value, json};

use crate::context::object;
use crate::diff::diff;
use crate::{
    Action, Cleanup, Context, Controller, Error, FieldChange, Key, Kind, Object, Patch, Reconciler, Result,
};

/// Appended to the name that [`handlers`] is given: the annotation with what was handled last.
const LAST_HANDLED: &str = "-last-handled";

/// What is done when an object is created, changed or deleted: the style of frameworks with callbacks, as a thin
/// layer on the same loop. Made a controller by [`handlers`].
///
/// Each method runs until it succeeds, as a reconcile does, and may run again after a crash in the middle: at least
/// once, never in parallel for one object. Changes that come while it runs are one update afterwards, from the state
/// that was handled to the state there is. What nobody tells, such as a child that was deleted, it doesn't see: a
/// [`Reconciler`] does, so prefer that where children are to be kept as they should be.
pub trait Handlers: Send + Sync + 'static {
    /// The kind that is handled.
    type Object: Object;

    /// The object is new, or was there before the operator was.
    fn on_create(
        &self,
        object: Arc<Self::Object>,
        cx: &Context<Self::Object>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// The object differs from what was handled last.
    fn on_update(
        &self,
        update: Update<Self::Object>,
        cx: &Context<Self::Object>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// The object is being deleted; it goes when this succeeds. Nothing is done unless overridden.
    fn on_delete(
        &self,
        _object: Arc<Self::Object>,
        _cx: &Context<Self::Object>,
    ) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }
}

/// How an object has changed since it was handled last. Its status, and what the API server keeps in the metadata, do
/// not count: only spec, labels, annotations and whatever else a user writes.
#[derive(Clone, Debug)]
pub struct Update<K> {
    /// As it was handled last, with the present metadata but for labels and annotations.
    pub old: Arc<K>,
    /// As it is.
    pub new: Arc<K>,
    /// The fields that differ, by path.
    pub diff: Vec<FieldChange>,
}

/// A controller that calls `handlers`. `name` is a qualified name, such as `example.com/dns`: objects carry it as
/// finalizer, and what was handled last in the annotation `example.com/dns-last-handled`.
pub fn handlers<H: Handlers>(
    handlers: H,
    name: impl Into<String>,
) -> Controller<impl Cleanup<Object = H::Object>>
where
    <H::Object as kube::Resource>::DynamicType: Default,
{
    let name = name.into();
    let annotation = format!("{name}{LAST_HANDLED}");
    Controller::new(Handled { handlers, annotation }).finalizer(name)
}

/// Handlers as a reconciler. Made by [`handlers`].
struct Handled<H> {
    handlers: H,
    annotation: String,
}

impl<H: Handlers> Reconciler for Handled<H> {
    type Object = H::Object;

    async fn reconcile(&self, new: Arc<H::Object>, cx: &Context<H::Object>) -> Result<Action> {
        let kind = &cx.object_ref().kind;
        let whole = serde_json::to_value(&*new)?;
        let now = essence(&whole);
        match self.last(&*new)? {
            Some(last) if last == now => return Ok(Action::await_change()),
            Some(last) => match object::<H::Object>(kind, &restored(&whole, &last).to_string()) {
                Ok(old) => {
                    let update = Update { old, new: Arc::clone(&new), diff: diff(&last, &now) };
                    self.handlers.on_update(update, cx).await?;
                }
                Err(problem) => {
                    tracing::warn!(%problem, "what was handled last does not fit the type any more: handled as new");
                    self.handlers.on_create(Arc::clone(&new), cx).await?;
                }
            },
            None => self.handlers.on_create(Arc::clone(&new), cx).await?,
        }
        self.handled(&*new, &now, cx).await?;
        Ok(Action::await_change())
    }
}

impl<H: Handlers> Cleanup for Handled<H> {
    async fn cleanup(&self, object: Arc<H::Object>, cx: &Context<H::Object>) -> Result<Action> {
        self.handlers.on_delete(object, cx).await?;
        Ok(Action::await_change())
    }
}

impl<H: Handlers> Handled<H> {
    /// What was handled last, if anything was.
    fn last(&self, object: &H::Object) -> Result<Option<Value>> {
        let Some(text) = object.meta().annotations.as_ref().and_then(|all| all.get(&self.annotation)) else {
            return Ok(None);
        };
        let wrong = |error| {
            let annotation = &self.annotation;
            Error::msg(format!(
                "annotation {annotation}: {error}; remove it to have the object handled as new"
            ))
            .terminal()
        };
        serde_json::from_str(text).map(Some).map_err(wrong)
    }

    /// Notes that `now` was handled.
    async fn handled(&self, object: &H::Object, now: &Value, cx: &Context<H::Object>) -> Result<()> {
        let metadata =
            json!({ "uid": object.meta().uid, "annotations": { &*self.annotation: now.to_string() } });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let (kind, key): (&Kind, Key) = (&cx.object_ref().kind, Key::of(object));
        cx.access().patch(kind, &key, None, &patch).await.map(drop)
    }
}

/// What a user writes of an object.
fn essence(whole: &Value) -> Value {
    let mut essence = whole.clone();
    let Some(fields) = essence.as_object_mut() else { return Value::Null };
    fields.retain(|name, value| {
        !["apiVersion", "kind", "status", "metadata"].contains(&name.as_str()) && !value.is_null()
    });
    let mut metadata = Map::new();
    if let Some(labels) = whole.pointer("/metadata/labels").filter(|labels| !labels.is_null()) {
        metadata.insert("labels".to_owned(), labels.clone());
    }
    let annotations = whole.pointer("/metadata/annotations").and_then(Value::as_object);
    let own: Map<String, Value> = annotations
        .into_iter()
        .flatten()
        .filter(|(name, _)| !name.ends_with(LAST_HANDLED))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if !own.is_empty() {
        metadata.insert("annotations".to_owned(), Value::Object(own));
    }
    if !metadata.is_empty() {
        fields.insert("metadata".to_owned(), Value::Object(metadata));
    }
    essence
}

/// `whole` with what a user wrote as it was `then`.
fn restored(whole: &Value, then: &Value) -> Value {
    let mut metadata = whole["metadata"].clone();
    if let Some(metadata) = metadata.as_object_mut() {
        for part in ["labels", "annotations"] {
            match then.pointer(&format!("/metadata/{part}")) {
                Some(value) => metadata.insert(part.to_owned(), value.clone()),
                None => metadata.remove(part),
            };
        }
    }
    let mut old = then.clone();
    if let Some(fields) = old.as_object_mut() {
        fields.insert("metadata".to_owned(), metadata);
        if let Some(status) = whole.get("status") {
            fields.insert("status".to_owned(), status.clone());
        }
    }
    old
}

impl<H> fmt::Debug for Handled<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handled").field("annotation", &self.annotation).finish_non_exhaustive()
    }
}
