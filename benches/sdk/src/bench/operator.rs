use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use setpoint_bench_sdk::{Start, Stats};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::Failure;
use super::cluster::Cluster;
use crate::Contender;

/// Nothing more comes after so long without anything.
const QUIET: Duration = Duration::from_millis(1000);
/// No state takes longer to be reached.
const LIMIT: Duration = Duration::from_secs(900);
/// The kinds that the operator watches.
const WATCHES: u64 = 4;

/// A running operator in a process of its own.
pub(crate) struct Operator {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    pub(crate) begun: Instant,
    starts: Vec<Start>,
}

/// What an operator has done and used until some time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    pub(crate) stats: Stats,
    pub(crate) processor: Duration,
}

impl Reading {
    /// What came since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let (now, then) = (&self.stats, &before.stats);
        Self {
            stats: Stats {
                reads: now.reads - then.reads,
                writes: now.writes - then.writes,
                conflicts: now.conflicts - then.conflicts,
                watches: now.watches - then.watches,
                reconciles: now.reconciles - then.reconciles,
                starts: Vec::new(),
            },
            processor: self.processor.saturating_sub(before.processor),
        }
    }
}

impl Operator {
    pub(crate) fn start(contender: Contender, cluster: &Cluster) -> Result<Self, Failure> {
        let this = std::env::current_exe().map_err(Failure::io("find this program"))?;
        // Of the profile for operators, beside that of this program.
        let folder = this.ancestors().nth(2).unwrap_or(&this).join("operator");
        let (name, arguments): (_, &[&str]) = match contender {
            Contender::Setpoint | Contender::Slim => (
                "with-setpoint",
                &["run", "--metrics-bind-address=0", "--health-probe-bind-address=0", "--log-level=error"],
            ),
            Contender::Kube => ("with-kube", &[]),
        };
        let begun = Instant::now();
        let mut child = Command::new(folder.join(name))
            .args(arguments)
            .env("KUBECONFIG", cluster.kubeconfig())
            .envs((contender == Contender::Slim).then_some(("SLIM", "1")))
            .current_dir(cluster.folder())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(Failure::io(format!("start {name}: `make bench-sdk` builds it")))?;
        let gone = || Failure::Refused(format!("{name} has no input and output"));
        let input = child.stdin.take().ok_or_else(gone)?;
        let output = BufReader::new(child.stdout.take().ok_or_else(gone)?).lines();
        Ok(Self { child, input, output, begun, starts: Vec::new() })
    }

    /// Waits until it watches all kinds and has nothing to do.
    pub(crate) async fn ready(&mut self) -> Result<Reading, Failure> {
        while self.read().await?.stats.watches < WATCHES {
            self.in_time()?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.quiet(0).await
    }

    pub(crate) async fn read(&mut self) -> Result<Reading, Failure> {
        self.input.write_all(b"\n").await.map_err(Failure::io("ask the operator"))?;
        let line = self.output.next_line().await.map_err(Failure::io("hear from the operator"))?;
        let line = line.ok_or_else(|| Failure::Refused("the operator has ended".to_owned()))?;
        let stats: Stats = serde_json::from_str(&line)
            .map_err(|error| Failure::Refused(format!("the operator said {line}: {error}")))?;
        self.starts.extend(stats.starts.iter().cloned());
        Ok(Reading { stats, processor: self.processor()? })
    }

    /// Waits until it has begun `reconciles` and then does nothing for a while; what it has done until then.
    pub(crate) async fn quiet(&mut self, reconciles: u64) -> Result<Reading, Failure> {
        let mut last = self.read().await?;
        let mut since = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = self.read().await?;
            if now.stats != last.stats {
                since = Instant::now();
                last = now;
            } else if last.stats.reconciles >= reconciles && since.elapsed() >= QUIET {
                return Ok(now);
            }
            self.in_time()?;
        }
    }

    /// Waits until it has begun so many reconciles.
    pub(crate) async fn reconciled(&mut self, reconciles: u64) -> Result<(), Failure> {
        while self.read().await?.stats.reconciles < reconciles {
            self.in_time()?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Reconciles of probes so far.
    pub(crate) fn starts(&self) -> &[Start] {
        &self.starts
    }

    /// Proportional memory in bytes: pages that processes share are divided among them.
    pub(crate) fn memory(&self) -> Result<u64, Failure> {
        let path = format!("/proc/{}/smaps_rollup", self.pid()?);
        let text = std::fs::read_to_string(&path).map_err(Failure::io(path))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap_or_default();
        let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().unwrap_or_default();
        Ok(kibibytes * 1024)
    }

    /// Of all its threads, also of those that have ended, to the nanosecond.
    fn processor(&self) -> Result<Duration, Failure> {
        let pid = Pid::from_raw(self.pid()? as i32);
        let time = clock_getcpuclockid(pid).and_then(clock_gettime);
        let time =
            time.map_err(|errno| Failure::Refused(format!("no processor time of the operator: {errno}")))?;
        Ok(time.into())
    }

    fn pid(&self) -> Result<u32, Failure> {
        self.child.id().ok_or_else(|| Failure::Refused("the operator has ended".to_owned()))
    }

    fn in_time(&self) -> Result<(), Failure> {
        if self.begun.elapsed() < LIMIT {
            return Ok(());
        }
        Err(Failure::Refused(format!("the operator did not settle within {LIMIT:?}")))
    }
}
