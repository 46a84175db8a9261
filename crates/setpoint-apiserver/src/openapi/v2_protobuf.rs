//! OpenAPI v2 as protobuf: messages of gnostic's `openapiv2/OpenAPIv2.proto`, which client-go's discovery asks for, from the document as JSON.

use serde_json::Value;

use super::protobuf::Kind::{Any, Anys, Bool, Double, Each, Integer, Named, One, Text, Texts};
use super::protobuf::{Field, additional, message, security, texts, wrapped};

/// `openapi.v2.Document`.
pub(crate) fn encode(document: &Value) -> Vec<u8> {
    message(document, DOCUMENT, 16)
}

const DOCUMENT: &[Field] = &[
    ("swagger", 1, Text),
    ("info", 2, One(|info| message(info, INFO, 7))),
    ("host", 3, Text),
    ("basePath", 4, Text),
    ("schemes", 5, Texts),
    ("consumes", 6, Texts),
    ("produces", 7, Texts),
    ("paths", 8, Named(2, |item| message(item, PATH_ITEM, 10))),
    ("definitions", 9, Named(1, schema)),
    ("parameters", 10, Named(1, parameter)),
    ("security", 12, Each(security)),
    // The second of the kinds of definitions: a key.
    ("securityDefinitions", 13, Named(1, |item| wrapped(2, &message(item, API_KEY, 5)))),
];

const INFO: &[Field] = &[("title", 1, Text), ("version", 2, Text), ("description", 3, Text)];

const API_KEY: &[Field] = &[("type", 1, Text), ("name", 2, Text), ("in", 3, Text), ("description", 4, Text)];

const PATH_ITEM: &[Field] = &[
    ("$ref", 1, Text),
    ("get", 2, One(operation)),
    ("put", 3, One(operation)),
    ("post", 4, One(operation)),
    ("delete", 5, One(operation)),
    ("options", 6, One(operation)),
    ("head", 7, One(operation)),
    ("patch", 8, One(operation)),
    ("parameters", 9, Each(parameter_or_reference)),
];

const OPERATION: &[Field] = &[
    ("tags", 1, Texts),
    ("summary", 2, Text),
    ("description", 3, Text),
    ("operationId", 5, Text),
    ("produces", 6, Texts),
    ("consumes", 7, Texts),
    ("parameters", 8, Each(parameter_or_reference)),
    ("responses", 9, Named(1, |response| wrapped(1, &message(response, RESPONSE, 5)))),
    ("schemes", 10, Texts),
    ("deprecated", 11, Bool),
    ("security", 12, Each(security)),
];

const RESPONSE: &[Field] =
    &[("description", 1, Text), ("schema", 2, One(|content| wrapped(1, &schema(content))))];

const BODY: &[Field] = &[
    ("description", 1, Text),
    ("name", 2, Text),
    ("in", 3, Text),
    ("required", 4, Bool),
    ("schema", 5, One(schema)),
];

/// Parameters of a query.
const QUERY: &[Field] = &[
    ("required", 1, Bool),
    ("in", 2, Text),
    ("description", 3, Text),
    ("name", 4, Text),
    ("allowEmptyValue", 5, Bool),
    ("type", 6, Text),
    ("format", 7, Text),
    ("pattern", 17, Text),
    ("uniqueItems", 20, Bool),
    ("enum", 21, Anys),
];

/// Parameters of a path or a header: as those of a query without `allowEmptyValue`.
const PATH: &[Field] = &[
    ("required", 1, Bool),
    ("in", 2, Text),
    ("description", 3, Text),
    ("name", 4, Text),
    ("type", 5, Text),
    ("format", 6, Text),
    ("pattern", 16, Text),
    ("uniqueItems", 19, Bool),
    ("enum", 20, Anys),
];

const SCHEMA: &[Field] = &[
    ("$ref", 1, Text),
    ("format", 2, Text),
    ("title", 3, Text),
    ("description", 4, Text),
    ("default", 5, Any),
    ("multipleOf", 6, Double),
    ("maximum", 7, Double),
    ("exclusiveMaximum", 8, Bool),
    ("minimum", 9, Double),
    ("exclusiveMinimum", 10, Bool),
    ("maxLength", 11, Integer),
    ("minLength", 12, Integer),
    ("pattern", 13, Text),
    ("maxItems", 14, Integer),
    ("minItems", 15, Integer),
    ("uniqueItems", 16, Bool),
    ("maxProperties", 17, Integer),
    ("minProperties", 18, Integer),
    ("required", 19, Texts),
    ("enum", 20, Anys),
    ("additionalProperties", 21, One(|more| additional(more, schema))),
    ("type", 22, One(|name| texts(1, name))),
    ("items", 23, One(|items| wrapped(1, &schema(items)))),
    ("allOf", 24, Each(schema)),
    ("properties", 25, Named(1, schema)),
    ("externalDocs", 29, One(|docs| message(docs, EXTERNAL_DOCS, 3))),
    ("example", 30, Any),
];

const EXTERNAL_DOCS: &[Field] = &[("description", 1, Text), ("url", 2, Text)];

fn schema(value: &Value) -> Vec<u8> {
    message(value, SCHEMA, 31)
}

fn operation(value: &Value) -> Vec<u8> {
    message(value, OPERATION, 13)
}

fn parameter_or_reference(value: &Value) -> Vec<u8> {
    if value.get("$ref").is_some() {
        wrapped(2, &message(value, &[("$ref", 1, Text), ("description", 2, Text)], 0))
    } else {
        wrapped(1, &parameter(value))
    }
}

/// A parameter is one of the body or another one, and that is one of several kinds.
fn parameter(value: &Value) -> Vec<u8> {
    match value["in"].as_str() {
        Some("body") => wrapped(1, &message(value, BODY, 6)),
        Some("header") => wrapped(2, &wrapped(1, &message(value, PATH, 22))),
        Some("path") => wrapped(2, &wrapped(4, &message(value, PATH, 22))),
        _ => wrapped(2, &wrapped(3, &message(value, QUERY, 23))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::protobuf::assert_recorded;
    use super::*;

    /// Parts of both answers of kube-apiserver v1.37.2 to `GET /openapi/v2`: encoding the JSON gives the other one.
    #[test]
    fn a_recorded_document_is_encoded_byte_for_byte() {
        assert_recorded(include_str!("recorded_v2.txt"), encode);
    }
}
