//! What the operator knows about the servers.
//!
//! ```text
//! server ◀─ Session ─ Monitor (one task for each pod) ─▶ Track (pure: what was seen, when) ─▶ Instance ─▶ Observation
//! ```

mod instance;
mod monitor;
mod resp;
mod server;
mod session;
mod track;

pub use instance::{Claim, Instance, Ledger, Node, Observation, PodFacts, Process, Proof, View, Workload};
pub use monitor::{Monitored, Monitors, OrderError};
pub use resp::Resp;
pub use server::{Address, Follower, Handover, Link, Place, Server};
pub use session::{Command, Credentials, Dial, DialError, Session, SessionError, Target};
pub use track::{Sighting, Track};
