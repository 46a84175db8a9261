use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use kube::Client;
use parking_lot::Mutex;

use crate::runtime::RuntimeId;
use crate::{Action, Context, Error, Object, Reconciler, Result, Runtime};

/// A function as a [`Reconciler`], with the signature that kube-rs's `Controller` takes: `async fn(Arc<K>, Arc<C>) ->
/// Result<Action, E>`, where the action is [`crate::Action`], which has kube's constructors. Made by [`reconciler`].
struct Function<K, C, F> {
    reconcile: F,
    data: Box<dyn Fn(Client) -> C + Send + Sync>,
    /// What was made for a runtime; another one, as in the next call of a test, has another client.
    made: Mutex<Option<(RuntimeId, Arc<C>)>>,
    of: PhantomData<fn(K)>,
}

/// `reconcile` as a reconciler, given each time what `data` makes of the operator's client once: what moves an operator from kube-rs
/// without a rewrite. Its error policy becomes the queue's back-off; [`Error::after`] says another delay, as kube's policy does.
///
/// The client is [`Context::client`]: with its deadlines, metrics and fence, and in a dry run (`plan`) its writes are refused. What it writes needs
/// its rights declared with [`crate::Controller::uses`], and is seen by the caches when its events arrive. A client that the function makes
/// by itself is none of the SDK's business: it writes even in a dry run.
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
/// # fn controller() -> setpoint::Controller<impl setpoint::Reconciler> {
/// Controller::new(reconciler(reconcile, |client| Data { client }))
/// # }
/// ```
pub fn reconciler<K, C, E, F, R>(
    reconcile: F,
    data: impl Fn(Client) -> C + Send + Sync + 'static,
) -> impl Reconciler<Object = K>
where
    K: Object,
    C: Send + Sync + 'static,
    F: Fn(Arc<K>, Arc<C>) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Action, E>> + Send,
    E: Into<Error>,
{
    Function { reconcile, data: Box::new(data), made: Mutex::new(None), of: PhantomData }
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

    async fn reconcile(&self, object: Arc<K>, cx: &Context<K>) -> Result<Action> {
        let data = self.data_for(&cx.access().runtime);
        (self.reconcile)(object, data).await.map_err(Into::into)
    }
}

impl<K, C, F> Function<K, C, F> {
    fn data_for(&self, runtime: &Runtime) -> Arc<C> {
        let mut made = self.made.lock();
        if let Some((of, data)) = &*made
            && *of == runtime.id()
        {
            return Arc::clone(data);
        }
        let data = Arc::new((self.data)(runtime.client().clone()));
        *made = Some((runtime.id(), Arc::clone(&data)));
        data
    }
}

impl<K, C, F> fmt::Debug for Function<K, C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").finish_non_exhaustive()
    }
}
