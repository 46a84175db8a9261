use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use setpoint_apiserver::{ApiServer, Identity};

use crate::failure::Failure;

/// An API server without sockets, and its answer to one request.
pub(crate) async fn first_answer() -> Result<(), Failure> {
    let api = ApiServer::builder().build();
    let client = Client::new(api.service(Identity::admin()), "default");
    Api::<Namespace>::all(client).get("default").await?;
    Ok(())
}
