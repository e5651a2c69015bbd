//! Answers that clients may get, one deed after the other.

use crate::model::Deed;

/// The state of the records, one deed after the other.
#[derive(Clone, Copy, Default)]
pub struct Told {
    pub record: bool,
    pub other: bool,
    pub forbidden: bool,
    pub has_tombstone: bool,
}

/// A deed in a history.
#[derive(Clone, Copy)]
pub struct DoneDeed {
    pub deed: Deed,
    pub begun: usize,
    /// `None`: a client with stray pointers may be told anything, and may have done it at any time,
    /// or not at all.
    pub ended: Option<(usize, bool)>,
}

/// Whether the deeds that are not in `used` can come after the others, in an order that keeps those apart which were apart in time.
pub fn explain(deeds: &[DoneDeed], used: u32, was: Told) -> bool {
    let left = || (0..deeds.len()).filter(|at| used & 1 << at == 0);
    let Some(first_end) = left().filter_map(|at| deeds[at].ended).map(|(end, _)| end).min() else {
        return true;
    };
    left().filter(|at| deeds[*at].begun <= first_end).any(|at| {
        let (expected, after) = outcome(deeds[at].deed, was);
        let is_told = deeds[at].ended.is_none_or(|(_, told)| told == expected);
        is_told && explain(deeds, used | 1 << at, after)
    })
}

/// What a deed is told, and what is there after it.
fn outcome(deed: Deed, was: Told) -> (bool, Told) {
    let Told { record, other, forbidden, has_tombstone } = was;
    match deed {
        Deed::Remove | Deed::Make | Deed::Create | Deed::Grant if forbidden => (false, was),
        Deed::Remove => (record, Told { record: false, ..was }),
        Deed::Look | Deed::Delegate | Deed::Recall => (record, was),
        Deed::LookAtOther => (other, was),
        Deed::Make | Deed::Create | Deed::Grant if has_tombstone => (false, was),
        Deed::Make | Deed::Create | Deed::Grant => (!record, Told { record: true, ..was }),
        Deed::Rename => (record, Told { record: false, other: other || record, ..was }),
        Deed::Forbid => (true, Told { forbidden: true, has_tombstone: false, ..was }),
        Deed::Tombstone => (!record, Told { has_tombstone: has_tombstone || !record, ..was }),
        Deed::Leave => (true, was),
    }
}
