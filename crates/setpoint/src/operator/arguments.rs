use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use futures::future::{Either, select};
use kube::config::{KubeConfigOptions, Kubeconfig};
use setpoint_clock::Clock;
use setpoint_manifests::documents;

use super::cluster::Cluster;
use super::diagnosis::{self, chain};
use super::parts::Parts;
use super::signals::Signals;
use super::webhooks::Url;
use super::{Operator, OperatorError, manifests};
use crate::logs::{LogFormat, init_logs};
use crate::{Certificates, Election, Key, Scope, traces};

/// What every operator binary can do.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the operator against a cluster until SIGTERM or SIGINT
    Run(Run),
    /// Show what a reconcile of each object would change, and change nothing
    Plan(Plan),
    /// Write what installs the operator: CRDs, RBAC rules, Deployment
    Manifests(Manifests),
    /// Apply the manifests to a cluster
    Install(Install),
    /// Remove what install applied
    Uninstall(Uninstall),
}

/// Which cluster.
#[derive(Debug, Args)]
struct Connection {
    /// Kubeconfig file [default: KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

#[derive(Debug, Args)]
struct Watched {
    /// Namespaces to work in, separated by commas; all of them if empty
    #[arg(long, env = "WATCH_NAMESPACE", value_name = "NAMESPACES", value_parser = namespaces)]
    watch_namespaces: Option<Scope>,
}

/// A list of namespaces. Names that no namespace can have are refused here, before anything begins.
fn namespaces(list: &str) -> Result<Scope, String> {
    let scope = Scope::parse(list);
    if let Scope::Namespaces(names) = &scope {
        for name in names {
            if !setpoint_manifests::is_label(name) {
                return Err(format!(
                    "{name:?} is no name of a namespace: at most 63 lower-case letters, digits and '-', and a letter or digit at \
                     both ends"
                ));
            }
        }
    }
    Ok(scope)
}

#[derive(Debug, Args)]
struct Run {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    watched: Watched,
    /// Address of /metrics; 0 for none
    #[arg(long, env = "METRICS_BIND_ADDRESS", default_value = ":8080", value_name = "ADDRESS")]
    metrics_bind_address: String,
    /// Metrics over TLS, for those only who may read them [default: what the operator says]
    #[arg(long, env = "METRICS_SECURE", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    metrics_secure: Option<bool>,
    /// Address of /healthz and /readyz; 0 for none
    #[arg(long, env = "HEALTH_PROBE_BIND_ADDRESS", default_value = ":8081", value_name = "ADDRESS")]
    health_probe_bind_address: String,
    /// Address of the webhooks, if the operator has any; 0 for none
    #[arg(long, env = "WEBHOOK_BIND_ADDRESS", default_value = ":9443", value_name = "ADDRESS")]
    webhook_bind_address: String,
    /// Folder with tls.crt and tls.key for the webhooks and secure metrics; without those files the operator makes its own certificate
    #[arg(
        long,
        env = "WEBHOOK_CERT_DIR",
        default_value = "/tmp/k8s-webhook-server/serving-certs",
        value_name = "DIRECTORY"
    )]
    webhook_cert_dir: PathBuf,
    /// Where the API server reaches the webhooks of an operator outside the cluster: what it was installed with [default: their Service]
    #[arg(long, env = "WEBHOOK_URL", value_name = "URL")]
    webhook_url: Option<String>,
    /// error, warn, info, debug, trace, or directives such as info,setpoint=debug
    #[arg(long, env = "RUST_LOG", default_value = "info", value_name = "LEVEL")]
    log_level: String,
    /// plain for people, json for log collectors
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t, value_name = "FORMAT")]
    log_format: LogFormat,
    /// Objects that each controller reconciles at a time [default: what the controllers say]
    #[arg(long, env = "MAX_CONCURRENT_RECONCILES", value_name = "COUNT")]
    concurrency: Option<std::num::NonZeroUsize>,
    /// Whether replicas elect the one that works [default: what the operator says]
    #[arg(long, env = "LEADER_ELECT", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    leader_elect: Option<bool>,
    /// Seconds that running reconciles get after the first signal
    #[arg(long, env = "SHUTDOWN_GRACE_SECONDS", value_name = "SECONDS")]
    shutdown_grace_seconds: Option<u64>,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// For people
    Text,
    /// For programs
    Json,
}

