use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a server does when its memory is used up.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Default)]
pub enum MaxmemoryPolicy {
    /// Evict any key, the least recently used first.
    #[serde(rename = "allkeys-lru")]
    AllkeysLru,
    /// Evict keys that have a time to live, the least recently used first.
    #[serde(rename = "volatile-lru")]
    VolatileLru,
    /// Evict any key, the least frequently used first.
    #[serde(rename = "allkeys-lfu")]
    AllkeysLfu,
    /// Evict keys that have a time to live, the least frequently used first.
    #[serde(rename = "volatile-lfu")]
    VolatileLfu,
    /// Evict any key.
    #[serde(rename = "allkeys-random")]
    AllkeysRandom,
    /// Evict keys that have a time to live.
    #[serde(rename = "volatile-random")]
    VolatileRandom,
    /// Evict keys that have a time to live, those that end first.
    #[serde(rename = "volatile-ttl")]
    VolatileTtl,
    /// Evict nothing and refuse writes that need memory.
    #[default]
    #[serde(rename = "noeviction")]
    Noeviction,
}

impl MaxmemoryPolicy {
    /// The policy as `CONFIG SET maxmemory-policy` takes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllkeysLru => "allkeys-lru",
            Self::VolatileLru => "volatile-lru",
            Self::AllkeysLfu => "allkeys-lfu",
            Self::VolatileLfu => "volatile-lfu",
            Self::AllkeysRandom => "allkeys-random",
            Self::VolatileRandom => "volatile-random",
            Self::VolatileTtl => "volatile-ttl",
            Self::Noeviction => "noeviction",
        }
    }

    /// Whether a server can always make room by it.
    pub fn evicts_all(self) -> bool {
        matches!(self, Self::AllkeysLru | Self::AllkeysLfu | Self::AllkeysRandom)
    }
}
