//! The standard metrics of a process, read from `/proc` at each scrape. Elsewhere than on Linux they are
//! missing, as they are in Prometheus' own client libraries.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// Clock ticks per second in `/proc`: USER_HZ, which is 100 on every architecture that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

pub(super) fn register(registry: &mut Registry) {
    registry.register_collector(Box::new(Process));
}

#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        if let Some(bytes) = resident_bytes() {
            let family = encoder.encode_descriptor(
                "process_resident_memory_bytes",
                "Resident memory size in bytes",
                None,
                MetricType::Gauge,
            )?;
            ConstGauge::new(bytes).encode(family)?;
        }
        if let Some(seconds) = cpu_seconds() {
            let family = encoder.encode_descriptor(
                "process_cpu_seconds",
                "Total user and system CPU time in seconds",
                None,
                MetricType::Counter,
            )?;
            ConstCounter::new(seconds).encode(family)?;
        }
        let numbers = [
            ("process_virtual_memory_bytes", "Virtual memory size in bytes", virtual_bytes()),
            ("process_max_fds", "Maximum number of open file descriptors", max_files()),
            (
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds",
                start_seconds(),
            ),
        ];
        for (name, help, value) in numbers {
            if let Some(value) = value {
                let family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(family)?;
            }
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            let family = encoder.encode_descriptor(
                "process_open_fds",
                "Number of open file descriptors",
                None,
                MetricType::Gauge,
            )?;
            // One of them is the directory that is being read.
            ConstGauge::new(entries.count().saturating_sub(1) as i64).encode(family)?;
        }
        Ok(())
    }
}

/// `VmRSS` of proc(5), which is in kB.
fn resident_bytes() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<i64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// Fields `utime` and `stime`.
fn cpu_seconds() -> Option<f64> {
    Some((stat(14)? + stat(15)?) / TICKS_PER_SECOND)
}

/// Field `vsize`.
fn virtual_bytes() -> Option<f64> {
    stat(23)
}

/// Field `starttime`, in ticks after the machine's start, which `/proc/stat` has as `btime`.
fn start_seconds() -> Option<f64> {
    let machine = fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 = machine.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + stat(22)? / TICKS_PER_SECOND)
}

/// The soft limit, the fourth word of its line in `/proc/self/limits`.
fn max_files() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

/// A field of `/proc/self/stat` by its number in proc(5), of those after the name in parentheses.
fn stat(number: usize) -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(number - 3)?.parse().ok()
}
