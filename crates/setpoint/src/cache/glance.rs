use crate::Object;
use crate::fingerprint::{Memo, Part, Print, find, settled};
use crate::store::{Payload, Record, Seen, Version};

/// What an apply has to know about an object. Every representation of it tells: whole, metadata only, or a
/// projection of the author's.
#[derive(Debug)]
pub(crate) struct Glance {
    pub(crate) uid: String,
    pub(crate) version: String,
    pub(crate) deleting: bool,
    /// Uid and name of its controller, or of the owner that it is linked to.
    pub(crate) controller: Option<(String, String)>,
    /// What the field manager has applied before, if it has.
    pub(crate) print: Option<u64>,
    /// Applying the intent would change nothing.
    pub(crate) settled: bool,
}

impl Glance {
    /// None if it cannot be decoded.
    pub(crate) fn of_record<T: Object>(
        record: &Record<T>,
        manager: &str,
        part: Part,
        intent: u64,
    ) -> Option<Self> {
        let (prints, memos) = (&record.prints, &record.memos);
        Self::of((&record.uid, &record.version), &record.payload, (prints, memos), (manager, part, intent))
    }

    /// Of what was read live.
    pub(crate) fn of_seen<T: Object>(seen: &Seen<T>, manager: &str, part: Part, intent: u64) -> Option<Self> {
        Self::of((&seen.uid, &seen.version), &seen.payload, (&seen.prints, &[]), (manager, part, intent))
    }

    fn of<T: Object>(
        (uid, version): (&str, &Version),
        payload: &Payload<T>,
        (prints, memos): (&[Print], &[Memo]),
        (manager, part, intent): (&str, Part, u64),
    ) -> Option<Self> {
        let head = payload.head()?;
        Some(Self {
            uid: uid.to_owned(),
            version: version.text(),
            deleting: head.is_deleting(),
            controller: head
                .controller
                .map(|owner| (owner.uid, format!("{} {}", owner.kind, owner.name)))
                .or(head.link),
            print: find(prints, manager, part),
            settled: settled(prints, memos, manager, part, intent),
        })
    }
}