#[derive(Debug, Args)]
struct Plan {
    /// Objects to look at, those outside namespaces by NAME alone [default: all]
    #[arg(value_name = "NAMESPACE/NAME")]
    objects: Vec<String>,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    watched: Watched,
    /// Controller to look at [default: all]
    #[arg(long, value_name = "NAME")]
    controller: Option<String>,
    /// Format of what is printed
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    output: Output,
    /// Exit with 3 if something would change
    #[arg(long)]
    detailed_exit_code: bool,
    /// Seconds that each controller may take
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout_seconds: u64,
    /// error, warn, info, debug, trace, or directives such as info,setpoint=debug
    #[arg(long, env = "RUST_LOG", default_value = "error", value_name = "LEVEL")]
    log_level: String,
}

/// What the manifests are to say.
#[derive(Debug, Args)]
struct Filled {
    /// Namespace that the operator runs in [default: <operator>-system]
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Container image of the operator
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    #[command(flatten)]
    watched: Watched,
    #[command(flatten)]
    parts: Parts,
    /// Where the API server reaches the webhooks of an operator outside the cluster, such as https://10.0.0.5:9443 [default: their Service]
    #[arg(long, env = "WEBHOOK_URL", value_name = "URL")]
    webhook_url: Option<String>,
}

impl Filled {
    /// What to install of `operator`.
    fn install(&self, operator: &mut Operator) -> Result<setpoint_manifests::Install, String> {
        if let Some(url) = &self.webhook_url {
            Url::read(url).map_err(|error| error.to_string())?;
            operator.webhook_url = Some(url.clone());
        }
        let namespace = self.namespace.clone().unwrap_or_else(|| format!("{}-system", operator.name()));
        let secure = self.parts.metrics_secure.unwrap_or(operator.metrics_secure);
        let mut install = manifests::install(operator, namespace, secure);
        if let Some(image) = &self.image {
            install.image.clone_from(image);
        }
        if let Some(scope) = &self.watched.watch_namespaces {
            install.scope = scope.clone();
        }
        self.parts.add(&mut install);
        Ok(install)
    }
}

/// What is done to the cluster, and which one.
#[derive(Debug, Args)]
struct Change {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    filled: Filled,
    /// Only try it
    #[arg(long)]
    dry_run: bool,
}

impl Change {
    async fn cluster(&self, operator: &mut Operator) -> Result<Cluster, String> {
        let client = connect(operator, &self.connection).await?;
        Ok(Cluster::new(client, format!("{}-install", operator.name()), self.dry_run))
    }

    /// Tells people a line of what is done.
    fn teller(&self) -> impl FnMut(String) + use<> {
        let dry_run = self.dry_run;
        move |line| note(&format!("{line}{}", if dry_run { " (dry run)" } else { "" }))
    }
}

#[derive(Debug, Args)]
struct Manifests {
    /// Directory for install.yaml and a layout for kustomize [default: install.yaml to standard output]
    #[arg(long, short, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    #[command(flatten)]
    filled: Filled,
}

#[derive(Debug, Args)]
struct Install {
    #[command(flatten)]
    change: Change,
    /// Only the CustomResourceDefinitions, as for an operator that runs on this machine; with --webhook-url its webhooks, too
    #[arg(long)]
    crds: bool,
    /// Take over fields that others own
    #[arg(long)]
    force_conflicts: bool,
    /// Seconds to wait for the cluster to serve the kinds
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout_seconds: u64,
}

#[derive(Debug, Args)]
struct Uninstall {
    #[command(flatten)]
    change: Change,
    /// Delete all objects of the operator's kinds as well, and their CustomResourceDefinitions: their data may go
    #[arg(long)]
    crds: bool,
    /// Seconds that the objects may take to go
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    timeout_seconds: u64,
}

