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

/// Whether the deeds that are not in `used` can come after the others, in an order that keeps those apart which were apart in time.
pub fn explain(deeds: &[(Deed, usize, usize, bool)], used: u32, was: Told) -> bool {
    if used.count_ones() as usize == deeds.len() {
        return true;
    }
    let left = || (0..deeds.len()).filter(|at| used & 1 << at == 0);
    let first_end = left().map(|at| deeds[at].2).min().unwrap();
    left().filter(|at| deeds[*at].1 <= first_end).any(|at| {
        let (deed, _, _, told) = deeds[at];
        let Told { record, other, forbidden, has_tombstone } = was;
        let (expected, after) = match deed {
            Deed::Remove | Deed::Make | Deed::Create | Deed::Grant if forbidden => (false, was),
            Deed::Remove => (record, Told { record: false, ..was }),
            Deed::Look | Deed::Delegate | Deed::Recall => (record, was),
            Deed::LookAtOther => (other, was),
            Deed::Make | Deed::Create | Deed::Grant if has_tombstone => (false, was),
            Deed::Make | Deed::Create | Deed::Grant => (!record, Told { record: true, ..was }),
            Deed::Rename => (record, Told { record: false, other: other || record, ..was }),
            Deed::Forbid => (true, Told { forbidden: true, has_tombstone: false, ..was }),
            Deed::Tombstone => (!record, Told { has_tombstone: has_tombstone || !record, ..was }),
        };
        told == expected && explain(deeds, used | 1 << at, after)
    })
}
