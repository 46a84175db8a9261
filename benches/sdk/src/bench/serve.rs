use std::io::Write;
use std::net::TcpListener;

use serde_json::{Value, json};
use setpoint_apiserver::ApiServer;

use super::Failure;

/// Is an API server without controllers and nodes, as kube-apiserver is one, until the process is killed. Prints one line:
/// its address and a token.
pub(crate) fn serve() -> Result<(), Failure> {
    let refused = |error: &dyn std::fmt::Display| Failure::Refused(error.to_string());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(Failure::io("make a runtime"))?.block_on(async {
        let api = ApiServer::builder().build();
        let listener = TcpListener::bind("127.0.0.1:0").map_err(Failure::io("listen"))?;
        let serving = api.serve(listener).map_err(Failure::io("serve"))?;
        let kubeconfig = api.kubeconfig("https://localhost").map_err(|error| refused(&error))?;
        let kubeconfig: Value = serde_json::from_str(&kubeconfig).map_err(|error| refused(&error))?;
        let token = &kubeconfig["users"][0]["user"]["token"];
        let mut out = std::io::stdout().lock();
        let line = json!({ "address": serving.address(), "token": token });
        writeln!(out, "{line}").and_then(|()| out.flush()).map_err(Failure::io("print"))?;
        drop(out);
        std::future::pending::<()>().await;
        Ok(())
    })
}