/// [`Operator::main`].
pub(super) fn main(operator: Operator) -> ExitCode {
    let mut command = Arguments::command()
        .name(operator.name.clone())
        .bin_name(operator.name.clone())
        .about(format!("{}, a Kubernetes operator", operator.name));
    // Every binary answers --version; an author who hasn't said one reads how.
    let version = operator.version.clone();
    command =
        command.version(version.unwrap_or_else(|| "without a version: see Operator::version".to_owned()));
    let matches = command.get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let Some(fault) = operator.fault() {
        let _ = writeln!(std::io::stderr(), "error: {fault}");
        return ExitCode::FAILURE;
    }
    let result = match arguments.command {
        Command::Run(arguments) => run(operator, arguments),
        Command::Plan(arguments) => match plan(operator, &arguments) {
            // As kubectl diff, but apart from failures.
            Ok(true) => return ExitCode::from(3),
            Ok(false) => Ok(()),
            Err(message) => Err(message),
        },
        Command::Manifests(arguments) => write_manifests(operator, arguments),
        Command::Install(arguments) => install(operator, arguments),
        Command::Uninstall(arguments) => uninstall(operator, arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // The one line that says why; logging may not be set up yet.
            let _ = writeln!(std::io::stderr(), "error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut operator: Operator, arguments: Run) -> Result<(), String> {
    on_runtime(async {
        let clock = operator.clock.unwrap_or_else(Clock::system);
        let logs = (arguments.log_level.as_str(), arguments.log_format, clock);
        let export = traces::init(&operator.name, operator.version.as_deref(), logs)
            .map_err(|error| error.to_string())?;
        let mut signals = Signals::listen().map_err(|error| format!("cannot listen for signals: {error}"))?;
        operator.clock = Some(clock);
        if operator.client.is_none() {
            let config = config(&arguments.connection).await.map_err(|error| error.to_string())?;
            operator.config = Some(config);
        }
        if operator.scope.is_none() {
            operator.scope = arguments.watched.watch_namespaces;
        }
        if let Some(workers) = arguments.concurrency {
            operator = operator.concurrency(workers.get());
        }
        match arguments.leader_elect {
            Some(false) => operator.election = None,
            Some(true) if operator.election.is_none() => {
                operator.election = Some(Election::new(operator.name.clone()));
            }
            _ => {}
        }
        if let Some(seconds) = arguments.shutdown_grace_seconds {
            operator.grace = Duration::from_secs(seconds);
        }
        let address = |address: String| (address != "0").then_some(address);
        operator.metrics_address = address(arguments.metrics_bind_address);
        operator.metrics_secure = arguments.metrics_secure.unwrap_or(operator.metrics_secure);
        operator.health_address = address(arguments.health_probe_bind_address);
        operator.webhook_address = address(arguments.webhook_bind_address);
        operator.webhook_url = arguments.webhook_url.or(operator.webhook_url);
        // What somebody mounts wins: cert-manager, or OLM.
        if arguments.webhook_cert_dir.join("tls.crt").exists() {
            operator.certificates = Certificates::files(arguments.webhook_cert_dir);
        }
        if operator.webhook_address.is_none() {
            operator.webhooks.clear();
            operator.versions.clear();
        }
        let result = until_signalled(operator, async || signals.next().await).await;
        export.stop();
        result
    })
}

/// Runs until the first signal, stops gracefully, and gives up at the second. `signal` waits for the next one
/// and tells its name.
async fn until_signalled(
    operator: Operator,
    mut signal: impl AsyncFnMut() -> &'static str,
) -> Result<(), String> {
    let (first, stop) = futures::channel::oneshot::channel::<()>();
    let running = std::pin::pin!(operator.run_until(async move {
        // A dropped sender is a signal handler that is gone, which ends the operator as well.
        let _ = stop.await;
    }));
    let second = std::pin::pin!(async move {
        let name = signal().await;
        tracing::info!(signal = name, "stopping; a second signal ends the process at once");
        let _ = first.send(());
        signal().await
    });
    match select(running, second).await {
        Either::Left((result, _)) => result.map_err(|error| error.to_string()),
        Either::Right((signal, _)) => Err(format!("{signal} came a second time: stopped without waiting")),
    }
}

/// The cluster that the flags and the surroundings name.
async fn config(arguments: &Connection) -> Result<kube::Config, OperatorError> {
    let options = KubeConfigOptions { context: arguments.context.clone(), ..KubeConfigOptions::default() };
    let missing =
        |error: &(dyn std::error::Error + 'static)| OperatorError::Configuration { reason: chain(error) };
    match &arguments.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|error| missing(&error))?;
            kube::Config::from_custom_kubeconfig(file, &options).await.map_err(|error| missing(&error))
        }
        None if arguments.context.is_some() => {
            kube::Config::from_kubeconfig(&options).await.map_err(|error| missing(&error))
        }
        None => kube::Config::infer().await.map_err(|error| missing(&kube::Error::InferConfig(error))),
    }
}

/// Runs a command on an asynchronous runtime of its own.
fn on_runtime<T>(command: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the asynchronous runtime: {error}"))?;
    let result = runtime.block_on(command);
    // What is left after the command's end has had its chance: a graceful stop, or a second signal.
    runtime.shutdown_background();
    result
}

/// A client that answers errors of the connection in one line.
async fn connect(operator: &mut Operator, connection: &Connection) -> Result<kube::Client, String> {
    if let Some(client) = operator.client.take() {
        return Ok(client);
    }
    let config = config(connection).await.map_err(|error| error.to_string())?;
    let url = config.cluster_url.to_string();
    let client = kube::Client::try_from(config).map_err(|error| chain(&error))?;
    diagnosis::reach(&client, &url).await.map_err(|error| error.to_string())?;
    Ok(client)
}

/// A line for people: standard output carries results.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints what a command is for.
fn print(text: &str) -> Result<(), String> {
    match std::io::stdout().write_all(text.as_bytes()) {
        // A closed pipe, as after `| head`, is the reader's choice.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}"))
        }
        _ => Ok(()),
    }
}

