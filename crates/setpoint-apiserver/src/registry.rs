//! What happens to a request for a resource between authorization and the store.
//!
//! ```text
//! body ─▶ decode · default ─▶ managed fields ─▶ mutating admission ─▶ prepare · validate ─▶ validating admission ─▶ store
//!            ▲                                                                                             │ raced?
//!            └───────────────── updates, patches and applies start again from the object as it is now ◀───┘
//! ```

mod conversion;
mod create;
mod decode;
mod definitions;
mod delete;
mod escalation;
mod eviction;
mod fields;
mod list;
mod mismade;
mod modify;
mod options;
mod patch;
mod patched;
mod pods;
mod prepare;
mod scale;
mod services;
mod shape;
mod tracked;
mod unsupported;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, ReentrantMutex, ReentrantMutexGuard};
use serde_json::Value;
use setpoint_clock::{Clock, Entropy};

use crate::admission::CompiledPolicies;
use crate::catalog::{Catalog, Resource};
use crate::custom;
use crate::object::timestamp;
use crate::openapi::KeptV2;
use crate::status::{Result, Status};
use crate::store::{Key, Store, Stored};
use crate::webhooks;

pub(crate) use self::decode::go::unread_query_time as unread_time;
pub(crate) use self::decode::{another_kind, parse_body, parse_object};
use self::definitions::Installed;
pub(crate) use self::delete::DeleteOptions;
pub(crate) use self::list::{ListOptions, ListPage};
pub(crate) use self::mismade::Mismade;
pub(crate) use self::options::WriteOptions;
pub(crate) use self::patch::PatchKind;
pub(crate) use self::scale::SCALE;
use self::services::Reserved;
pub(crate) use self::shape::{check, is_served_as_stored, read_posted, redecode, served};
pub(crate) use self::watch::{WatchEvent, WatchStream};
pub(crate) use setpoint_schema::printed;

/// The objects and everything that is done to them.
pub(crate) struct Registry {
    pub(crate) store: Store,
    pub(crate) catalog: Catalog,
    pub(crate) clock: Clock,
    pub(crate) entropy: Entropy,
    pub(crate) admission: Admission,
    /// Addresses and ports of Services that are being written, so that no two get the same.
    reserved: Mutex<Vec<Reserved>>,
    /// See [`Registry::defining`]. A definition's removal, within a write to it, may give its names to another one.
    defining: ReentrantMutex<()>,
    installed: Mutex<BTreeMap<String, Installed>>,
    pub(crate) compiled_policies: CompiledPolicies,
    /// Held while quotas are charged, so that no two writes get the same room.
    pub(crate) charging: Mutex<()>,
    pub(crate) webhook_servers: webhooks::Servers,
    pub(crate) webhook_connections: webhooks::Pool,
    pub(crate) openapi: KeptV2,
}

/// What depends on the cluster that the server is for.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// Whether pods are given a service account, and refused when it doesn't exist (admission plugin ServiceAccount).
    pub(crate) service_accounts: bool,
    /// Groups and kinds on which nothing acts.
    pub(crate) idle: Vec<(String, String)>,
}

/// What a write did.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) code: u16,
    pub(crate) object: Answer,
    pub(crate) warnings: Vec<String>,
}

/// The object or `Status` to answer with.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Stored(Arc<Stored>),
    /// A dry run's result.
    Draft(Value),
    /// Something that is not of the resource's kind (a `Status`, a `Scale`).
    Other(Value),
}

/// The object a request is about.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) resource: Arc<Resource>,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Place {
    pub(crate) fn key(&self) -> Key {
        let namespace = if self.resource.namespaced { self.namespace.as_str() } else { "" };
        Key::new(namespace, self.name.as_str())
    }

    pub(crate) fn not_found(&self) -> Status {
        let mut subject = self.resource.subject(&self.name);
        if subject.kind == "componentstatuses" {
            // As upstream, which names no resource here.
            subject.kind = "componentstatus";
        }
        Status::not_found(subject)
    }
}

impl Registry {
    pub(crate) fn new(store: Store, clock: Clock, entropy: Entropy, admission: Admission) -> Self {
        Self {
            store,
            catalog: Catalog::new(),
            clock,
            entropy,
            admission,
            reserved: Mutex::default(),
            defining: ReentrantMutex::new(()),
            installed: Mutex::default(),
            compiled_policies: CompiledPolicies::default(),
            charging: Mutex::default(),
            webhook_servers: webhooks::Servers::default(),
            webhook_connections: webhooks::Pool::default(),
            openapi: KeptV2::default(),
        }
    }

    /// Now, as objects carry it.
    pub(crate) fn now(&self) -> String {
        timestamp(self.clock.now())
    }

    /// Refuses a version that a reader asks for at least, and that is none or has not come yet.
    pub(crate) fn check_version_asked(&self, version: &str) -> Result<()> {
        if version.is_empty() {
            return Ok(());
        }
        let asked = list::parse_version(version).map_err(|why| {
            Status::unknown(format!(
                "resourceVersion: Invalid value: {version:?}: strconv.ParseUint: parsing {version:?}: {why}"
            ))
        })?;
        let now = self.store.revision();
        if asked > now { Err(Status::too_large_version(asked, now)) } else { Ok(()) }
    }

    pub(crate) fn get(&self, place: &Place) -> Result<Arc<Stored>> {
        self.store.get(&place.resource.storage, &place.key()).ok_or_else(|| place.not_found())
    }

    /// Held from the choice of a definition's names until they are served, so that no two get the same.
    fn defining(&self, resource: &Resource) -> Option<ReentrantMutexGuard<'_, ()>> {
        resource.is(custom::GROUP, custom::PLURAL).then(|| self.defining.lock())
    }
}
