use std::time::Duration;

use jiff::Timestamp;

use super::Lifetimes;

/// From when until when a certificate is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

impl Validity {
    /// When two thirds of it are over.
    fn renewal(self) -> Timestamp {
        let third = self.until.duration_since(self.from) / 3;
        self.until.checked_sub(third).unwrap_or(self.until)
    }
}

/// The authority that will sign next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// There is none yet.
    None,
    /// It is in the Secret, but nobody knows yet whether it is in each bundle.
    Staged,
    /// Each bundle has had it since then.
    Published(Timestamp),
}

/// What is known about the Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// The authority that signs.
    pub(super) authority: Validity,
    /// The leaf, if it is for the right names and of this authority.
    pub(super) leaf: Option<Validity>,
    /// The authority that will sign next.
    pub(super) next: Next,
    /// Since when the authority before this one signs no more.
    pub(super) old: Option<Timestamp>,
}

/// One step towards certificates that are valid, trusted and not about to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Make an authority and a leaf, whatever there was.
    Create,
    /// Make the authority that will sign next, so that it is published.
    StageAuthority,
    /// Put the bundle where it isn't yet.
    Publish,
    /// Write down that each bundle has the next authority.
    NotePublished,
    /// Let the next authority sign, and make a leaf of it.
    PromoteAuthority,
    /// Make a leaf.
    RenewLeaf,
    /// Trust the old authority no more.
    DropOld,
    /// Nothing to do before that time.
    Wait(Timestamp),
}

