//! What both operators share: the kind and its children ([`family`]), and what they count and say ([`Gauge`]).
//!
//! ```text
//! setpoint-bench-sdk ── starts, asks over standard input, reads /proc ──▶ with-setpoint | with-kube ── TLS ──▶ API server
//!        └──────────── creates, touches and changes objects ─────────────────────────────────────────────────────▲
//! ```

pub mod family;
mod gauge;
pub mod slim;

pub use gauge::{Counting, CountingService, Gauge, Start, Stats, monotonic_nanoseconds};
