use std::io;

use futures::future::{Either, select};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, which Kubernetes sends, and SIGINT of Ctrl-C.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From here on these signals do not end the process by themselves.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next of them and tells its name.
    pub(super) async fn next(&mut self) -> &'static str {
        let terminate = std::pin::pin!(self.terminate.recv());
        let interrupt = std::pin::pin!(self.interrupt.recv());
        match select(terminate, interrupt).await {
            Either::Left(_) => "SIGTERM",
            Either::Right(_) => "SIGINT",
        }
    }
}
