//! The demo: a real Redis cluster, operated, broken and healed, on a Kubernetes inside one process.

#![allow(clippy::large_futures, reason = "each step runs once, on the main task")]

mod explain;
mod failure;
mod picture;
mod report;
mod rest;
mod scenario;
mod servers;
mod stage;
mod writer;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use failure::Failure;
use report::Narrator;
use scenario::{NAMESPACE, Walk};
use stage::Stage;

/// Walks a RedisCluster through its life on an embedded Kubernetes: real servers, real faults.
#[derive(Debug, Parser)]
#[command(name = "setpoint-demo", version)]
struct Options {
    /// Where the figures go.
    #[arg(long, value_name = "FILE", default_value = "target/demo.json")]
    report: PathBuf,

    /// Also draw what the terminal showed as an SVG picture.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,

    /// Before the faults, wait until nothing changes and then measure memory, CPU and writes of cluster and operator for so
    /// many seconds.
    #[arg(long, value_name = "SECONDS")]
    rest: Option<u64>,

    /// What to log, in the syntax of tracing's filters.
    #[arg(long, value_name = "FILTER", default_value = "off", env = "SETPOINT_LOG")]
    log: String,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let filter = match tracing_subscriber::EnvFilter::try_new(&options.log) {
        Ok(filter) => filter,
        Err(problem) => {
            eprintln!("setpoint-demo: --log {}: {problem}", options.log);
            return ExitCode::from(2);
        }
    };
    // No colours in files and pipes.
    let colours =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("setpoint-demo: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Says whether every step did what it should. An error is what kept the demo from beginning or from telling.
fn run(options: &Options) -> Result<bool, Failure> {
    // Not after all the work.
    report::check_writable(&options.report, "--report")?;
    if let Some(file) = &options.picture {
        report::check_writable(file, "--picture")?;
    }
    let version = stage::redis_version()?;
    let place = stage::enter()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Cluster(error.to_string()))?;
    runtime.block_on(async {
        let mut narrator = Narrator::new();
        let stage = narrator.step("start a Kubernetes in this process", Stage::start(place)).await;
        if let Ok(mut stage) = stage
            && walk(options, &mut narrator, &mut stage, version).await.is_err()
        {
            explain::explain(&stage.client(), NAMESPACE).await;
        }
        let ok = narrator.finish(&options.report)?;
        if let Some(file) = &options.picture {
            let svg = picture::svg("make demo", narrator.transcript());
            std::fs::write(file, svg).map_err(|source| Failure::file(file, source))?;
        }
        Ok(ok)
    })
}

async fn walk(
    options: &Options,
    narrator: &mut Narrator,
    stage: &mut Stage,
    version: String,
) -> Result<(), Failure> {
    narrator.step("install the Redis operator", stage.install_operator()).await?;
    let walk = Walk { client: stage.client(), version, stage };
    walk.all(narrator, options.rest).await
}
