//! YAML as Kubernetes reads it (`sigs.k8s.io/yaml`): the first document, scalars by the rules of YAML 1.1, merged mappings. Of a key that is given more than
//! once the last one counts, and the lines of the others are named.

mod scalar;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};
use serde_json::{Map, Value};

use self::scalar::Scalar;
use super::json::whole_numbers;

/// How many keys are named at most.
const NAMED: usize = 100;
/// How deep collections may lie in one another, as in JSON bodies.
const DEPTH: usize = 127;
/// The types that YAML itself names.
const CORE: &str = "tag:yaml.org,2002:";

/// Parses a document; names the keys that it gives again, by line.
pub(super) fn parse(text: &str) -> Result<(Value, Vec<String>), String> {
    let mut reader = Reader::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| said(text, error.marker().line(), &error.info()))?;
        let value = match event {
            Event::Scalar(content, style, anchor, tag) => {
                let tag = tag.map(|tag: Cow<'_, Tag>| {
                    tag.suffix_in_namespace(CORE).map(Cow::into_owned).unwrap_or_default()
                });
                let plain = style == ScalarStyle::Plain;
                if plain && tag.is_none() && content == "<<" && reader.awaits_key() {
                    reader.key = Key::Merge(span.start.line());
                    continue;
                }
                let scalar = scalar::read(&content, plain, tag.as_deref())?;
                if reader.awaits_key() {
                    reader.key(&scalar, span.start.line())?;
                    reader.anchor(anchor, || scalar.into_value(), 1)?;
                    continue;
                }
                let value = scalar.into_value()?;
                reader.anchor(anchor, || Ok(value.clone()), 1)?;
                reader.decoded += 1;
                value
            }
            Event::Alias(anchor) => {
                let Some((value, size)) = reader.anchors.get(&anchor).cloned() else {
                    let name = alias(text, span);
                    return Err(format!("yaml: anchor '{name}' value contains itself"));
                };
                if reader.awaits_key() {
                    let Value::String(name) = value else {
                        return Err("yaml: invalid map key".to_owned());
                    };
                    reader.key(&Scalar::Text(name), span.start.line())?;
                    continue;
                }
                reader.decoded += size;
                reader.aliased += size;
                reader.refuse_bomb()?;
                value
            }
            Event::SequenceStart(_, anchor, _) => {
                reader.open(Collection::Sequence(Vec::new()), anchor)?;
                continue;
            }
            Event::MappingStart(_, anchor, _) => {
                reader.open(Collection::Mapping(Mapping::default()), anchor)?;
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => reader.close()?,
            // What follows the first document is not looked at.
            Event::DocumentEnd => break,
            _ => continue,
        };
        reader.put(value)?;
    }
    let mut value = reader.document;
    whole_numbers(&mut value);
    Ok((value, reader.repeated))
}

