//! How large and how deep a JSON value is, measured without copying it.

use std::io;

use serde_json::Value;

/// The length of `value` as compact JSON, in bytes.
#[must_use]
pub fn json_size(value: &Value) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.saturating_add(bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // A value has only string keys and counting cannot fail.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// How many lists and objects are nested in `value`, itself included: 0 for a scalar.
pub(crate) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_measured() {
        for value in [json!(null), json!({"a": [1, {"b\n": "é"}], "c": {}}), json!("x")] {
            assert_eq!(json_size(&value), value.to_string().len());
        }
        assert_eq!(depth(&json!(1)), 0);
        assert_eq!(depth(&json!({"a": [1, {"b": 2}]})), 3);
    }
}
