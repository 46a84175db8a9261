//! The `setpoint` command.

mod dev;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Write, try and test Kubernetes operators.
#[derive(Debug, Parser)]
#[command(name = "setpoint", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run an embedded Kubernetes cluster until Ctrl-C, or around one command.
    Dev(dev::Options),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Dev(options) => dev::run(&options),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("setpoint: {error}");
            ExitCode::FAILURE
        }
    }
}
