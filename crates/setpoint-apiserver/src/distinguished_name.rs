//! Distinguished names in DER, to the last byte: what a lenient reader skips could name a group that another reader sees
//! (`crypto/x509.parseName` and `encoding/asn1` of Go).

use std::str::from_utf8;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;

/// `commonName`, as the content of an object identifier.
pub(crate) const COMMON_NAME: &[u8] = &[0x55, 4, 3];
/// `organizationName`.
pub(crate) const ORGANIZATION: &[u8] = &[0x55, 4, 10];
/// The uid of a user of Kubernetes, 1.3.6.1.4.1.57683.2 (upstream: `dataclasses.UIDOID`).
pub(crate) const UID: &[u8] = &[0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2];

/// The attributes of a name, in order; those whose value is no text are left out.
#[derive(Debug)]
pub(crate) struct Name<'a>(Vec<(&'a [u8], String)>);

impl<'a> Name<'a> {
    /// Reads a name. `None` if anything of it is not as it should be.
    pub(crate) fn read(der: &'a [u8]) -> Option<Self> {
        let mut attributes = Vec::new();
        let (mut parts, rest) = value(der, SEQUENCE)?;
        while !parts.is_empty() {
            let mut set;
            (set, parts) = value(parts, SET)?;
            while !set.is_empty() {
                let attribute;
                (attribute, set) = value(set, SEQUENCE)?;
                let (kind, content) = value(attribute, OBJECT_IDENTIFIER)?;
                let (tag, content, end) = any(content)?;
                if !end.is_empty() {
                    return None;
                }
                if let Some(text) = text(tag, content)? {
                    attributes.push((kind, text));
                }
            }
        }
        rest.is_empty().then_some(Self(attributes))
    }

    /// The values of an attribute.
    pub(crate) fn all(&self, kind: &[u8]) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(known, _)| *known == kind).map(|(_, text)| text.as_str())
    }
}

/// The content of a value with this tag, and what follows it.
fn value(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = any(der)?;
    (found == tag).then_some((content, rest))
}

/// A value's tag and content, and what follows it. Lengths are written as shortly as they can be.
fn any(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = bytes.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
            if length < 0x80 || bytes[0] == 0 {
                return None;
            }
            (length, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    // Tags of several bytes are none of a name.
    (tag & 0x1f != 0x1f).then_some((tag, content, rest))
}

/// A value as text: `None` inside for one that is of another type, and no value at all for one that is not what it says.
#[expect(clippy::option_option, reason = "two ways not to be text")]
fn text(tag: u8, content: &[u8]) -> Option<Option<String>> {
    let ascii = |may: fn(u8) -> bool| content.iter().all(|byte| may(*byte));
    let utf8 = || from_utf8(content).ok().map(|text| Some(text.to_owned()));
    match tag {
        // UTF8String
        0x0c => utf8(),
        // NumericString
        0x12 => ascii(|byte| byte.is_ascii_digit() || byte == b' ').then(utf8)?,
        // PrintableString, with what Go lets pass
        0x13 => ascii(|byte| byte.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(&byte)).then(utf8)?,
        // T61String
        0x14 => Some(Some(content.iter().map(|byte| char::from(*byte)).collect())),
        // IA5String
        0x16 => ascii(|byte| byte.is_ascii()).then(utf8)?,
        // BMPString
        0x1e => {
            let (units, rest) = content.as_chunks::<2>();
            let units = units.iter().map(|unit| u16::from_be_bytes(*unit));
            let text: String = char::decode_utf16(units).collect::<Result<_, _>>().ok()?;
            rest.is_empty().then(|| Some(text.trim_end_matches('\0').to_owned()))
        }
        _ => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, content.len() as u8], content].concat()
    }

    fn part(kind: &[u8], tag: u8, content: &[u8]) -> Vec<u8> {
        der(SET, &der(SEQUENCE, &[der(OBJECT_IDENTIFIER, kind), der(tag, content)].concat()))
    }

    fn organizations(parts: &[Vec<u8>]) -> Option<Vec<String>> {
        let der = der(SEQUENCE, &parts.concat());
        Name::read(&der).map(|name| name.all(ORGANIZATION).map(str::to_owned).collect())
    }

    #[test]
    fn every_kind_of_text_is_read() {
        let wide: Vec<u8> = "wide".encode_utf16().flat_map(u16::to_be_bytes).collect();
        let parts = [
            part(ORGANIZATION, 0x0c, "tëam".as_bytes()),
            part(COMMON_NAME, 0x13, b"ann"),
            part(ORGANIZATION, 0x13, b"print"),
            part(ORGANIZATION, 0x14, &[0xe9]),
            part(ORGANIZATION, 0x16, b"ia5_@"),
            part(ORGANIZATION, 0x1e, &wide),
            part(ORGANIZATION, 0x02, &[1]),
        ];
        assert_eq!(organizations(&parts).unwrap(), ["tëam", "print", "é", "ia5_@", "wide"]);
        let several =
            [part(ORGANIZATION, 0x0c, b"a"), part(COMMON_NAME, 0x0c, b"b")].map(|part| part[2..].to_vec());
        assert_eq!(organizations(&[der(SET, &several.concat())]).unwrap(), ["a"]);
        assert_eq!(organizations(&[]).unwrap(), <[&str; 0]>::default());
    }

    #[test]
    fn what_is_not_a_name_to_its_last_byte_is_none() {
        let good = part(ORGANIZATION, 0x0c, b"system:masters");
        // What a reader takes for the end of the name, and behind it the group.
        assert_eq!(organizations(&[der(SEQUENCE, b""), good.clone()]), None);
        assert_eq!(organizations(&[good.clone(), vec![SET, 9]]), None);
        assert_eq!(organizations(&[part(ORGANIZATION, 0x13, b"a_b")]), None);
        assert_eq!(organizations(&[part(ORGANIZATION, 0x0c, &[0xff])]), None);
        assert_eq!(organizations(&[part(ORGANIZATION, 0x1e, &[0])]), None);
        let name = der(SEQUENCE, &good);
        assert!(Name::read(&name).is_some());
        assert!(Name::read(&name[..name.len() - 1]).is_none());
        assert!(Name::read(&[name.as_slice(), &[0]].concat()).is_none());
        let long = [&[SEQUENCE, 0x81, good.len() as u8], good.as_slice()].concat();
        assert!(Name::read(&long).is_none(), "a length in more bytes than it needs");
    }
}
