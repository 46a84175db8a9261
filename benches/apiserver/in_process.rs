use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use setpoint_apiserver::{ApiServer, Identity};
use tower::Service;

use crate::creates::{config_map, path};
use crate::failure::Failure;
use crate::memory;
use crate::samples::now;

/// How long a run takes.
const SECONDS: f64 = 2.0;

/// Creates ConfigMaps through the service of a new server for this many seconds, one after another in one thread. Seconds are those of the
/// processor: the thread never waits, but others may want its core.
pub(crate) fn creates_per_second(seconds: f64) -> Result<f64, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Failure::io("make a runtime"))?.block_on(async {
        let api = ApiServer::builder().build();
        let mut service = api.service(Identity::admin());
        let path = path("default");
        let used = || memory::processor_time(std::process::id());
        let before = used();
        let end = now() + Duration::from_secs_f64(seconds);
        let mut made = 0_u32;
        while !made.is_multiple_of(64) || now() < end {
            let body = Bytes::from(config_map(&format!("c-{made:07}")));
            let request = Request::post(&path)
                .header("content-type", "application/json")
                .header("user-agent", "bench")
                .body(Full::new(body))
                .map_err(|error| Failure::Refused(error.to_string()))?;
            let Ok(response) = service.call(request).await;
            if response.status() != 201 {
                return Err(Failure::Refused(format!("a create in this process: {}", response.status())));
            }
            made += 1;
        }
        Ok(f64::from(made) / used().saturating_sub(before).as_secs_f64())
    })
}

/// The same in a new process.
pub(crate) fn in_new_process() -> Result<f64, Failure> {
    let program = std::env::current_exe().map_err(Failure::io("find this program"))?;
    let output = Command::new(program).args(["--in-process", &SECONDS.to_string()]).output();
    let output = output.map_err(Failure::io("start this program again"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.trim().parse().map_err(|_| Failure::Refused(String::from_utf8_lossy(&output.stderr).into_owned()))
}
