use std::collections::BTreeMap;

use crate::render::{NOBODY, SEALED};
use crate::settings::LIVE;

/// Where a server can be reached: IP address and port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The IP address, never a name.
    pub ip: String,
    /// The port.
    pub port: u16,
}

/// What a server said of itself, by `INFO` and `CONFIG GET`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Random for each start of the process.
    pub run_id: String,
    /// Version of the server.
    pub version: String,
    /// Place in replication.
    pub place: Place,
    /// Still loading its data from disk.
    pub loading: bool,
    /// The line of history that its data belongs to, and the line before the last promotion.
    pub lines: [String; 2],
    /// Bytes of the replication stream that it has. Compares only within one line.
    pub offset: u64,
    /// Replicas connected to it.
    pub followers: Vec<Follower>,
    /// How far it is with handing its role over.
    pub handover: Handover,
    /// `min-replicas-to-write`; from 1000, `SEALED`, on it is sealed.
    pub quorum: u32,
    /// `replica-serve-stale-data`.
    pub serve_stale: bool,
    /// `maxmemory` in bytes.
    pub maxmemory: u64,
    /// `maxmemory-policy`.
    pub policy: String,
    /// Other settings that users may change, as far as this server knows them.
    pub parameters: BTreeMap<&'static str, String>,
    /// Bytes in use.
    pub used_memory: u64,
    /// Keys in all databases.
    pub keys: u64,
    /// The last write of the append-only file failed.
    pub write_error: bool,
}

/// A server's place in replication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Follows nobody.
    Primary,
    /// Follows the server at `of`.
    Replica {
        /// The followed server.
        of: Address,
        /// How far it is with that.
        link: Link,
    },
}

/// State of a replica's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Receives the stream, some of which has come; last heard of the primary this many seconds ago.
    Up {
        /// Seconds since the last byte of the primary, whole.
        last_io: u64,
    },
    /// Receives a copy of the whole data, or has it and nothing of the stream that follows.
    Syncing,
    /// Not connected.
    Down,
}

/// How far a primary is with `FAILOVER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handover {
    /// It is not handing over.
    None,
    /// It holds writes back until its successor has caught up.
    Waiting,
    /// It became a replica and asks its successor to take over. No time limit ends this.
    Promoting,
}

/// A replica as its primary sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follower {
    /// The replica's announced IP address.
    pub ip: String,
    /// Receives the stream.
    pub online: bool,
    /// Bytes of the stream that it has acknowledged.
    pub offset: u64,
    /// Seconds since its last acknowledgement.
    pub lag: u64,
}

