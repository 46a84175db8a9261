//! The server that a test runs on: chosen by the environment, so that the same test runs on each.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};

use kube::{Client, Config};
use parking_lot::Mutex;
use setpoint_clock::{Clock, Entropy};
use setpoint_cluster::{ApiServer, Attached, Cluster, HollowRuntime, Identity};
use tokio::time::{Duration, Instant};

use crate::control_plane::ControlPlane;
use crate::env::EnvError;

/// The environment variable that chooses the server of [`crate::TestEnv::start`].
const VARIABLE: &str = "SETPOINT_TEST_SERVER";

/// What [`crate::TestEnv::start`] starts or connects to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TestServer {
    /// A cluster inside this process. What `SETPOINT_TEST_SERVER` stands for when it is not set.
    #[default]
    Embedded,
    /// kube-apiserver and etcd from the folder in `KUBEBUILDER_ASSETS`, started for each test, with the built-in controllers and hollow
    /// nodes of the embedded cluster.
    Binaries,
    /// The cluster of the kubeconfig: `KUBECONFIG`, or kubectl's own.
    Existing,
}

impl TestServer {
    /// Reads `SETPOINT_TEST_SERVER`: `embedded`, `binaries` or `existing`.
    ///
    /// # Errors
    /// When it says something else.
    pub fn from_env() -> Result<Self, EnvError> {
        let value = std::env::var(VARIABLE).unwrap_or_default();
        Self::parse(&value).ok_or(EnvError::UnknownServer { value })
    }

    fn parse(value: &str) -> Option<Self> {
        match value {
            "" | "embedded" => Some(Self::Embedded),
            "binaries" => Some(Self::Binaries),
            "existing" => Some(Self::Existing),
            _ => None,
        }
    }
}

/// What serves an embedded server on a port, once somebody has asked for it: the address, and what keeps it open.
pub(crate) type Listening = Mutex<Option<(String, Box<dyn Send>)>>;

/// A server that runs.
pub(crate) enum Server {
    Embedded(Box<Cluster>, Listening),
    /// An embedded API server alone.
    Alone(ApiServer, Listening),
    // Dropped in this order.
    Binaries {
        controllers: Option<Attached>,
        control_plane: Box<ControlPlane>,
    },
    Existing(Box<Config>),
}

impl Server {
    /// Starts it with the built-in controllers and nodes, or without.
    pub(crate) async fn start(kind: TestServer, controllers: bool) -> Result<Self, EnvError> {
        if kind != TestServer::Embedded {
            resume_time();
        }
        Ok(match kind {
            TestServer::Embedded if !controllers => {
                Self::Alone(ApiServer::builder().build(), Listening::default())
            }
            TestServer::Embedded => {
                Self::around(Cluster::builder().hollow_nodes(HOLLOW_NODES).start().await?)
            }
            TestServer::Binaries => {
                let assets = ControlPlane::assets()?;
                let control_plane = Box::new(ControlPlane::start(&assets).await?);
                let controllers = if controllers {
                    Some(Attached::start(control_plane.client()?, HOLLOW_NODES).await?)
                } else {
                    None
                };
                Self::Binaries { controllers, control_plane }
            }
            TestServer::Existing => {
                let mut config =
                    Config::infer().await.map_err(|error| EnvError::NoCluster(error.to_string()))?;
                config.default_retry = false;
                Self::Existing(Box::new(config))
            }
        })
    }

    /// A cluster in this process.
    pub(crate) fn around(cluster: Cluster) -> Self {
        Self::Embedded(Box::new(cluster), Listening::default())
    }

    /// The address of this machine at which the server reaches this process; none if it asks without a network.
    pub(crate) fn reached_at(&self) -> Result<Option<IpAddr>, EnvError> {
        match self {
            Self::Embedded(..) | Self::Alone(..) => Ok(None),
            Self::Binaries { .. } => Ok(Some(IpAddr::V4(Ipv4Addr::LOCALHOST))),
            // That from which the machine would send to it.
            Self::Existing(config) => {
                let host = config.cluster_url.host().unwrap_or_default();
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let port = config.cluster_url.port_u16().unwrap_or(443);
                let local = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
                    .and_then(|socket| socket.connect((host, port)).and_then(|()| socket.local_addr()));
                let what = || format!("find the address of this machine on the way to {host}");
                local
                    .map(|address| Some(address.ip()))
                    .map_err(|source| EnvError::Machine { what: what(), source })
            }
        }
    }

