use std::task;

use futures::future::BoxFuture;

use super::{Address, Server};

/// Name and password of the operator's account in a server.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The account.
    pub user: String,
    /// Its password.
    pub password: String,
}

/// Never shows the password.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Opens sessions with servers. Real ones speak RESP over TCP; tests put model servers here.
pub trait Dial: Send + Sync + 'static {
    /// Connects to the server at `address` and logs in.
    fn dial(
        &self,
        address: Address,
        credentials: Credentials,
    ) -> BoxFuture<'static, Result<Box<dyn Session>, DialError>>;
}

/// A connection to one server. Dropping it closes the connection.
pub trait Session: Send {
    /// Asks the server for its state.
    fn observe(&mut self) -> BoxFuture<'_, Result<Server, SessionError>>;

    /// Has the server carry out `command`.
    fn command(&mut self, command: Command) -> BoxFuture<'_, Result<(), SessionError>>;

    /// Ready once the server has closed the connection.
    fn poll_closed(&mut self, cx: &mut task::Context<'_>) -> task::Poll<()>;
}

/// What the operator tells a server to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Become a replica of `Target`.
    Follow(Target),
    /// Become the primary and, in the same transaction, accept writes while `quorum` replicas follow.
    Promote {
        /// The new `min-replicas-to-write`.
        quorum: u32,
    },
    /// Refuse writes, follow nobody, and close the connections of clients so that they look for the new primary.
    Demote,
    /// Refuse writes and close the connections of clients, so that they look for the new primary.
    Seal,
    /// Hand the role of the primary over to the replica at this address, losing no write: writes wait until it
    /// has caught up, at most three seconds.
    HandOver {
        /// The replica that takes over.
        to: Address,
    },
    /// Stop handing over and be the primary again.
    AbortHandOver,
    /// Before the end of a cluster: refuse writes, follow nobody, close clients' connections, and don't wait
    /// for replicas when told to stop.
    Retire,
    /// Set one setting.
    Set {
        /// Name of the setting.
        name: &'static str,
        /// Its value.
        value: String,
    },
}

/// Whom a replica follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Nobody: detached.
    Nobody,
    /// The server at this address.
    Server(Address),
}

/// No session came about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// The host answers, but nothing listens there: the process is not running (yet).
    #[error("connection refused")]
    Refused,
    /// The server doesn't accept the operator's account.
    #[error("login refused: {0}")]
    Login(String),
    /// Anything else, which proves nothing.
    #[error("{0}")]
    Other(String),
}

/// A session failed. Nobody knows whether the last command was carried out: open a new one and look.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The connection broke.
    #[error("connection lost: {0}")]
    Lost(String),
    /// The server refused the command or answered what cannot be understood.
    #[error("server answered: {0}")]
    Refused(String),
}
