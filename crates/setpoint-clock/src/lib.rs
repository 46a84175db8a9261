//! The one source of time and the one source of randomness.
//!
//! SDK, API server and controllers take both from here, never from the operating system. Under a paused
//! tokio clock ([`tokio::time::pause`]) a whole cluster then runs in simulated time, and with a seeded
//! [`Entropy`] the same test runs the same way each time.
//!
//! A crate of its own because the SDK and the API server both need it and neither depends on the other.

mod clock;
mod entropy;

pub use clock::Clock;
pub use entropy::{Entropy, name_characters};
