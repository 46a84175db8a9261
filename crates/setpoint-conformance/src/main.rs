//! `setpoint-conformance`: records the answers of a server to the cases, or compares them with what is recorded.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use setpoint_clock::Entropy;
use setpoint_conformance::{ClientAuthority, NotYet, Server, Suite, Trust, check, record, verdict};

/// Cases of Kubernetes API behaviour, as data.
#[derive(Parser)]
#[command(name = "setpoint-conformance")]
struct Cli {
    /// The folder with cases, recordings and volatile.yaml.
    #[arg(long, default_value = "conformance", global = true)]
    folder: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Sends the cases to a server and records its answers.
    Record(Target),
    /// Sends the cases to a server and compares its answers with the recorded ones.
    Check {
        #[command(flatten)]
        target: Target,
        /// A file of cases that are expected to fail.
        #[arg(long)]
        not_yet: Option<PathBuf>,
        /// One line for each case that differs, without the differences.
        #[arg(long)]
        brief: bool,
    },
    /// Counts the cases of each topic.
    List,
    /// Writes a new authority of client certificates: its certificate for the server's --client-ca-file, its key for --client-ca-key.
    ClientCa {
        /// Where the certificate goes.
        certificate: PathBuf,
        /// Where the key goes.
        key: PathBuf,
    },
}

#[derive(Args)]
struct Target {
    /// The server's URL, such as https://127.0.0.1:6443.
    #[arg(long)]
    server: String,
    /// A bearer token of a member of system:masters.
    #[arg(long, env = "TOKEN", hide_env_values = true)]
    token: String,
    /// A PEM file with the certificate that signed the server's; without it, any certificate is accepted.
    #[arg(long)]
    ca: Option<PathBuf>,
    /// The key of an authority of client certificates that the server trusts, made by `client-ca`; without it, steps that show a
    /// certificate cannot be sent.
    #[arg(long)]
    client_ca_key: Option<PathBuf>,
    /// Only cases whose `topic/case` contains this.
    #[arg(long, default_value = "")]
    only: String,
}

impl Target {
    fn connect(&self) -> Result<Server, Box<dyn std::error::Error>> {
        let trust = self.ca.clone().map_or(Trust::Anything, Trust::File);
        let server = Server::new(&self.server, self.token.as_str(), &trust)?;
        Ok(match &self.client_ca_key {
            Some(path) => server.with_clients(ClientAuthority::from_key(&fs::read_to_string(path)?)?),
            None => server,
        })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match act(Cli::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("setpoint-conformance: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn act(cli: Cli) -> Result<bool, Box<dyn std::error::Error>> {
    let suite = Suite::load(&cli.folder)?;
    // Names of this run: a server may have seen others.
    let run = Entropy::from_system().uuid()[..4].to_owned();
    match cli.command {
        Command::List => {
            for topic in &suite.topics {
                println!("{:4} {}", topic.cases.len(), topic.name);
            }
            println!("{:4} cases", suite.select("").count());
            Ok(true)
        }
        Command::ClientCa { certificate, key } => {
            let authority = ClientAuthority::new()?;
            fs::write(certificate, authority.pem())?;
            fs::write(key, authority.key_pem())?;
            Ok(true)
        }
        Command::Record(target) => {
            let broken = record(&target.connect()?, &suite, &cli.folder, &target.only, &run).await?;
            for line in &broken {
                eprintln!("{line}");
            }
            println!(
                "{} cases recorded, {} could not be",
                suite.select(&target.only).count() - broken.len(),
                broken.len()
            );
            Ok(broken.is_empty())
        }
        Command::Check { target, not_yet, brief } => {
            let reports = check(&target.connect()?, &suite, &cli.folder, &target.only, &run).await?;
            let not_yet = not_yet.map_or_else(|| Ok(NotYet::default()), |path| NotYet::load(&path))?;
            for report in reports.iter().filter(|report| !report.passed()) {
                if brief {
                    println!("{}", report.name);
                } else {
                    println!("{report}");
                }
            }
            let results: BTreeMap<String, bool> =
                reports.iter().map(|report| (report.name.clone(), report.passed())).collect();
            let wrong = verdict(&results, &not_yet);
            println!(
                "{} of {} cases pass",
                results.values().filter(|passed| **passed).count(),
                results.len()
            );
            for line in &wrong {
                println!("{line}");
            }
            Ok(wrong.is_empty())
        }
    }
}
