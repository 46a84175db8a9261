//! The document of OpenAPI v2 as it was sent last: it is large and takes long to make, and clients ask for it at each of their runs.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use tokio::sync::Mutex;

use super::{v2_json, v2_protobuf};
use crate::catalog::Resource;
use crate::discovery::etag;

/// Who asks for it while it is made waits, so that it is made once.
#[derive(Default)]
pub(crate) struct KeptV2(Mutex<Option<Kept>>);

struct Kept {
    /// What it describes. They are replaced as a whole, and only named here, not kept.
    of: Weak<Vec<Arc<Resource>>>,
    protobuf: bool,
    document: Bytes,
    tag: String,
}

impl KeptV2 {
    /// The document of these resources and its tag.
    pub(crate) async fn get(&self, resources: &Arc<Vec<Arc<Resource>>>, protobuf: bool) -> (Bytes, String) {
        let mut kept = self.0.lock().await;
        let of = Arc::downgrade(resources);
        if let Some(kept) = &*kept
            && kept.protobuf == protobuf
            && kept.of.ptr_eq(&of)
        {
            return (kept.document.clone(), kept.tag.clone());
        }
        let json = v2_json(resources).await;
        // Writing takes long, too.
        tokio::task::yield_now().await;
        let document = if protobuf { v2_protobuf(&json).into() } else { Bytes::from(json.to_string()) };
        drop(json);
        tokio::task::yield_now().await;
        let tag = etag(&document);
        *kept = Some(Kept { of, protobuf, document: document.clone(), tag: tag.clone() });
        (document, tag)
    }
}

#[cfg(test)]
mod tests {
    use crate::catalog::Catalog;

    use super::*;

    #[tokio::test]
    async fn a_document_is_made_once_for_the_same_resources_and_form() {
        let (catalog, kept) = (Catalog::new(), KeptV2::default());
        let (first, tag) = kept.get(&catalog.all(), true).await;
        let (again, same) = kept.get(&catalog.all(), true).await;
        assert_eq!((first.as_ptr(), &tag), (again.as_ptr(), &same), "made anew");
        let (json, other) = kept.get(&catalog.all(), false).await;
        assert!(json.starts_with(b"{") && other != tag);
        catalog.set_custom([]);
        let (anew, _) = kept.get(&catalog.all(), false).await;
        assert_ne!(json.as_ptr(), anew.as_ptr(), "of resources that are no more");
        assert_eq!(json, anew);
    }
}