/// Whether something would change, if that is asked for.
fn plan(mut operator: Operator, arguments: &Plan) -> Result<bool, String> {
    on_runtime(async {
        let clock = operator.clock.unwrap_or_else(Clock::system);
        init_logs(&arguments.log_level, LogFormat::Plain, clock).map_err(|error| error.to_string())?;
        operator.clock = Some(clock);
        if operator.scope.is_none() {
            operator.scope.clone_from(&arguments.watched.watch_namespaces);
        }
        let client = connect(&mut operator, &arguments.connection).await?;
        let keys = (!arguments.objects.is_empty()).then(|| arguments.objects.iter().map(Key::from).collect());
        let controller = arguments.controller.as_deref();
        let limit = Duration::from_secs(arguments.timeout_seconds);
        let reports = super::plan::reports(operator, client, controller, keys, limit, note)
            .await
            .map_err(|error| error.to_string())?;
        match arguments.output {
            Output::Text => print(&super::plan::text(&reports))?,
            Output::Json => print(&format!("{:#}\n", super::plan::json(&reports)))?,
        }
        if let Some(missing) = super::plan::missing(&reports) {
            return Err(missing);
        }
        let sum = super::plan::Sum::of(&reports);
        if sum.failed > 0 {
            return Err(format!("{} of {} reconciles failed", sum.failed, sum.objects));
        }
        Ok(arguments.detailed_exit_code && sum.writes > 0)
    })
}

fn install(mut operator: Operator, arguments: Install) -> Result<(), String> {
    let Install { change, crds, force_conflicts, timeout_seconds } = arguments;
    let named = change.filled.image.is_some() || operator.image.is_some();
    let install = change.filled.install(&mut operator)?;
    let objects = if crds {
        let mut objects = install.definitions().map_err(|error| error.to_string())?;
        if install.webhooks.url.is_some() {
            objects.extend(install.webhook_configurations());
        }
        objects
    } else if named {
        install.objects().map_err(|error| error.to_string())?
    } else {
        return Err(format!(
            "no image of {} is known: name one with --image, that the cluster can pull, or declare it with Operator::image; --crds \
             installs the CRDs alone, for an operator on this machine",
            operator.name(),
        ));
    };
    on_runtime(async {
        let cluster = change.cluster(&mut operator).await?;
        let options = super::install::Options {
            force: force_conflicts,
            dry_run: change.dry_run,
            limit: Duration::from_secs(timeout_seconds),
        };
        super::install::install(&cluster, &objects, options, &mut change.teller())
            .await
            .map_err(|error| error.to_string())
    })
}

fn uninstall(mut operator: Operator, arguments: Uninstall) -> Result<(), String> {
    let Uninstall { mut change, crds, timeout_seconds } = arguments;
    change.filled.parts = Parts::all();
    let objects = change.filled.install(&mut operator)?.objects().map_err(|error| error.to_string())?;
    on_runtime(async {
        let cluster = change.cluster(&mut operator).await?;
        let options = super::install::Options {
            force: false,
            dry_run: change.dry_run,
            limit: Duration::from_secs(timeout_seconds),
        };
        super::install::uninstall(&cluster, &objects, crds, options, &mut change.teller())
            .await
            .map_err(|error| error.to_string())
    })
}