    /// A kubeconfig with all rights.
    pub(crate) fn kubeconfig(&self) -> Result<String, EnvError> {
        let wrong = |error: &dyn std::fmt::Display| EnvError::Kubeconfig(error.to_string());
        match self {
            Self::Binaries { control_plane, .. } => Ok(control_plane.kubeconfig()),
            Self::Existing(_) => {
                let read = kube::config::Kubeconfig::read().map_err(|error| wrong(&error))?;
                serde_json::to_string(&read).map_err(|error| wrong(&error))
            }
            Self::Embedded(_, listening) | Self::Alone(_, listening) => {
                let Some(api) = self.api() else { return Err(wrong(&"there is no API server")) };
                let mut listening = listening.lock();
                let url = if let Some((url, _)) = &*listening {
                    url.clone()
                } else {
                    let refused =
                        |source| EnvError::Machine { what: "listen on 127.0.0.1".to_owned(), source };
                    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(refused)?;
                    let url = format!("https://{}", listener.local_addr().map_err(refused)?);
                    let serving = api.serve(listener).map_err(|error| wrong(&error))?;
                    *listening = Some((url.clone(), Box::new(serving)));
                    url
                };
                api.kubeconfig(&url).map_err(|error| wrong(&error))
            }
        }
    }

    /// A client with all rights.
    pub(crate) fn client(&self) -> Result<Client, EnvError> {
        match self {
            Self::Embedded(cluster, _) => Ok(cluster.client()),
            Self::Alone(api, _) => Ok(Client::new(api.service(Identity::admin()), "default")),
            Self::Binaries { control_plane, .. } => Ok(control_plane.client()?),
            Self::Existing(config) => Ok(Client::try_from(Config::clone(config))?),
        }
    }

    /// A client with the rights of `identity`: by impersonation, where the server is another process.
    pub(crate) fn client_as(&self, identity: Identity) -> Result<Client, EnvError> {
        let mut config = match self {
            Self::Embedded(cluster, _) => return Ok(cluster.client_as(identity)),
            Self::Alone(api, _) => return Ok(Client::new(api.service(identity), "default")),
            Self::Binaries { control_plane, .. } => control_plane.config(),
            Self::Existing(config) => Config::clone(config),
        };
        let Identity { user, uid, groups, extra } = identity;
        config.auth_info.impersonate = Some(user);
        config.auth_info.impersonate_uid = Some(uid).filter(|uid| !uid.is_empty());
        config.auth_info.impersonate_groups = Some(groups);
        let extra: BTreeMap<_, _> = extra;
        config.auth_info.impersonate_user_extra =
            Some(extra.into_iter().collect()).filter(|extra: &Extra| !extra.is_empty());
        Ok(Client::try_from(config)?)
    }

    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        match self {
            Self::Embedded(cluster, _) => Some(cluster),
            _ => None,
        }
    }

    /// The API server, if it is in this process.
    pub(crate) fn api(&self) -> Option<&ApiServer> {
        match self {
            Self::Embedded(cluster, _) => Some(cluster.api()),
            Self::Alone(api, _) => Some(api),
            _ => None,
        }
    }

    pub(crate) fn node(&self, name: &str) -> Option<&HollowRuntime> {
        match self {
            Self::Embedded(cluster, _) => cluster.node(name),
            Self::Binaries { controllers, .. } => controllers.as_ref()?.node(name),
            Self::Alone(..) | Self::Existing(_) => None,
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.cluster().map_or_else(Clock::system, |cluster| *cluster.clock())
    }

    pub(crate) fn entropy(&self) -> Entropy {
        self.cluster().map_or_else(Entropy::from_system, |cluster| cluster.entropy().clone())
    }
}

type Extra = std::collections::HashMap<String, Vec<String>>;

/// How many nodes a cluster has that nobody asked to be otherwise.
const HOLLOW_NODES: u8 = 2;

/// Lets tokio's clock run, if it is paused: real servers live in real time, and a paused clock would jump over every
/// answer that is on its way.
fn resume_time() {
    if is_paused() {
        tokio::time::resume();
    }
}

/// Whether tokio's clock stands still while the machine's goes on. Tokio does not tell.
#[expect(
    clippy::disallowed_methods,
    reason = "the machine's clock is the only thing to compare tokio's with"
)]
fn is_paused() -> bool {
    let (machine, tokio) = (std::time::Instant::now(), Instant::now());
    while machine.elapsed() < Duration::from_millis(1) {
        std::hint::spin_loop();
    }
    Instant::now() == tokio
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_names_one_of_three() {
        assert_eq!(TestServer::parse(""), Some(TestServer::Embedded));
        assert_eq!(TestServer::parse("binaries"), Some(TestServer::Binaries));
        assert_eq!(TestServer::parse("existing"), Some(TestServer::Existing));
        assert_eq!(TestServer::parse("kind"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_clock_is_made_to_run() {
        assert!(is_paused());
        resume_time();
        assert!(!is_paused());
        resume_time();
    }
}
