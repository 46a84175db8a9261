//! The redis-operator: `redis-operator run`, `redis-operator manifests`.

use std::process::ExitCode;

use setpoint::Election;

/// The Lease of the replica that works: two at once would cut each other's connections to the servers.
const LEASE: &str = "redis-operator.cache.example.com";

fn main() -> ExitCode {
    redis_operator::operator().version(env!("CARGO_PKG_VERSION")).election(Election::new(LEASE)).main()
}