fn write_manifests(mut operator: Operator, arguments: Manifests) -> Result<(), String> {
    let install = arguments.filled.install(&mut operator)?;
    for kind in manifests::undeclared_crds(&operator) {
        note(&format!(
            "warning: {kind} is reconciled but no CRD of it is declared: add Operator::crd if it is yours"
        ));
    }
    if let Some(directory) = arguments.output {
        let written = manifests::write(&install, &directory).map_err(|error| error.to_string())?;
        note(&format!("wrote {} files to {}", written.len(), directory.display()));
        return Ok(());
    }
    let objects = install.objects().map_err(|error| error.to_string())?;
    let yaml = documents(&objects).map_err(|error| error.to_string())?;
    print(&yaml)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Task;

    /// An operator with a task that takes 10 s to end.
    fn slow() -> Operator {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("no server"))
        });
        Operator::new("slow-operator").client(kube::Client::new(service, "default")).task(Task::always(
            "slow",
            |_, stop| async move {
                stop.cancelled().await;
                tokio::time::sleep(Duration::from_secs(10)).await;
                Ok(())
            },
        ))
    }

    /// Signals that come so many seconds after each other, and then no more.
    async fn signals(operator: Operator, pauses: &[u64]) -> Result<(), String> {
        let mut pauses = pauses.iter();
        until_signalled(operator, async || match pauses.next() {
            Some(seconds) => {
                tokio::time::sleep(Duration::from_secs(*seconds)).await;
                "SIGTERM"
            }
            None => std::future::pending().await,
        })
        .await
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_signal_waits_and_the_second_does_not() {
        let start = tokio::time::Instant::now();
        signals(slow(), &[5]).await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(15));

        let start = tokio::time::Instant::now();
        let error = signals(slow(), &[5, 2]).await.unwrap_err();
        assert_eq!(start.elapsed(), Duration::from_secs(7));
        assert_eq!(error, "SIGTERM came a second time: stopped without waiting");
    }

    fn parse(arguments: &[&str]) -> Command {
        Arguments::try_parse_from(arguments).unwrap().command
    }

    #[test]
    fn flags_have_the_defaults_that_deployments_rely_on() {
        let Command::Run(run) = parse(&["op", "run"]) else { panic!("run") };
        assert_eq!(run.metrics_bind_address, ":8080");
        assert_eq!(run.health_probe_bind_address, ":8081");
        assert_eq!(run.log_format, LogFormat::Plain);
    }

    #[test]
    fn an_empty_list_of_namespaces_means_all() {
        let Command::Run(run) = parse(&["op", "run", "--watch-namespaces", ""]) else { panic!("run") };
        assert_eq!(run.watched.watch_namespaces, Some(Scope::All));
        let Command::Run(run) = parse(&["op", "run", "--watch-namespaces", "b, a"]) else { panic!("run") };
        assert_eq!(run.watched.watch_namespaces, Some(Scope::parse("a,b")));
    }

    #[test]
    fn names_that_no_namespace_has_are_refused_by_every_command() {
        for command in ["run", "plan", "manifests", "install", "uninstall"] {
            let error = Arguments::try_parse_from(["op", command, "--watch-namespaces", "team-a,Team_B"])
                .unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("\"Team_B\" is no name of a namespace") && text.contains("--watch-namespaces"),
                "{text}"
            );
        }
    }

    /// The documentation lists every flag of `run` with its variable.
    #[test]
    fn the_flags_are_documented() {
        let page = include_str!("../../../../docs/sdk/operator.md");
        let command = Arguments::command();
        let run = command.find_subcommand("run").unwrap();
        for argument in run.get_arguments().filter(|argument| argument.get_id() != "help") {
            let flag = format!("| `--{}", argument.get_long().unwrap());
            let row = page.lines().find(|line| line.starts_with(&flag));
            let row = row.unwrap_or_else(|| panic!("{flag} is missing in docs/sdk/operator.md"));
            if let Some(variable) = argument.get_env() {
                assert!(row.contains(&format!("`{}`", variable.to_string_lossy())), "{row}");
            }
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
        assert!(Arguments::try_parse_from(["op", "bundle"]).is_err());
    }
}
