//! The embedded API server beside a real kube-apiserver with its etcd: the same requests, from the same client, in turn.
//!
//! ```text
//! main ─▶ contender: a server in processes of its own ─▶ workloads, over TLS connections that are kept ─▶ samples ─▶ report
//!            │ embedded: this program again, with --serve               boot · memory · creates · latency · fan-out · pages · watches
//!            └ kube-apiserver and etcd, where KUBEBUILDER_ASSETS has them
//! ```
//!
//! Both servers run all the time, and only the one that is measured is busy. The client writes and reads HTTP/1.1 by hand in one thread, so
//! that the servers are the bottleneck and not it.
#![allow(clippy::print_stdout, reason = "a program that prints its result")]

mod arrival;
mod bare;
mod boot;
mod connection;
mod contender;
mod creates;
#[path = "../start/failure.rs"]
mod failure;
mod fan_out;
mod in_process;
mod memory;
mod multiplexed;
mod pages;
mod report;
mod samples;
mod serve;
mod tls;
mod watches;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use crate::contender::Contender;
use crate::failure::Failure;
use crate::report::Report;
use crate::samples::{Measure, Samples};

/// Measures the embedded API server, side by side with kube-apiserver and etcd where KUBEBUILDER_ASSETS names a folder with them.
#[derive(Debug, Parser)]
#[command(name = "apiserver")]
struct Options {
    /// How often each measurement runs on each server.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// How many objects there are when memory and pages are measured.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..))]
    objects: u32,

    /// Leave kube-apiserver out.
    #[arg(long)]
    embedded_only: bool,

    /// Measure only these.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Workload>,

    /// A table, or one JSON object.
    #[arg(long, value_enum, default_value_t = Output::Plain)]
    output: Output,

    /// Be an API server on a free port, and say where. With a folder the objects are kept there.
    #[arg(long, hide = true, value_name = "FOLDER", num_args = 0..=1)]
    #[expect(clippy::option_option, reason = "how clap has an option whose value may be left out")]
    serve: Option<Option<PathBuf>>,

    /// Be the writer whose writes are measured beside the servers'.
    #[arg(long, hide = true)]
    bare: bool,

    /// Create ConfigMaps in this process for this many seconds and print how many a second.
    #[arg(long, hide = true, value_name = "SECONDS")]
    in_process: Option<f64>,

    /// What `cargo bench` says to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Plain,
    Json,
}

/// A group of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// Boot and memory at rest.
    Boot,
    /// Creates by 16 clients, and one at a time.
    Creates,
    /// One change to 1,000 watchers.
    FanOut,
    /// Memory for each object, and pages while a writer goes on.
    Pages,
    /// 2,000 idle watches.
    Watches,
    /// Creates without sockets.
    InProcess,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("apiserver: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    if let Some(folder) = &options.serve {
        return serve::serve(folder.as_deref());
    }
    if options.bare {
        return bare::serve();
    }
    if let Some(seconds) = options.in_process {
        println!("{}", in_process::creates_per_second(seconds)?);
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let samples = runtime.map_err(Failure::io("make a runtime"))?.block_on(measure(options))?;
    let report = Report::new(&samples);
    match options.output {
        Output::Plain => print!("{}", report.table()),
        Output::Json => println!("{}", report.json()),
    }
    Ok(())
}

async fn measure(options: &Options) -> Result<Samples, Failure> {
    let wanted = |workload| options.only.is_empty() || options.only.contains(&workload);
    let mut samples = Samples::default();
    let real = !options.embedded_only && contender::is_available();
    if wanted(Workload::InProcess) {
        for _ in 0..options.rounds {
            samples.add(contender::EMBEDDED, Measure::InProcess, in_process::in_new_process()?);
        }
    }
    if wanted(Workload::Boot) {
        boot::measure(options.rounds, real, &mut samples).await?;
    }
    let mut contenders = vec![Contender::embedded(None).await?.0];
    if real {
        contenders.push(Contender::kube_apiserver().await?.0);
    }
    for round in 0..options.rounds {
        if wanted(Workload::FanOut) {
            bare::measure(&mut samples).await?;
        }
        for contender in &contenders {
            if wanted(Workload::Creates) {
                creates::throughput(contender, round, &mut samples).await?;
                creates::latency(contender, round, &mut samples).await?;
            }
            if wanted(Workload::FanOut) {
                fan_out::measure(contender, round, &mut samples).await?;
            }
        }
    }
    drop(contenders);
    if wanted(Workload::Creates) {
        let folder = tempfile::tempdir().map_err(Failure::io("make a folder"))?;
        let durable = Contender::embedded(Some(folder.path())).await?.0;
        for round in 0..options.rounds {
            creates::throughput(&durable, round, &mut samples).await?;
            creates::latency(&durable, round, &mut samples).await?;
        }
    }
    if wanted(Workload::Pages) {
        // Each on a new server: what was measured before would be in its memory.
        pages::measure(&Contender::embedded(None).await?.0, options, &mut samples).await?;
        if real {
            pages::measure(&Contender::kube_apiserver().await?.0, options, &mut samples).await?;
        }
    }
    if wanted(Workload::Watches) {
        watches::measure(&Contender::embedded(None).await?.0, &mut samples).await?;
        if real {
            watches::measure(&Contender::kube_apiserver().await?.0, &mut samples).await?;
        }
    }
    Ok(samples)
}
