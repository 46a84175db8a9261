use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::{Action, Context, Error, Object, Reconciler, Result};

/// A function as a [`Reconciler`], with the signature that kube-rs's `Controller` takes: `async fn(Arc<K>, Arc<C>) ->
/// Result<Action, E>`, where the action is [`crate::Action`], which has kube's constructors. Made by [`reconciler`].
pub struct Function<K, C, F> {
    reconcile: F,
    context: Arc<C>,
    of: PhantomData<fn(K)>,
}

/// `reconcile` as a reconciler, given `context` each time: what moves an operator from kube-rs without a rewrite. Its
/// error policy becomes the queue's back-off; [`Error::after`] says another delay, as kube's policy does. What it writes
/// through a client of its own is real even in a dry run, needs its rights declared with [`crate::Controller::uses`], and is seen by the caches
/// when its events arrive.
///
/// ```
/// # use std::sync::Arc;
/// # use setpoint::{Action, Controller, k8s_openapi::api::core::v1::ConfigMap, reconciler};
/// # struct Data { client: kube::Client }
/// # #[derive(Debug)] struct MyError;
/// # impl std::fmt::Display for MyError { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("mine") } }
/// # impl std::error::Error for MyError {}
/// async fn reconcile(config: Arc<ConfigMap>, data: Arc<Data>) -> Result<Action, MyError> {
///     // As before.
/// #   let _ = (config, &data.client);
///     Ok(Action::await_change())
/// }
/// # fn controller(client: kube::Client) -> setpoint::Controller<impl setpoint::Reconciler> {
/// Controller::new(reconciler(reconcile, Arc::new(Data { client })))
/// # }
/// ```
pub fn reconciler<K, C, E, F, R>(reconcile: F, context: Arc<C>) -> Function<K, C, F>
where
    F: Fn(Arc<K>, Arc<C>) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Action, E>> + Send,
    E: Into<Error>,
{
    Function { reconcile, context, of: PhantomData }
}

impl<K, C, E, F, R> Reconciler for Function<K, C, F>
where
    K: Object,
    C: Send + Sync + 'static,
    F: Fn(Arc<K>, Arc<C>) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Action, E>> + Send,
    E: Into<Error>,
{
    type Object = K;

    async fn reconcile(&self, object: Arc<K>, _: &Context<K>) -> Result<Action> {
        (self.reconcile)(object, Arc::clone(&self.context)).await.map_err(Into::into)
    }
}

impl<K, C, F> fmt::Debug for Function<K, C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").finish_non_exhaustive()
    }
}
