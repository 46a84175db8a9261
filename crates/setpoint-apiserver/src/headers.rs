//! Texts in headers. Go's server takes a header's bytes as they are; a header that is no ASCII must not be taken for one that is not there, least of
//! all where it says whom somebody acts as.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::AsHeaderName;

/// The first header of a name, `""` if there is none. What is no UTF-8 in it is replaced.
pub(crate) fn text(headers: &HeaderMap, name: impl AsHeaderName) -> Cow<'_, str> {
    headers.get(name).map_or(Cow::Borrowed(""), |value| String::from_utf8_lossy(value.as_bytes()))
}

/// All headers of a name.
pub(crate) fn texts(headers: &HeaderMap, name: impl AsHeaderName) -> impl Iterator<Item = Cow<'_, str>> {
    headers.get_all(name).into_iter().map(|value| String::from_utf8_lossy(value.as_bytes()))
}
