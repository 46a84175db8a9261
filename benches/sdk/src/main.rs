//! The SDK beside a plain kube-rs Controller: the same operator in each, in turn, against API servers of one sort.
//!
//! ```text
//! main ─▶ Cluster: an API server in processes of its own ─▶ Operator: with-setpoint or with-kube, in a process of its own
//!            │ embedded: this program again, with --serve      │ requests and reconciles: counted there, see Gauge
//!            └ kube-apiserver and etcd                         └ processor time and memory: the kernel's books
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints its result")]

mod bench;
// The test kit's own: as a library it would bring the built-in controllers along, which take minutes to compile.
#[path = "../../../crates/setpoint-test/src/control_plane.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod control_plane;
#[path = "../../../crates/setpoint-test/src/wait.rs"]
#[allow(dead_code, reason = "as above")]
mod wait;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use bench::Failure;

/// Measures an operator of the SDK and one of kube-rs.
#[derive(Debug, Parser)]
#[command(name = "bench-sdk")]
struct Options {
    /// The API server: the embedded one, or kube-apiserver and etcd from the folder that KUBEBUILDER_ASSETS names.
    #[arg(long, value_enum, default_value_t = Server::Embedded)]
    server: Server,

    /// How often each measurement runs with each operator.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// How many objects are created, touched and changed in a round.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..))]
    objects: u32,

    /// How many families there are when memory and new changes are measured; restarts are on half of them.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..))]
    families: u32,

    /// Measure only these.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Workload>,

    /// Measure only these operators.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Contender::Setpoint, Contender::Slim, Contender::Kube])]
    operators: Vec<Contender>,

    /// A table, or one JSON object.
    #[arg(long, value_enum, default_value_t = Output::Plain)]
    output: Output,

    /// Be an API server on a free port, and say where.
    #[arg(long, hide = true)]
    serve: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Server {
    Embedded,
    Binaries,
}

/// Who wrote the operator's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Contender {
    /// Setpoint.
    Setpoint,
    /// Setpoint, with children of which only metadata and what is read are kept.
    Slim,
    /// kube-rs's Controller.
    Kube,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Plain,
    Json,
}

/// A group of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// Creates, touches and changes, and the memory without objects.
    Changes,
    /// Restarts on half of the families.
    Restart,
    /// The first pass over all families: memory for each, and how soon a new change starts meanwhile.
    Families,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = if options.serve { bench::serve() } else { run(&options) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("bench-sdk: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let samples = runtime.map_err(Failure::io("make a runtime"))?.block_on(bench::measure(options))?;
    match options.output {
        Output::Plain => print!("{}", bench::table(&samples)),
        Output::Json => println!("{}", bench::json(&samples)),
    }
    Ok(())
}
