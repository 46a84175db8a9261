use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::authority::{self, Pair};
use super::plan::{self, Facts, Step};
use super::{CertificateError, Lifetimes};

/// What the Secret holds. The names of the leaf are those that cert-manager uses, and `ca.crt` is the whole bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) authority: Pair,
    pub(super) leaf: Pair,
    /// What the leaf is for: a name that is missing makes another leaf.
    names: String,
    next: Option<Next>,
    old: Option<Old>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Next {
    authority: Pair,
    published: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Old {
    certificate: String,
    since: Timestamp,
}

impl Kept {
    /// A new authority and a leaf of it.
    pub(super) fn create(
        name: &str,
        names: &[String],
        now: Timestamp,
        lifetimes: Lifetimes,
    ) -> Result<Self, CertificateError> {
        let authority = authority::authority(name, now, lifetimes.authority)?;
        let leaf = authority::leaf(&authority, names, now, lifetimes.leaf)?;
        Ok(Self { authority, leaf, names: names.join(","), next: None, old: None })
    }

    /// After one of the steps that change the Secret; unchanged after the others.
    pub(super) fn after(
        mut self,
        step: Step,
        name: &str,
        names: &[String],
        now: Timestamp,
        lifetimes: Lifetimes,
    ) -> Result<Self, CertificateError> {
        match step {
            Step::Create => return Self::create(name, names, now, lifetimes),
            Step::StageAuthority => {
                let authority = authority::authority(name, now, lifetimes.authority)?;
                self.next = Some(Next { authority, published: None });
            }
            Step::NotePublished => {
                if let Some(next) = &mut self.next {
                    next.published = Some(now);
                }
            }
            Step::PromoteAuthority => {
                if let Some(next) = self.next.take() {
                    self.old = Some(Old { certificate: self.authority.certificate, since: now });
                    self.authority = next.authority;
                    self.renew(names, now, lifetimes)?;
                }
            }
            Step::RenewLeaf => self.renew(names, now, lifetimes)?,
            Step::DropOld => self.old = None,
            Step::Publish | Step::Wait(_) => {}
        }
        Ok(self)
    }

    /// Whether the leaf is for all of `names`.
    fn covers(&self, names: &[String]) -> bool {
        names.iter().all(|name| self.names.split(',').any(|known| known == name))
    }

    /// A leaf for `names`, and for those of a replica of another release, which would only make another one in its turn.
    fn renew(
        &mut self,
        names: &[String],
        now: Timestamp,
        lifetimes: Lifetimes,
    ) -> Result<(), CertificateError> {
        let mut names = names.to_vec();
        if !self.covers(&names) {
            names.extend(self.names.split(',').map(str::to_owned));
            names.sort();
            names.dedup();
        }
        self.leaf = authority::leaf(&self.authority, &names, now, lifetimes.leaf)?;
        self.names = names.join(",");
        Ok(())
    }

    pub(super) fn facts(&self, names: &[String]) -> Result<Facts, CertificateError> {
        let leaf = if self.covers(names) {
            Some(authority::validity("the leaf", &self.leaf.certificate)?)
        } else {
            None
        };
        Ok(Facts {
            authority: authority::validity("the authority", &self.authority.certificate)?,
            leaf,
            next: match &self.next {
                None => plan::Next::None,
                Some(Next { published: None, .. }) => plan::Next::Staged,
                Some(Next { published: Some(since), .. }) => plan::Next::Published(*since),
            },
            old: self.old.as_ref().map(|old| old.since),
        })
    }

    /// The authorities to be trusted, in PEM.
    pub(super) fn bundle(&self) -> String {
        let next = self.next.as_ref().map(|next| next.authority.certificate.as_str());
        let old = self.old.as_ref().map(|old| old.certificate.as_str());
        [Some(self.authority.certificate.as_str()), next, old].into_iter().flatten().collect()
    }

    /// What `secret` holds, if it is all there.
    pub(super) fn read(secret: &Secret) -> Result<Self, CertificateError> {
        let data = secret.data.as_ref();
        let optional = |field: &str| {
            let bytes = data.and_then(|data| data.get(field))?;
            String::from_utf8(bytes.0.clone()).ok()
        };
        let wrong = |field: &str, reason: &str| CertificateError::Read {
            what: format!("{field} of the Secret {}", secret.metadata.name.as_deref().unwrap_or_default()),
            reason: reason.to_owned(),
        };
        let needed = |field: &str| optional(field).ok_or_else(|| wrong(field, "it is missing"));
        let time = |field: &str, text: Option<String>| {
            text.map(|text| text.parse::<Timestamp>().map_err(|error| wrong(field, &error.to_string())))
                .transpose()
        };
        let next = match (optional("next-ca.crt"), optional("next-ca.key")) {
            (Some(certificate), Some(key)) => Some(Next {
                authority: Pair { certificate, key },
                published: time("next-published", optional("next-published"))?,
            }),
            _ => None,
        };
        let old = match (optional("old-ca.crt"), time("old-since", optional("old-since"))?) {
            (Some(certificate), Some(since)) => Some(Old { certificate, since }),
            _ => None,
        };
        Ok(Self {
            authority: Pair { certificate: needed("signing-ca.crt")?, key: needed("signing-ca.key")? },
            leaf: Pair { certificate: needed("tls.crt")?, key: needed("tls.key")? },
            names: needed("names")?,
            next,
            old,
        })
    }

    /// As the data of the Secret.
    pub(super) fn data(&self) -> BTreeMap<String, ByteString> {
        let mut data = BTreeMap::new();
        let mut put = |field: &str, text: &str| {
            data.insert(field.to_owned(), ByteString(text.as_bytes().to_vec()));
        };
        put("ca.crt", &self.bundle());
        put("signing-ca.crt", &self.authority.certificate);
        put("signing-ca.key", &self.authority.key);
        put("tls.crt", &self.leaf.certificate);
        put("tls.key", &self.leaf.key);
        put("names", &self.names);
        if let Some(next) = &self.next {
            put("next-ca.crt", &next.authority.certificate);
            put("next-ca.key", &next.authority.key);
            if let Some(published) = next.published {
                put("next-published", &published.to_string());
            }
        }
        if let Some(old) = &self.old {
            put("old-ca.crt", &old.certificate);
            put("old-since", &old.since.to_string());
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::webhook::certificates::plan::step;

    /// While one release takes over from another, each wants names of its own.
    #[test]
    fn replicas_that_want_different_names_settle_on_one_leaf() {
        let hour = Duration::from_secs(3600);
        let lifetimes = Lifetimes { authority: hour * 9, leaf: hour * 3, overlap: hour / 10 };
        let now = Timestamp::UNIX_EPOCH + hour * 24;
        let (old, new) = (["a".to_owned(), "b".to_owned()], ["b".to_owned(), "c".to_owned()]);
        let kept = Kept::create("op", &old, now, lifetimes).unwrap();
        let next =
            |kept: &Kept, names: &[String]| step(Some(kept.facts(names).unwrap()), true, now, lifetimes);
        assert_eq!(next(&kept, &new), Step::RenewLeaf);
        let kept = kept.after(Step::RenewLeaf, "op", &new, now, lifetimes).unwrap();
        assert!(matches!(next(&kept, &old), Step::Wait(_)));
        assert!(matches!(next(&kept, &new), Step::Wait(_)));
        // Later the old names go.
        let kept = kept.after(Step::RenewLeaf, "op", &new, now, lifetimes).unwrap();
        assert_eq!(kept.names, "b,c");
    }
}