/// The next step, given what the Secret holds (`None` if there is none that can be read) and whether every `caBundle` is
/// the bundle of this Secret.
pub(super) fn step(facts: Option<Facts>, published: bool, now: Timestamp, lifetimes: Lifetimes) -> Step {
    let Some(Facts { authority, leaf, next, old }) = facts else { return Step::Create };
    let after = |time: Timestamp, wait: Duration| time.checked_add(wait).unwrap_or(Timestamp::MAX);
    let over = authority.until <= now;
    if over && next == Next::None {
        return Step::Create;
    }
    // Nobody trusts it any more, so there is nothing to wait for.
    if over {
        return Step::PromoteAuthority;
    }
    if leaf.is_none_or(|leaf| leaf.until <= now) {
        return Step::RenewLeaf;
    }
    if !published {
        return Step::Publish;
    }
    let mut due = vec![];
    match next {
        Next::Staged => return Step::NotePublished,
        Next::Published(since) if after(since, lifetimes.overlap) <= now => return Step::PromoteAuthority,
        Next::Published(since) => due.push(after(since, lifetimes.overlap)),
        // One change at a time: the authority before has gone first.
        Next::None if old.is_none() && authority.renewal() <= now => return Step::StageAuthority,
        Next::None => due.push(authority.renewal()),
    }
    if let Some(leaf) = leaf {
        // A leaf that ends with its authority is not worth renewing: a new authority comes with its own.
        if leaf.renewal() <= now && leaf.until < authority.until {
            return Step::RenewLeaf;
        }
        due.push(if leaf.until < authority.until { leaf.renewal() } else { leaf.until });
    }
    if let Some(since) = old {
        if after(since, lifetimes.overlap) <= now {
            return Step::DropOld;
        }
        due.push(after(since, lifetimes.overlap));
    }
    Step::Wait(due.into_iter().filter(|at| *at > now).min().unwrap_or(authority.until))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIMES: Lifetimes = Lifetimes {
        authority: Duration::from_secs(900),
        leaf: Duration::from_secs(300),
        overlap: Duration::from_secs(50),
    };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn validity(from: i64, until: i64) -> Validity {
        Validity { from: at(from), until: at(until) }
    }

    /// An authority from 0 to 900 with a leaf from 0 to 300.
    fn facts() -> Facts {
        Facts { authority: validity(0, 900), leaf: Some(validity(0, 300)), next: Next::None, old: None }
    }

    #[test]
    fn each_situation_has_one_step() {
        let leaf = |from, until| Some(validity(from, until));
        let table = [
            ("no Secret", None, true, 10, Step::Create),
            ("all is well", Some(facts()), true, 10, Step::Wait(at(200))),
            ("a bundle is missing", Some(facts()), false, 10, Step::Publish),
            ("a leaf of other names", Some(Facts { leaf: None, ..facts() }), true, 10, Step::RenewLeaf),
            (
                "no leaf comes before a bundle",
                Some(Facts { leaf: None, ..facts() }),
                false,
                10,
                Step::RenewLeaf,
            ),
            ("a third of the leaf is left", Some(facts()), true, 200, Step::RenewLeaf),
            (
                "a third of the authority is left",
                Some(Facts { leaf: leaf(500, 800), ..facts() }),
                true,
                600,
                Step::StageAuthority,
            ),
            (
                "the next authority is in the Secret but not everywhere",
                Some(Facts { leaf: leaf(500, 800), next: Next::Staged, ..facts() }),
                false,
                600,
                Step::Publish,
            ),
            (
                "it is everywhere",
                Some(Facts { leaf: leaf(500, 800), next: Next::Staged, ..facts() }),
                true,
                600,
                Step::NotePublished,
            ),
            (
                "it is everywhere, but not for long",
                Some(Facts { leaf: leaf(500, 800), next: Next::Published(at(610)), ..facts() }),
                true,
                659,
                Step::Wait(at(660)),
            ),
            (
                "it has been everywhere for long enough",
                Some(Facts { leaf: leaf(500, 800), next: Next::Published(at(610)), ..facts() }),
                true,
                660,
                Step::PromoteAuthority,
            ),
            (
                "somebody has reset a bundle meanwhile",
                Some(Facts { leaf: leaf(500, 800), next: Next::Published(at(610)), ..facts() }),
                false,
                660,
                Step::Publish,
            ),
            (
                "the old authority is still trusted",
                Some(Facts { old: Some(at(0)), ..facts() }),
                true,
                49,
                Step::Wait(at(50)),
            ),
            ("long enough", Some(Facts { old: Some(at(0)), ..facts() }), true, 50, Step::DropOld),
            ("the authority is over", Some(facts()), true, 900, Step::Create),
            (
                "it is over while the next one waits",
                Some(Facts { next: Next::Staged, ..facts() }),
                false,
                900,
                Step::PromoteAuthority,
            ),
            ("the leaf is over", Some(facts()), false, 300, Step::RenewLeaf),
            (
                "a leaf that ends with its authority is not renewed",
                Some(Facts { leaf: leaf(650, 900), next: Next::Published(at(880)), ..facts() }),
                true,
                890,
                Step::Wait(at(900)),
            ),
        ];
        for (situation, facts, published, now, expected) in table {
            assert_eq!(step(facts, published, at(now), LIFETIMES), expected, "{situation}");
        }
    }

    /// Whatever happens when, the API server trusts what is served, if bundles are published at once.
    #[test]
    fn a_simulated_year_of_rotations() {
        let (mut now, mut facts) = (0, None);
        let mut promotions = 0;
        while now < 20_000 {
            match step(facts, true, at(now), LIFETIMES) {
                Step::Create => {
                    facts =
                        Some(Facts { authority: validity(now, now + 900), ..renewed(facts_at(now), now) });
                }
                Step::Publish => panic!("published"),
                Step::StageAuthority => facts = facts.map(|facts| Facts { next: Next::Staged, ..facts }),
                Step::NotePublished => {
                    facts = facts.map(|facts| Facts { next: Next::Published(at(now)), ..facts });
                }
                Step::PromoteAuthority => {
                    promotions += 1;
                    let old = facts.unwrap();
                    assert!(now < old.authority.until.as_second(), "in time");
                    let next = Facts {
                        authority: validity(now, now + 900),
                        old: Some(at(now)),
                        next: Next::None,
                        ..old
                    };
                    facts = Some(renewed(next, now));
                }
                Step::RenewLeaf => facts = facts.map(|facts| renewed(facts, now)),
                Step::DropOld => facts = facts.map(|facts| Facts { old: None, ..facts }),
                Step::Wait(until) => {
                    assert!(until > at(now), "time goes on");
                    now = until.as_second();
                    let leaf = facts.unwrap().leaf.unwrap();
                    assert!(now <= leaf.until.as_second(), "the leaf is valid until it is replaced");
                }
            }
        }
        assert!(promotions >= 20, "{promotions}");
    }

    fn facts_at(now: i64) -> Facts {
        Facts { authority: validity(now, now + 900), leaf: None, next: Next::None, old: None }
    }

    fn renewed(facts: Facts, now: i64) -> Facts {
        let until = (now + 300).min(facts.authority.until.as_second());
        Facts { leaf: Some(validity(now, until)), ..facts }
    }
}
