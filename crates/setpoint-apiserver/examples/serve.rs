//! A bare API server on a socket: no controllers and no nodes. Prints its kubeconfig.
//!
//! `cargo run -p setpoint-apiserver --example serve -- 127.0.0.1:6443 > kubeconfig`

use std::error::Error;

use setpoint_apiserver::ApiServer;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let api = ApiServer::builder()
        .service_accounts(std::env::args().any(|argument| argument == "--service-accounts"))
        .build();
    let serving = api.serve(std::net::TcpListener::bind(address)?)?;
    println!("{}", api.kubeconfig(&format!("https://{}", serving.address()))?);
    std::future::pending::<()>().await;
    Ok(())
}