/// The name after the `*` of an alias.
fn alias(text: &str, span: Span) -> String {
    let line = text.lines().nth(span.start.line().saturating_sub(1)).unwrap_or_default();
    let rest = line.chars().skip(span.start.col()).skip_while(|c| *c == '*');
    rest.take_while(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
}

/// An error in the words of Go's parser, where it is one of those that people make.
fn said(text: &str, line: usize, why: &str) -> String {
    let open = |open: char, close: char| text.matches(open).count() > text.matches(close).count();
    let known = if open('[', ']') {
        "did not find expected ',' or ']'"
    } else if open('{', '}') {
        "did not find expected ',' or '}'"
    } else if why.contains("mapping values") {
        "mapping values are not allowed in this context"
    } else {
        why
    };
    format!("yaml: line {line}: {known}")
}

/// A collection that has not ended.
enum Collection {
    Sequence(Vec<Value>),
    Mapping(Mapping),
}

#[derive(Default)]
struct Mapping {
    fields: Map<String, Value>,
    /// The keys as Go sees them: `1` and `"1"` are two.
    seen: BTreeSet<String>,
}

/// What the next value of a mapping is for.
#[derive(Default)]
enum Key {
    /// It is a key itself.
    #[default]
    Awaited,
    Field(String),
    /// `<<`, at a line: the fields of the value become the mapping's.
    Merge(usize),
}

#[derive(Default)]
struct Reader {
    /// The collections that are open, the innermost last.
    open: Vec<Open>,
    /// Of the innermost collection.
    key: Key,
    /// Anchored values, and how many nodes they have.
    anchors: BTreeMap<usize, (Value, usize)>,
    repeated: Vec<String>,
    /// How many nodes there are, and how many of them through aliases.
    decoded: usize,
    aliased: usize,
    document: Value,
}

struct Open {
    collection: Collection,
    anchor: usize,
    /// The key of the collection around it.
    key: Key,
    /// How many nodes there were before it.
    before: usize,
}

impl Reader {
    fn awaits_key(&self) -> bool {
        let in_mapping = matches!(self.open.last(), Some(Open { collection: Collection::Mapping(_), .. }));
        in_mapping && matches!(self.key, Key::Awaited)
    }

    fn key(&mut self, key: &Scalar, line: usize) -> Result<(), String> {
        self.see(key.as_go(), line);
        self.key = Key::Field(key.clone().into_key()?);
        Ok(())
    }

    fn see(&mut self, key: String, line: usize) {
        if let Some(Open { collection: Collection::Mapping(mapping), .. }) = self.open.last_mut() {
            if mapping.seen.contains(&key) && self.repeated.len() < NAMED {
                self.repeated.push(format!("line {line}: key {key} already set in map"));
            }
            mapping.seen.insert(key);
        }
    }

    fn anchor(
        &mut self,
        anchor: usize,
        value: impl FnOnce() -> Result<Value, String>,
        size: usize,
    ) -> Result<(), String> {
        // Zero is none.
        if anchor != 0 {
            self.anchors.insert(anchor, (value()?, size));
        }
        Ok(())
    }

    fn open(&mut self, collection: Collection, anchor: usize) -> Result<(), String> {
        if self.awaits_key() {
            return Err("yaml: invalid map key".to_owned());
        }
        if self.open.len() > DEPTH {
            return Err("yaml: exceeded max depth".to_owned());
        }
        self.decoded += 1;
        let key = std::mem::take(&mut self.key);
        self.open.push(Open { collection, anchor, key, before: self.decoded });
        Ok(())
    }

    /// Ends the innermost collection.
    fn close(&mut self) -> Result<Value, String> {
        let Some(ended) = self.open.pop() else { return Ok(Value::Null) };
        self.key = ended.key;
        let value = match ended.collection {
            Collection::Sequence(items) => Value::Array(items),
            Collection::Mapping(mapping) => Value::Object(mapping.fields),
        };
        let size = self.decoded - ended.before + 1;
        self.anchor(ended.anchor, || Ok(value.clone()), size)?;
        Ok(value)
    }

    /// Gives a value its place.
    fn put(&mut self, value: Value) -> Result<(), String> {
        match self.open.last_mut() {
            None => self.document = value,
            Some(Open { collection: Collection::Sequence(items), .. }) => items.push(value),
            Some(Open { collection: Collection::Mapping(mapping), .. }) => {
                match std::mem::take(&mut self.key) {
                    Key::Field(name) => {
                        mapping.fields.insert(name, value);
                    }
                    Key::Merge(line) => self.merge(value, line)?,
                    Key::Awaited => return Err("yaml: invalid map key".to_owned()),
                }
            }
        }
        Ok(())
    }

    /// The fields of what `<<` names: a mapping, or several, of which the first counts most.
    fn merge(&mut self, value: Value, line: usize) -> Result<(), String> {
        let mappings = match value {
            Value::Array(items) => items,
            one => vec![one],
        };
        for mapping in mappings.into_iter().rev() {
            let Value::Object(merged) = mapping else {
                return Err("yaml: map merge requires map or sequence of maps as the value".to_owned());
            };
            for (name, value) in merged {
                self.see(Scalar::Text(name.clone()).as_go(), line);
                if let Some(Open { collection: Collection::Mapping(mapping), .. }) = self.open.last_mut() {
                    mapping.fields.insert(name, value);
                }
            }
        }
        Ok(())
    }

    /// Refuses a small document that stands for a large one, as upstream does (`allowedAliasRatio`): the more nodes there are, the fewer of
    /// them may come from aliases.
    fn refuse_bomb(&self) -> Result<(), String> {
        const FEW: f64 = 400_000.0;
        const MANY: f64 = 4_000_000.0;
        let (decoded, aliased) = (self.decoded as f64, self.aliased as f64);
        let allowed = 0.99 - 0.89 * ((decoded - FEW) / (MANY - FEW)).clamp(0.0, 1.0);
        if self.aliased > 100 && self.decoded > 1000 && aliased / decoded > allowed {
            return Err("yaml: document contains excessive aliasing".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_of_a_key_counts_and_its_line_is_named() {
        let (value, repeated) = parse("a: 1\nb:\n  c: x\n  c: z\na: 2.0\n").unwrap();
        assert_eq!(value, json!({"a": 2, "b": {"c": "z"}}));
        assert_eq!(
            repeated,
            ["line 4: key \"c\" already set in map", "line 5: key \"a\" already set in map"]
        );
    }

    #[test]
    fn common_faults_are_said_as_go_says_them() {
        assert_eq!(parse("a: [b").unwrap_err(), "yaml: line 1: did not find expected ',' or ']'");
        assert_eq!(parse("? [a]\n: b").unwrap_err(), "yaml: invalid map key");
        assert_eq!(parse("&a [*a]").unwrap_err(), "yaml: anchor 'a' value contains itself");
        for nothing in ["", "---", "# a comment\n", "null"] {
            assert!(parse(nothing).unwrap().0.is_null(), "{nothing:?}");
        }
    }

    #[test]
    fn scalars_and_nesting() {
        let (value, _) = parse("- 1\n- ~\n- on\n- 'x'\n- {a: [1.5], y: 010}\n- 2026-01-01\n").unwrap();
        assert_eq!(value, json!([1, null, true, "x", {"a": [1.5], "true": 8}, "2026-01-01"]));
    }

    #[test]
    fn the_first_document_counts() {
        assert_eq!(parse("a: 1\n---\nb: 2\n").unwrap().0, json!({"a": 1}));
        assert_eq!(parse("{a: 1}\n...\nwhatever: [").unwrap().0, json!({"a": 1}));
    }

    #[test]
    fn aliases_and_merged_mappings() {
        let (value, repeated) =
            parse("base: &b {q: '1', r: 2}\none:\n  <<: *b\n  q: '3'\ntwo: {<<: [{r: 5}, *b], s: *b}\nk: &k v\n*k : w\n")
                .unwrap();
        let base = json!({"q": "1", "r": 2});
        let expected = json!({
            "base": base, "one": {"q": "3", "r": 2}, "two": {"q": "1", "r": 5, "s": base}, "k": "v", "v": "w",
        });
        assert_eq!(value, expected);
        assert_eq!(
            repeated,
            ["line 4: key \"q\" already set in map", "line 5: key \"r\" already set in map"]
        );
        assert!(parse("<<: 5").unwrap_err().contains("map merge requires map"));
        assert_eq!(parse("'<<': 5").unwrap().0, json!({"<<": 5}));
    }

    #[test]
    fn a_bomb_is_refused_before_it_goes_off() {
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..12 {
            let before = format!("*a{}", level - 1);
            let items = vec![before; 10].join(",");
            bomb.extend(["a", &level.to_string(), ": &a", &level.to_string(), " [", &items, "]\n"]);
        }
        assert_eq!(parse(&bomb).unwrap_err(), "yaml: document contains excessive aliasing");
        let deep = "[".repeat(200) + &"]".repeat(200);
        assert_eq!(parse(&deep).unwrap_err(), "yaml: exceeded max depth");
        let deep = "[".repeat(100) + &"]".repeat(100);
        parse(&deep).unwrap();
    }
}
