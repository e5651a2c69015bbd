//! The session's own changes: against these no delegation protects it.
//!
//! A node lets others' changes of a record under a delegation wait, not those of the delegation's
//! holder. So a caller that relies on a record that it read under a delegation asks here whether
//! this session has changed anything since. Changes are counted twice, by the partition and by the
//! keys of the records: the second is for callers that rely on the records of one key in all
//! partitions. Partitions share counters, and keys do, so an own change may seem to touch more than
//! it does; it never seems to touch less.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use samite_arena::lookup::RecordId;
use samite_types::{ClientId, Clock, DatasetId, PartitionId, SystemClock};
use samite_wire::op::{Operation, TouchedRecords};

/// One bit for each counter that a request touches: those of partitions, then those of keys.
pub(crate) type Mask = u128;

/// Counters of partitions, and as many of keys.
const STRIPES: u32 = Mask::BITS / 2;
/// The counters of all keys.
const ALL_KEYS: Mask = Mask::MAX << STRIPES;

/// Parts of a term, of which the last is not used: clocks of two hosts differ a little in speed.
const CLOCK_MARGIN: u32 = 16;

/// Changes begun and ended in some of the partitions.
#[derive(Debug, Default)]
struct ChangeStripe {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// The counters of one session.
#[derive(Debug)]
pub(crate) struct ChangeCounters {
    stripes: [ChangeStripe; Mask::BITS as usize],
}

/// A change that has begun. It ends by [`ChangeInProgress::end`], when its outcome is known; until then, and for ever if it never
/// is, nothing that it may touch is relied on.
#[must_use]
pub(crate) struct ChangeInProgress<'c> {
    changes: &'c ChangeCounters,
    mask: Mask,
}

/// The point at which something was asked for under a delegation, on this session's clock and among
/// its own changes.
#[derive(Clone, Copy, Debug)]
pub struct ReadStamp {
    client: ClientId,
    mask: Mask,
    /// Sum of the counters; they only grow, so it is the same only if each of them is.
    begun: u64,
    at: Duration,
}

impl ReadStamp {
    /// Of an answer that tells the effect of a change of this session, which is sent after this
    /// stamp: it is true until the next one.
    #[must_use]
    pub const fn past_own_change(self) -> Self {
        Self { begun: self.begun.wrapping_add(1), ..self }
    }
}

/// The mask of the records in `partition`.
pub(crate) const fn mask_of(partition: PartitionId) -> Mask {
    1 << (partition.get() % STRIPES)
}

/// The mask of the records with this key, in whichever partition.
pub(crate) fn mask_of_key(key: &[u8]) -> Mask {
    let record = RecordId { dataset: DatasetId(0), partition: PartitionId(0), key };
    // The high bits: the best of its hash.
    1 << (u64::from(STRIPES) + (record.hash() >> 58))
}

/// The mask of the records that an operation changes.
pub(crate) fn mask_of_change(operation: &Operation<'_>) -> Mask {
    let changes = operation.actions.iter().filter(|action| action.is_mutation());
    changes.fold(mask_of(operation.partition), |mask, action| {
        mask | match action.touched() {
            TouchedRecords::Key(key) => mask_of_key(key),
            TouchedRecords::Moved(from, to) => mask_of_key(from) | mask_of_key(to),
            TouchedRecords::Nothing | TouchedRecords::Prefix(_) => ALL_KEYS,
        }
    })
}

impl ChangeCounters {
    pub(crate) fn new() -> Self {
        Self { stripes: std::array::from_fn(|_| ChangeStripe::default()) }
    }

