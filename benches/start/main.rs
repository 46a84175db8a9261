//! How long things take to start, from nothing to the first answer.
//!
//! ```text
//! cargo bench ─▶ for each case: many runs ─▶ median, fastest, slowest ─▶ a table, or JSON
//!                   │ in a test: this program again, once for each run: nothing is warm
//!                   └ programs: target/release/setpoint; kube-apiserver and etcd where KUBEBUILDER_ASSETS has them
//! ```
#![allow(clippy::print_stdout, reason = "a program that prints its result")]

mod case;
mod embedded;
mod failure;
mod first_child;
mod measure;
mod program;
mod report;
mod upstream;
#[path = "../../crates/setpoint/examples/website.rs"]
#[allow(dead_code, reason = "the example is a program: its main is not called here")]
mod website;

use std::process::ExitCode;

use case::Case;
use clap::{Parser, ValueEnum};
use failure::Failure;
use report::{Measured, Report};

/// Measures how fast an embedded API server, the setpoint command and a test of an operator start.
#[derive(Debug, Parser)]
#[command(name = "start")]
struct Options {
    /// How often each case runs. A real kube-apiserver runs a fifth as often.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,

    /// A table, or one JSON object.
    #[arg(long, value_enum, default_value_t = Output::Plain)]
    output: Output,

    /// Run one case once in this process and print how many nanoseconds it took.
    #[arg(long, value_name = "CASE", hide = true)]
    once: Option<Case>,

    /// What `cargo bench` says to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Plain,
    Json,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("start: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    if let Some(case) = options.once {
        println!("{}", case.once()?.as_nanos());
        return Ok(());
    }
    let program = program::build()?;
    let mut report = Report::default();
    for case in Case::ALL {
        let runs = if case == Case::KubeApiserver { options.runs.div_ceil(5) } else { options.runs };
        match case.unavailable() {
            Some(reason) => report.skip(case, reason),
            None => report.add(Measured::of(case, &measure::times(runs, || case.run(&program))?)),
        }
    }
    match options.output {
        Output::Plain => print!("{}", report.table()),
        Output::Json => println!("{}", report.json()),
    }
    Ok(())
}
