//! The redis-operator: `redis-operator run`, `redis-operator manifests`.

use std::process::ExitCode;

fn main() -> ExitCode {
    redis_operator::operator().main()
}
