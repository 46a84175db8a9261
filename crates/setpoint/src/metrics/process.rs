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

/// Fields `utime` and `stime` of proc(5): the 14th and 15th, counted after the name in parentheses, which may
/// itself contain spaces.
fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}
