//! JSON pointers (RFC 6901) with one more kind of segment: `[a.b=text]` is the first item of a list whose `a.b` is `text`.

use serde_json::Value;

/// What `pointer` leads to.
pub(crate) fn get<'a>(value: &'a Value, pointer: &str) -> Option<&'a Value> {
    segments(pointer).try_fold(value, |value, segment| match value {
        Value::Array(items) => items.get(index(items, &segment)?),
        Value::Object(fields) => fields.get(&segment),
        _ => None,
    })
}

/// What `pointer` leads to, to be changed.
pub(crate) fn get_mut<'a>(value: &'a mut Value, pointer: &str) -> Option<&'a mut Value> {
    segments(pointer).try_fold(value, |value, segment| match value {
        Value::Array(items) => {
            let index = index(items, &segment)?;
            items.get_mut(index)
        }
        Value::Object(fields) => fields.get_mut(&segment),
        _ => None,
    })
}

fn segments(pointer: &str) -> impl Iterator<Item = String> {
    pointer.split('/').skip(1).map(|segment| segment.replace("~1", "/").replace("~0", "~"))
}

fn index(items: &[Value], segment: &str) -> Option<usize> {
    let Some(test) = segment.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
        return segment.parse().ok();
    };
    let (path, text) = test.split_once('=')?;
    items.iter().position(|item| {
        path.split('.').try_fold(item, |value, key| value.get(key)).and_then(Value::as_str) == Some(text)
    })
}
