use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE};
use http::{Method, Request};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::Error;

/// What may stand in a query as it is (RFC 3986, unreserved).
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// What the answer should look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Whole,
    Metadata,
    MetadataList,
}

/// A request to the API server.
pub(crate) fn request(
    method: Method,
    path: &str,
    query: &[(&str, &str)],
    form: Form,
    body: Option<(&'static str, &Value)>,
) -> Result<Request<Vec<u8>>, Error> {
    let mut uri = path.to_owned();
    for (at, (name, value)) in query.iter().enumerate() {
        uri.push(if at == 0 { '?' } else { '&' });
        uri.push_str(name);
        uri.push('=');
        uri.extend(utf8_percent_encode(value, QUERY));
    }
    let accept = match form {
        Form::Whole => "application/json",
        Form::Metadata => METADATA,
        Form::MetadataList => METADATA_LIST,
    };
    // A compressed watch is a gzip member for each event, which not every decoder reads.
    let request =
        Request::builder().method(method).uri(uri).header(ACCEPT, accept).header(ACCEPT_ENCODING, "identity");
    Ok(match body {
        Some((content_type, body)) => {
            request.header(CONTENT_TYPE, content_type).body(serde_json::to_vec(body)?)?
        }
        None => request.body(Vec::new())?,
    })
}
