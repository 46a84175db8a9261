//! OpenAPI v3 as protobuf: messages of gnostic's `openapiv3/OpenAPIv3.proto`, from the document as JSON.

use serde_json::Value;

use super::protobuf::Kind::{Any, Anys, Bool, Double, Each, Integer, Named, One, Text, Texts};
use super::protobuf::{Field, additional, message, security, wrapped};
use crate::protobuf::wire::{bytes, tag, varint_field};

/// `openapi.v3.Document`.
pub(crate) fn encode(document: &Value) -> Vec<u8> {
    message(document, DOCUMENT, 9)
}

const DOCUMENT: &[Field] = &[
    ("openapi", 1, Text),
    ("info", 2, One(|info| message(info, INFO, 7))),
    ("paths", 4, Named(1, |item| message(item, PATH_ITEM, 14))),
    ("components", 5, One(|components| message(components, COMPONENTS, 10))),
    ("security", 6, Each(security)),
];

const INFO: &[Field] = &[("title", 1, Text), ("description", 2, Text), ("version", 6, Text)];

const COMPONENTS: &[Field] = &[
    ("schemas", 1, Named(1, schema_or_reference)),
    ("securitySchemes", 7, Named(1, |scheme| wrapped(1, &message(scheme, SECURITY_SCHEME, 9)))),
];

const SECURITY_SCHEME: &[Field] =
    &[("type", 1, Text), ("description", 2, Text), ("name", 3, Text), ("in", 4, Text)];

const PATH_ITEM: &[Field] = &[
    ("$ref", 1, Text),
    ("summary", 2, Text),
    ("description", 3, Text),
    ("get", 4, One(operation)),
    ("put", 5, One(operation)),
    ("post", 6, One(operation)),
    ("delete", 7, One(operation)),
    ("options", 8, One(operation)),
    ("head", 9, One(operation)),
    ("patch", 10, One(operation)),
    ("trace", 11, One(operation)),
    ("parameters", 13, Each(parameter_or_reference)),
];

const OPERATION: &[Field] = &[
    ("tags", 1, Texts),
    ("summary", 2, Text),
    ("description", 3, Text),
    ("operationId", 5, Text),
    ("parameters", 6, Each(parameter_or_reference)),
    ("requestBody", 7, One(|body| wrapped(1, &message(body, REQUEST_BODY, 4)))),
    ("responses", 8, Named(2, |response| wrapped(1, &message(response, RESPONSE, 5)))),
    ("deprecated", 10, Bool),
    ("security", 11, Each(security)),
];

const REQUEST_BODY: &[Field] =
    &[("description", 1, Text), ("content", 2, MEDIA_TYPES), ("required", 3, Bool)];

const RESPONSE: &[Field] = &[("description", 1, Text), ("content", 3, MEDIA_TYPES)];

const MEDIA_TYPES: super::protobuf::Kind =
    Named(1, |media| message(media, &[("schema", 1, One(schema_or_reference))], 5));

const PARAMETER: &[Field] = &[
    ("name", 1, Text),
    ("in", 2, Text),
    ("description", 3, Text),
    ("required", 4, Bool),
    ("deprecated", 5, Bool),
    ("allowEmptyValue", 6, Bool),
    ("schema", 10, One(schema_or_reference)),
    ("content", 13, MEDIA_TYPES),
];

const SCHEMA: &[Field] = &[
    ("nullable", 1, Bool),
    ("readOnly", 3, Bool),
    ("writeOnly", 4, Bool),
    ("externalDocs", 6, One(|docs| message(docs, &[("description", 1, Text), ("url", 2, Text)], 3))),
    ("example", 7, Any),
    ("deprecated", 8, Bool),
    ("title", 9, Text),
    ("multipleOf", 10, Double),
    ("maximum", 11, Double),
    ("exclusiveMaximum", 12, Bool),
    ("minimum", 13, Double),
    ("exclusiveMinimum", 14, Bool),
    ("maxLength", 15, Integer),
    ("minLength", 16, Integer),
    ("pattern", 17, Text),
    ("maxItems", 18, Integer),
    ("minItems", 19, Integer),
    ("uniqueItems", 20, Bool),
    ("maxProperties", 21, Integer),
    ("minProperties", 22, Integer),
    ("required", 23, Texts),
    ("enum", 24, Anys),
    ("type", 25, Text),
    ("allOf", 26, Each(schema_or_reference)),
    ("oneOf", 27, Each(schema_or_reference)),
    ("anyOf", 28, Each(schema_or_reference)),
    ("not", 29, One(schema)),
    ("items", 30, One(|items| wrapped(1, &schema_or_reference(items)))),
    ("properties", 31, Named(1, schema_or_reference)),
    ("additionalProperties", 32, One(|more| additional(more, schema_or_reference))),
    ("default", 33, One(default)),
    ("description", 34, Text),
    ("format", 35, Text),
];

fn schema(value: &Value) -> Vec<u8> {
    message(value, SCHEMA, 36)
}

fn schema_or_reference(value: &Value) -> Vec<u8> {
    or_reference(value, schema)
}

fn parameter_or_reference(value: &Value) -> Vec<u8> {
    or_reference(value, |parameter| message(parameter, PARAMETER, 14))
}

/// One of two: the thing itself, or where it is.
fn or_reference(value: &Value, write: fn(&Value) -> Vec<u8>) -> Vec<u8> {
    if value.get("$ref").is_some() {
        wrapped(2, &message(value, &[("$ref", 1, Text), ("summary", 2, Text), ("description", 3, Text)], 0))
    } else {
        wrapped(1, &write(value))
    }
}

fn operation(value: &Value) -> Vec<u8> {
    message(value, OPERATION, 13)
}

/// A number, a boolean or a text; nothing of what else a default may be.
fn default(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    match value {
        Value::Number(number) => {
            tag(&mut out, 1, 1);
            out.extend(number.as_f64().unwrap_or_default().to_le_bytes());
        }
        Value::Bool(value) => varint_field(&mut out, 2, u64::from(*value)),
        Value::String(text) => bytes(&mut out, 3, text.as_bytes()),
        _ => {}
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::protobuf::assert_recorded;
    use super::*;

    /// Parts of both answers of kube-apiserver v1.37.2 to a `GET` of the document of a built-in group: encoding the JSON gives the other one.
    /// In documents of custom groups, upstream writes some values as another YAML of the same meaning; here, the keys of maps are
    /// sorted.
    #[test]
    fn recorded_documents_are_encoded_byte_for_byte() {
        for line in include_str!("recorded_v3.txt").lines() {
            assert_recorded(line, encode);
        }
    }
}