/// A reply of a server cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field \"{0}\" is missing from the server's INFO or CONFIG GET")]
pub struct MissingField(pub &'static str);

impl Server {
    /// Reads the replies to `INFO` and `CONFIG GET`.
    pub fn parse(info: &str, config: &BTreeMap<String, String>) -> Result<Self, MissingField> {
        let fields: BTreeMap<&str, &str> =
            info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
        let text = |name: &'static str| fields.get(name).copied().ok_or(MissingField(name));
        let number = |name: &'static str| text(name)?.parse::<u64>().map_err(|_| MissingField(name));
        let setting = |name: &'static str| config.get(name).map(String::as_str).ok_or(MissingField(name));
        let setting_number =
            |name: &'static str| setting(name)?.parse::<u64>().map_err(|_| MissingField(name));
        let primary = text("role")? == "master";
        let place = if primary {
            Place::Primary
        } else {
            let port = u16::try_from(number("master_port")?).map_err(|_| MissingField("master_port"))?;
            // A link counts as up once the copy is loaded, but the primary sends nothing before it has heard so, up
            // to a second later: what is written between is lost with it. The backlog is empty as long (7.0.15).
            let streams = number("repl_backlog_histlen")? > 0;
            let up = text("master_link_status")? == "up";
            let link = if up && streams {
                Link::Up { last_io: number("master_last_io_seconds_ago")? }
            } else if up || text("master_sync_in_progress")? == "1" {
                Link::Syncing
            } else {
                Link::Down
            };
            Place::Replica { of: Address { ip: text("master_host")?.to_owned(), port }, link }
        };
        let connected = number("connected_slaves")?;
        let followers =
            fields.iter().filter(|(name, _)| is_follower(name)).filter_map(|(_, line)| follower(line));
        let keys = fields.iter().filter(|(name, _)| is_database(name)).filter_map(|(_, line)| {
            line.split(',').find_map(|part| part.strip_prefix("keys="))?.parse::<u64>().ok()
        });
        Ok(Self {
            run_id: text("run_id")?.to_owned(),
            version: fields
                .get("valkey_version")
                .or(fields.get("redis_version"))
                .copied()
                .unwrap_or_default()
                .to_owned(),
            place,
            loading: text("loading")? == "1",
            lines: [text("master_replid")?.to_owned(), text("master_replid2")?.to_owned()],
            offset: number(if primary { "master_repl_offset" } else { "slave_repl_offset" })?,
            followers: if connected == 0 { Vec::new() } else { followers.collect() },
            quorum: u32::try_from(setting_number("min-replicas-to-write")?).unwrap_or(u32::MAX),
            serve_stale: setting("replica-serve-stale-data")? == "yes",
            maxmemory: setting_number("maxmemory")?,
            policy: setting("maxmemory-policy")?.to_owned(),
            parameters: LIVE
                .iter()
                .filter_map(|parameter| Some((parameter.name, config.get(parameter.name)?.clone())))
                .collect(),
            used_memory: number("used_memory")?,
            keys: keys.sum(),
            handover: match fields.get("master_failover_state").copied() {
                Some("waiting-for-sync") => Handover::Waiting,
                Some("failover-in-progress") => Handover::Promoting,
                _ => Handover::None,
            },
            write_error: fields.get("aof_last_write_status").is_some_and(|status| *status != "ok"),
        })
    }

    /// The settings that [`parse`](Self::parse) takes from `CONFIG GET`; the first four it needs.
    pub fn settings() -> impl Iterator<Item = &'static str> {
        let needed = ["min-replicas-to-write", "replica-serve-stale-data", "maxmemory", "maxmemory-policy"];
        needed.into_iter().chain(LIVE.iter().map(|parameter| parameter.name))
    }

    /// Whether it would accept a write if enough replicas follow.
    pub fn writable(&self) -> bool {
        self.place == Place::Primary && self.quorum < SEALED && self.handover == Handover::None
    }

    /// Whether it is the primary but refuses writes.
    pub fn sealed_primary(&self) -> bool {
        self.place == Place::Primary && self.quorum >= SEALED
    }

    /// Whether it follows nobody, as after its start or when the operator cut it off.
    pub fn detached(&self) -> bool {
        self.follows(NOBODY.0, NOBODY.1)
    }

    /// Whether it follows the server at `ip`:`port`.
    pub fn follows(&self, ip: &str, port: u16) -> bool {
        matches!(&self.place, Place::Replica { of, .. } if of.ip == ip && of.port == port)
    }

    /// State of its link; none for a primary.
    pub fn link(&self) -> Option<Link> {
        match &self.place {
            Place::Primary => None,
            Place::Replica { link, .. } => Some(*link),
        }
    }

    /// What decides anything, without the numbers that move all the time.
    pub fn digest(&self) -> impl PartialEq + use<> {
        let link = self.link().map(|link| match link {
            Link::Up { last_io } => (2, last_io >= 3),
            Link::Syncing => (1, false),
            Link::Down => (0, false),
        });
        let followers: Vec<_> =
            self.followers.iter().map(|f| (f.ip.clone(), f.online && f.lag <= 3)).collect();
        let of = match &self.place {
            Place::Primary => None,
            Place::Replica { of, .. } => Some(of.clone()),
        };
        (
            (self.run_id.clone(), self.version.clone(), of, link, self.loading, followers),
            (self.lines.clone(), self.quorum, self.serve_stale, self.maxmemory, self.policy.clone()),
            (self.keys > 0, self.write_error, self.handover, self.parameters.clone()),
        )
    }
}

