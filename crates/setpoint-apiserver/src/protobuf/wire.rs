//! How protobuf writes fields.

/// The number of a field and how it is written.
pub(crate) fn tag(out: &mut Vec<u8>, number: u32, wire: u8) {
    varint(out, u64::from(number) << 3 | u64::from(wire));
}

/// A field with a length: a text, bytes, a message.
pub(crate) fn bytes(out: &mut Vec<u8>, number: u32, content: &[u8]) {
    tag(out, number, 2);
    varint(out, content.len() as u64);
    out.extend(content);
}

/// A number in a field.
pub(crate) fn varint_field(out: &mut Vec<u8>, number: u32, value: u64) {
    tag(out, number, 0);
    varint(out, value);
}

pub(crate) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
