//! Values as Go's `fmt` prints them.

use serde_json::Value;

/// A value as `%v` prints what Go decodes JSON to: `map[a:1 b:[x y]]`, `<nil>`.
pub fn printed(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(_) => value.to_string(),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) if float != 0.0 && !(1e-4..1e21).contains(&float.abs()) => exponent(float),
            _ => number.to_string(),
        },
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(printed).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            let fields: Vec<_> =
                sorted.into_iter().map(|(name, value)| format!("{name}:{}", printed(value))).collect();
            format!("map[{}]", fields.join(" "))
        }
    }
}

/// `1e+21`: Go writes at least two digits of an exponent, and its sign.
fn exponent(float: f64) -> String {
    let text = format!("{float:e}");
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = power.strip_prefix('-').map_or(('+', power), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_look_as_in_go() {
        let value = json!({"b": [1, "x", null], "a": {"c": true}, "f": 1.5, "g": 1e21, "h": 1e-7});
        assert_eq!(printed(&value), "map[a:map[c:true] b:[1 x <nil>] f:1.5 g:1e+21 h:1e-07]");
        assert_eq!(printed(&json!({})), "map[]");
    }
}