/// `slave0`, `slave1`…
fn is_follower(name: &str) -> bool {
    name.strip_prefix("slave")
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `db0`, `db1`…
fn is_database(name: &str) -> bool {
    name.strip_prefix("db")
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `ip=10.0.0.2,port=6379,state=online,offset=42,lag=0`
fn follower(line: &str) -> Option<Follower> {
    let parts: BTreeMap<&str, &str> = line.split(',').filter_map(|part| part.split_once('=')).collect();
    Some(Follower {
        ip: (*parts.get("ip")?).to_owned(),
        online: *parts.get("state")? == "online",
        offset: parts.get("offset")?.parse().ok()?,
        lag: parts.get("lag")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> BTreeMap<String, String> {
        [
            ("min-replicas-to-write", "1000"),
            ("replica-serve-stale-data", "no"),
            ("maxmemory", "100"),
            ("maxmemory-policy", "noeviction"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    // Recorded from redis-server 7.0.15.
    const BOOTED: &str = "# Server\r\nredis_version:7.0.15\r\nrun_id:105af9\r\nused_memory:945560\r\nloading:0\r\naof_last_write_status:ok\r\n\
        role:slave\r\nmaster_host:127.0.0.1\r\nmaster_port:1\r\nmaster_link_status:down\r\nmaster_last_io_seconds_ago:-1\r\n\
        master_sync_in_progress:0\r\nslave_read_repl_offset:1\r\nslave_repl_offset:1\r\nmaster_link_down_since_seconds:-1\r\n\
        slave_priority:100\r\nslave_read_only:1\r\nconnected_slaves:0\r\nmaster_replid:e06a\r\nmaster_replid2:0000\r\nmaster_repl_offset:0\r\nrepl_backlog_histlen:0\r\n";
    const COPIED: &str = "redis_version:7.0.15\r\nrun_id:105af9\r\nused_memory:945560\r\nloading:0\r\naof_last_write_status:ok\r\n\
        role:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:6379\r\nmaster_link_status:up\r\nmaster_last_io_seconds_ago:0\r\n\
        master_sync_in_progress:0\r\nslave_read_repl_offset:28\r\nslave_repl_offset:28\r\nslave_priority:100\r\nslave_read_only:1\r\n\
        connected_slaves:0\r\nmaster_replid:9e2c\r\nmaster_replid2:0000\r\nmaster_repl_offset:28\r\nrepl_backlog_active:1\r\n\
        repl_backlog_first_byte_offset:29\r\nrepl_backlog_histlen:0\r\n";
    const PRIMARY: &str = "redis_version:7.0.15\r\nrun_id:1\r\nused_memory:9\r\nloading:0\r\nrole:master\r\nconnected_slaves:2\r\n\
        slave0:ip=10.0.0.2,port=6379,state=online,offset=42,lag=0\r\nslave1:ip=10.0.0.3,port=6379,state=wait_bgsave,offset=0,lag=5\r\n\
        slave_expires_tracked_keys:0\r\nmaster_replid:9e2c\r\nmaster_replid2:0000\r\nmaster_repl_offset:92\r\n\
        db0:keys=1,expires=0,avg_ttl=0\r\ndb3:keys=4,expires=0,avg_ttl=0\r\n";

    #[test]
    fn a_started_server_is_detached_and_sealed() {
        let server = Server::parse(BOOTED, &settings()).unwrap();
        assert!(server.detached() && !server.writable() && server.quorum == SEALED);
        assert_eq!((server.offset, server.keys, server.link()), (1, 0, Some(Link::Down)));
    }

    #[test]
    fn a_primary_lists_its_followers_and_keys() {
        let mut settings = settings();
        settings.insert("min-replicas-to-write".into(), "1".into());
        let server = Server::parse(PRIMARY, &settings).unwrap();
        assert!(server.writable());
        assert_eq!((server.offset, server.keys), (92, 5));
        assert_eq!(server.followers.len(), 2);
        assert!(server.followers[0].online && !server.followers[1].online);
        assert_eq!((server.followers[0].offset, server.handover), (42, Handover::None));
        let handing_over = format!("{PRIMARY}master_failover_state:waiting-for-sync\r\n");
        assert_eq!(Server::parse(&handing_over, &settings).unwrap().handover, Handover::Waiting);
    }

    #[test]
    fn a_replica_is_synced_when_the_stream_has_begun() {
        let link = |info: &str| Server::parse(info, &settings()).unwrap().link();
        assert_eq!(link(COPIED), Some(Link::Syncing));
        let streams = COPIED.replace("histlen:0", "histlen:14");
        assert_eq!(link(&streams), Some(Link::Up { last_io: 0 }));
        assert_eq!(link(&streams.replace("status:up", "status:down")), Some(Link::Down));
    }

    #[test]
    fn a_missing_field_is_named() {
        assert_eq!(Server::parse("role:master\r\n", &settings()), Err(MissingField("connected_slaves")));
        assert_eq!(Server::parse(PRIMARY, &BTreeMap::new()), Err(MissingField("min-replicas-to-write")));
    }
}