    /// Changes of all that `mask` names are about to be sent.
    pub(crate) fn begin(&self, mask: Mask) -> ChangeInProgress<'_> {
        self.for_each(mask, |stripe| {
            // Before the request leaves: a reader that finds the old number has its answer before
            // ours.
            stripe.begun.fetch_add(1, Ordering::SeqCst);
        });
        ChangeInProgress { changes: self, mask }
    }

    /// The changes of `mask` have all had their outcomes.
    pub(crate) fn end(&self, mask: Mask) {
        self.for_each(mask, |stripe| {
            stripe.ended.fetch_add(1, Ordering::SeqCst);
        });
    }

    fn for_each(&self, mask: Mask, mut visit: impl FnMut(&ChangeStripe)) {
        let mut rest = mask;
        while rest != 0 {
            visit(&self.stripes[rest.trailing_zeros() as usize]);
            rest &= rest - 1;
        }
    }

    /// The read stamp of now; `None` while an own change under `mask` is under way, whose effect a
    /// reply may show or not.
    pub(crate) fn read_stamp(&self, client: ClientId, mask: Mask) -> Option<ReadStamp> {
        let mut ended = 0u64;
        self.for_each(mask, |stripe| ended += stripe.ended.load(Ordering::SeqCst));
        let begun = self.begun(mask);
        // No counter's end exceeds its beginning: equal now, they were equal when the first was looked at.
        (begun == ended).then(|| ReadStamp { client, mask, begun, at: SystemClock.monotonic() })
    }

    fn begun(&self, mask: Mask) -> u64 {
        let mut begun = 0u64;
        self.for_each(mask, |stripe| begun += stripe.begun.load(Ordering::SeqCst));
        begun
    }

    /// How long no other client can change the records that were asked for at `read_stamp` under a
    /// delegation of `term`; `None`: the term is over, or this session has changed something since.
    pub(crate) fn is_current(
        &self,
        client: ClientId,
        read_stamp: &ReadStamp,
        term: Duration,
    ) -> Option<Duration> {
        let end = read_stamp.at + (term - term / CLOCK_MARGIN);
        let left = end.checked_sub(SystemClock.monotonic()).filter(|left| !left.is_zero())?;
        let is_same =
            client == read_stamp.client && self.begun(read_stamp.mask) == read_stamp.begun;
        is_same.then_some(left)
    }
}

impl ChangeInProgress<'_> {
    /// Its outcome is known.
    pub(crate) fn end(self) {
        self.changes.end(self.mask);
    }

    /// Goes on until [`ChangeCounters::end`] is called with the mask that this returns.
    pub(crate) fn end_change(self) -> Mask {
        self.mask
    }
}

#[cfg(test)]
mod tests {
    use samite_wire::op::Action;

    use super::*;

    const ME: ClientId = ClientId(1);
    const P: PartitionId = PartitionId(5);
    const TERM: Duration = Duration::from_secs(60);

    #[test]
    fn own_changes_end_what_was_read_and_what_is_read_meanwhile() {
        let changes = ChangeCounters::new();
        let holds = |read_stamp: &ReadStamp| changes.is_current(ME, read_stamp, TERM).is_some();
        let before = changes.read_stamp(ME, mask_of(P)).unwrap();
        assert!(holds(&before));
        assert!(changes.is_current(ClientId(2), &before, TERM).is_none());
        assert!(changes.is_current(ME, &before, Duration::ZERO).is_none());
        let everywhere = changes.read_stamp(ME, Mask::MAX).unwrap();
        let elsewhere = changes.begin(mask_of(PartitionId(6)));
        assert!(holds(&before) && !holds(&everywhere));
        elsewhere.end();
        let change = changes.begin(mask_of(P) | mask_of(PartitionId(63)));
        assert!(!holds(&before));
        assert!(changes.read_stamp(ME, mask_of(P)).is_none());
        assert!(changes.read_stamp(ME, Mask::MAX).is_none());
        let second = changes.begin(mask_of(P)).end_change();
        change.end();
        assert!(changes.read_stamp(ME, mask_of(P)).is_none());
        changes.end(second);
        let after = changes.read_stamp(ME, mask_of(P)).unwrap();
        assert!(holds(&after) && !holds(&before));
        let past = after.past_own_change();
        assert!(!holds(&past));
        changes.begin(mask_of(P)).end();
        assert!(holds(&past) && !holds(&after));
        changes.begin(mask_of(P)).end();
        assert!(!holds(&past));
    }

    #[test]
    fn records_of_one_key_are_told_from_others_in_the_same_partitions() {
        let (key, other) = (
            b"key",
            (0..)
                .map(u8::to_be_bytes)
                .find(|other| mask_of_key(other) != mask_of_key(b"key"))
                .unwrap(),
        );
        let changes = ChangeCounters::new();
        let read_stamp = changes.read_stamp(ME, mask_of_key(key)).unwrap();
        let holds = || changes.is_current(ME, &read_stamp, TERM).is_some();
        let changing = |action| mask_of_change(&Operation::new(P, [action]));
        changes.begin(changing(Action::Delete { key: &other })).end();
        // Neither looks at it nor changes anything.
        changes.begin(changing(Action::Lease { key, term_us: 1 })).end();
        assert!(holds());
        let detached = changing(Action::Detach { key: &other, to: key });
        for mask in [
            changing(Action::Delete { key }),
            changing(Action::DeletePrefix { prefix: &other, limit: 1 }),
            detached,
        ] {
            assert_ne!(mask & mask_of_key(key), 0);
            assert_ne!(mask & mask_of(P), 0);
        }
        let change = changes.begin(detached);
        assert!(!holds() && changes.read_stamp(ME, mask_of_key(key)).is_none());
        change.end();
        assert!(!holds() && changes.read_stamp(ME, mask_of_key(key)).is_some());
    }
}
