//! The embedded API server answers as the recorded kube-apiserver did, over HTTPS.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;

use setpoint_apiserver::{ApiServer, Identity};
use setpoint_conformance::{ClientAuthority, NotYet, Server, Suite, Trust, check, verdict};

#[tokio::test]
async fn the_embedded_server_passes_all_cases_but_those_of_not_yet() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let clients = ClientAuthority::new().unwrap();
    let api = ApiServer::builder().service_accounts(true).client_ca(clients.pem()).build();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let _serving = api.serve(listener).unwrap();
    let token = api.issue_token(Identity::admin()).unwrap();
    let server = Server::new(&url, token, &Trust::Pem(api.ca_pem().unwrap())).unwrap().with_clients(clients);

    let suite = Suite::load(&folder).unwrap();
    // While one works on a case: ONLY=topic/case cargo test -p setpoint-conformance
    let only = std::env::var("ONLY").unwrap_or_default();
    let reports = check(&server, &suite, &folder, &only, "t").await.unwrap();

    let results: BTreeMap<String, bool> =
        reports.iter().map(|report| (report.name.clone(), report.passed())).collect();
    let mut not_yet = NotYet::load(&folder.join("not-yet.txt")).unwrap();
    not_yet.keep(&only);
    let wrong = verdict(&results, &not_yet);
    let details: String = reports
        .iter()
        .filter(|report| !report.passed() && wrong.contains(&format!("{} fails", report.name)))
        .map(ToString::to_string)
        .collect();
    assert!(wrong.is_empty(), "{}\n{details}", wrong.join("\n"));
    assert!(!results.is_empty(), "no cases in {}", folder.display());
}
