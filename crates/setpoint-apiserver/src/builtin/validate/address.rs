//! Addresses as Go once read them: more forms than are right.

use std::net::IpAddr;

/// An address, and in which unusual way it is written.
pub struct Read {
    /// As it is written: one of IPv4 in IPv6 is of IPv6.
    pub address: IpAddr,
    /// With zeros before a decimal number.
    pub zeros: bool,
    /// An address of IPv4 in one of IPv6.
    pub mapped: bool,
}

pub fn read(text: &str) -> Option<Read> {
    if let Ok(address) = text.parse::<IpAddr>() {
        let mapped = matches!(address, IpAddr::V6(six) if six.to_ipv4_mapped().is_some());
        return Some(Read { address, zeros: false, mapped });
    }
    if text.contains(':') {
        return None;
    }
    let parts = text.split('.').map(|part| match part.trim_start_matches('0') {
        "" if !part.is_empty() => "0",
        short => short,
    });
    let address = parts.collect::<Vec<_>>().join(".").parse().ok()?;
    Some(Read { address, zeros: true, mapped: false })
}
