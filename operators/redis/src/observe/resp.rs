use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::task;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError, cmd, pipe};
use tokio::net::TcpStream;

use super::{Address, Command, Credentials, Dial, DialError, Server, Session, SessionError, Target};
use crate::render::{NOBODY, SEALED};

/// How long a primary may hold writes back for its successor to catch up.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(3);

/// Sessions with real servers, over TCP.
///
/// The socket is opened here rather than by the `redis` crate: "connection refused" is a proof of death and
/// must not be confused with any other failure. The crate's driver future tells when the server hangs up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resp;

impl Dial for Resp {
    fn dial(
        &self,
        address: Address,
        credentials: Credentials,
    ) -> BoxFuture<'static, Result<Box<dyn Session>, DialError>> {
        async move {
            let stream =
                TcpStream::connect((address.ip.as_str(), address.port)).await.map_err(|error| match error
                    .kind()
                {
                    ErrorKind::ConnectionRefused => DialError::Refused,
                    _ => DialError::Other(error.to_string()),
                })?;
            stream.set_nodelay(true).map_err(|error| DialError::Other(error.to_string()))?;
            let info = RedisConnectionInfo::default()
                .set_username(&credentials.user)
                .set_password(&credentials.password)
                .set_skip_set_lib_name();
            let (mut connection, driver) =
                MultiplexedConnection::new_with_config(&info, stream, AsyncConnectionConfig::new())
                    .await
                    .map_err(|error| {
                        if error.is_io_error() || error.is_connection_dropped() {
                            DialError::Other(error.to_string())
                        } else {
                            DialError::Login(error.to_string())
                        }
                    })?;
            let session = RespSession { connection: connection.clone(), driver: tokio::spawn(driver) };
            // Cut older connections of the operator, so that no command of a former leader arrives later.
            let mut cut = cmd("CLIENT");
            cut.arg("KILL").arg("USER").arg(&credentials.user).arg("SKIPME").arg("yes");
            cut.exec_async(&mut connection).await.map_err(|error| DialError::Other(error.to_string()))?;
            Ok(Box::new(session) as Box<dyn Session>)
        }
        .boxed()
    }
}

struct RespSession {
    connection: MultiplexedConnection,
    driver: tokio::task::JoinHandle<()>,
}

impl Drop for RespSession {
    /// Closes the socket at once, so that no answer of an abandoned command can be taken for another's.
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Session for RespSession {
    fn observe(&mut self) -> BoxFuture<'_, Result<Server, SessionError>> {
        async move {
            let (info, settings): (String, BTreeMap<String, String>) = pipe()
                .cmd("INFO")
                .cmd("CONFIG")
                .arg("GET")
                .arg(Server::settings().collect::<Vec<_>>())
                .query_async(&mut self.connection)
                .await
                .map_err(|error| session_error(&error))?;
            Server::parse(&info, &settings).map_err(|error| SessionError::Refused(error.to_string()))
        }
        .boxed()
    }

    fn command(&mut self, command: Command) -> BoxFuture<'_, Result<(), SessionError>> {
        async move {
            let follow = |host: &str, port: u16| {
                let mut command = cmd("REPLICAOF");
                command.arg(host).arg(port);
                command
            };
            let set = |name: &str, value: &str| {
                let mut command = cmd("CONFIG");
                command.arg("SET").arg(name).arg(value);
                command
            };
            let kick = || {
                let mut command = cmd("CLIENT");
                command.arg("KILL").arg("TYPE").arg("normal");
                command
            };
            let mut pipeline = pipe();
            match &command {
                Command::Follow(Target::Nobody) => pipeline.add_command(follow(NOBODY.0, NOBODY.1)),
                Command::Follow(Target::Server(address)) => {
                    pipeline.add_command(follow(&address.ip, address.port))
                }
                Command::Promote { quorum } => pipeline
                    .atomic()
                    .add_command(set("min-replicas-to-write", &quorum.to_string()))
                    .cmd("REPLICAOF")
                    .arg("NO")
                    .arg("ONE"),
                Command::Seal => pipeline
                    .add_command(set("min-replicas-to-write", &SEALED.to_string()))
                    .add_command(kick()),
                Command::HandOver { to } => pipeline
                    .cmd("FAILOVER")
                    .arg("TO")
                    .arg(&to.ip)
                    .arg(to.port)
                    .arg("TIMEOUT")
                    .arg(HANDOVER_TIMEOUT.as_millis().to_string()),
                Command::AbortHandOver => pipeline.cmd("FAILOVER").arg("ABORT"),
                Command::Retire => pipeline
                    .add_command(set("min-replicas-to-write", &SEALED.to_string()))
                    .add_command(set("shutdown-timeout", "0"))
                    .add_command(follow(NOBODY.0, NOBODY.1))
                    .add_command(kick()),
                Command::Demote => pipeline
                    .add_command(set("min-replicas-to-write", &SEALED.to_string()))
                    .add_command(follow(NOBODY.0, NOBODY.1))
                    .add_command(kick()),
                Command::Set { name, value } => pipeline.add_command(set(name, value)),
            };
            pipeline.exec_async(&mut self.connection).await.map_err(|error| session_error(&error))
        }
        .boxed()
    }

    fn poll_closed(&mut self, cx: &mut task::Context<'_>) -> task::Poll<()> {
        self.driver.poll_unpin(cx).map(|_| ())
    }
}

fn session_error(error: &RedisError) -> SessionError {
    if error.is_io_error() || error.is_connection_dropped() {
        SessionError::Lost(error.to_string())
    } else {
        SessionError::Refused(error.to_string())
    }
}
