//! Capacity of a target, and the share of a partition in it.
//!
//! Everything that a target stores is charged to its [`TargetQuota`] before it is stored, so that
//! "no space" is known at once and honest. A part of the target is a *reserved budget*, which only
//! changes that free some space may take: a full target can be emptied.
//!
//! A partition charges through a [`QuotaAccount`]. Beside the space that it uses, an account may
//! have *room* for changes that another member of the mirror group decides on: when they come, they
//! find it.

use std::sync::atomic::{AtomicU64, Ordering};

use samite_arena::BlockQuota;
use samite_types::{Error, ErrorKind, Result, human_bytes};

/// The reserved budget is one part in so many of a target.
const RESERVE_PART: u64 = 64;
/// An idle partition's room is no more than one part in so many of a target: thousands of
/// partitions may share one.
const IDLE_PART: u64 = 2048;
/// A busy one's is that, and one part in so many of what is free.
const BUSY_PART: u64 = 128;

/// A partition whose account is asked for more room than this, in bytes, is busy.
pub const KEPT_IDLE: u64 = 256 << 10;

/// How much of a target changes may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuotaLimit {
    /// All but the reserved budget.
    #[default]
    Open,
    /// All of it: they make room, or are another member's to decide on.
    Whole,
    /// Small records may take more than there is: somebody counts on them already, and says how many there are.
    Beyond,
}

/// Capacity of one target, for all threads.
#[derive(Debug)]
pub struct TargetQuota {
    capacity: AtomicU64,
    /// What the capacity may grow to.
    maximum: u64,
    used: AtomicU64,
}

impl TargetQuota {
    /// The quota of a target which holds `capacity` bytes.
    #[must_use]
    pub const fn new(capacity: u64) -> Self {
        Self::with_maximum(capacity, capacity)
    }

    /// The same, which can be made to hold up to `maximum` bytes.
    #[must_use]
    pub const fn with_maximum(capacity: u64, maximum: u64) -> Self {
        let maximum = if maximum > capacity { maximum } else { capacity };
        Self { capacity: AtomicU64::new(capacity), maximum, used: AtomicU64::new(0) }
    }

    /// Bytes that it can hold.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        // Either a charge sees the new capacity, or a change of the capacity sees the charge.
        self.capacity.load(Ordering::SeqCst)
    }

    /// Makes it hold `capacity` bytes. Not to be called by two threads at once.
    ///
    /// # Errors
    /// `Invalid`: that is more than its maximum. `Conflict`: more is in use than changes may take
    /// then; it stays as it is.
    pub fn resize(&self, capacity: u64) -> Result<()> {
        if capacity > self.maximum {
            let words = format!(
                "{}: the most that it can hold is {}",
                human_bytes(capacity),
                human_bytes(self.maximum)
            );
            return Err(Error::new(ErrorKind::Invalid, words));
        }
        let bound = bound_of(capacity, QuotaLimit::Open);
        let refused = |used: u64| {
            let words = format!(
                "{}: {} are in use, and {} of that size could be",
                human_bytes(capacity),
                human_bytes(used),
                human_bytes(bound)
            );
            Err(Error::new(ErrorKind::Conflict, words))
        };
        let before = self.capacity();
        // Before it takes space from anybody.
        let used = self.used.load(Ordering::SeqCst);
        if capacity < before && used > bound {
            return refused(used);
        }
        self.capacity.store(capacity, Ordering::SeqCst);
        let used = self.used.load(Ordering::SeqCst);
        if capacity < before && used > bound {
            self.capacity.store(before, Ordering::SeqCst);
            return refused(used);
        }
        Ok(())
    }

    /// Bytes charged to it.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that changes may take by `limit`, all in all.
    fn bound(&self, limit: QuotaLimit) -> u64 {
        bound_of(self.capacity(), limit)
    }

    /// Bytes that are free outside of the reserve.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.bound(QuotaLimit::Open).saturating_sub(self.used())
    }

    /// Whether half of the reserve is free.
    #[must_use]
    pub fn has_reserve(&self) -> bool {
        let capacity = self.capacity();
        self.used() <= capacity - capacity / RESERVE_PART / 2
    }

    /// Charges `bytes`; `false`, and nothing is charged, if they do not fit.
    pub fn charge(&self, bytes: u64, limit: QuotaLimit) -> bool {
        let before = self.used.fetch_add(bytes, Ordering::SeqCst);
        let fits = before.checked_add(bytes).is_some_and(|after| after <= self.bound(limit));
        if !fits {
            self.used.fetch_sub(bytes, Ordering::AcqRel);
        }
        fits
    }

    /// Charges as many of `bytes` as are free outside of the reserve. Returns how many.
    pub fn charge_some(&self, bytes: u64) -> u64 {
        let bound = self.bound(QuotaLimit::Open);
        let more = |used: u64| bytes.min(bound.saturating_sub(used));
        let charged = self
            .used
            .fetch_update(Ordering::SeqCst, Ordering::Relaxed, |used| Some(used + more(used)));
        let charged = charged.map_or(0, more);
        // The capacity may have become less meanwhile.
        if charged > 0 && self.bound(QuotaLimit::Open) < bound {
            self.uncharge(charged);
            return 0;
        }
        charged
    }

    /// Gives back a charge.
    pub fn uncharge(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::AcqRel);
        debug_assert!(before >= bytes, "more given back than charged");
    }

    /// The error that says how full it is.
    #[must_use]
    pub fn full(&self) -> Error {
        let (used, capacity) = (self.used(), self.capacity());
        Error::new(ErrorKind::NoSpace, format!("target full: {used} of {capacity} B used"))
    }
}

/// Bytes that changes may take by `limit` of a target that holds `capacity`, all in all.
const fn bound_of(capacity: u64, limit: QuotaLimit) -> u64 {
    match limit {
        QuotaLimit::Open => capacity - capacity / RESERVE_PART,
        QuotaLimit::Whole => capacity,
        QuotaLimit::Beyond => u64::MAX,
    }
}

impl BlockQuota for TargetQuota {
    fn capacity(&self) -> u64 {
        self.capacity()
    }

    fn maximum(&self) -> u64 {
        self.maximum
    }

    fn free(&self) -> u64 {
        self.free()
    }

    fn charge(&self, bytes: u64) -> bool {
        self.charge(bytes, QuotaLimit::Open)
    }

    fn uncharge(&self, bytes: u64) {
        self.uncharge(bytes);
    }
}

/// Space that one partition has charged to a [`TargetQuota`] and not used.
#[derive(Debug, Default)]
pub struct QuotaAccount {
    /// Set aside for the changes that are about to come.
    credit: u64,
    /// Room, for changes that another member decides on.
    kept: u64,
    /// The rest of the credit goes back to the room.
    draws: bool,
    limit: QuotaLimit,
}

impl QuotaAccount {
    /// How much of the target the next changes may take, until [`QuotaAccount::settle`].
    pub const fn set_limit(&mut self, limit: QuotaLimit) {
        self.limit = limit;
    }

    /// By what limit the next changes are charged.
    #[must_use]
    pub const fn limit(&self) -> QuotaLimit {
        self.limit
    }

    /// The next changes may use up to `bytes` of the room, until [`QuotaAccount::settle`].
    pub fn draw(&mut self, bytes: u64) {
        let drawn = self.kept.min(bytes);
        self.kept -= drawn;
        self.credit += drawn;
        self.draws = true;
    }

    /// Sets `bytes` aside; `false`, and nothing more is charged, if they are not there.
    pub fn set_aside(&mut self, quota: &TargetQuota, bytes: u64) -> bool {
        self.set_aside_by(quota, bytes, self.bound())
    }

    /// By what limit space is taken that has to be there.
    fn bound(&self) -> QuotaLimit {
        if self.limit == QuotaLimit::Beyond { QuotaLimit::Whole } else { self.limit }
    }

    /// Sets `bytes` aside, there or not.
    pub fn charge_reserve(&mut self, quota: &TargetQuota, bytes: u64) {
        self.set_aside_by(quota, bytes, QuotaLimit::Beyond);
    }

    /// Sets `bytes` aside as far as the limit says, for one that does not care where they are.
    ///
    /// # Errors
    /// `NoSpace`: they are not there; nothing more is charged.
    pub fn reserve(&mut self, quota: &TargetQuota, bytes: u64) -> Result<()> {
        match self.set_aside_by(quota, bytes, self.limit) {
            true => Ok(()),
            false => Err(quota.full()),
        }
    }

    fn set_aside_by(&mut self, quota: &TargetQuota, bytes: u64, limit: QuotaLimit) -> bool {
        let more = bytes.saturating_sub(self.credit);
        let fits = more == 0 || quota.charge(more, limit);
        if fits {
            self.credit += more;
        }
        fits
    }

    /// Charges what is used: from what was set aside, or else from the target.
    pub fn spend(&mut self, quota: &TargetQuota, bytes: u64) -> bool {
        if self.credit >= bytes {
            self.credit -= bytes;
            return true;
        }
        quota.charge(bytes, self.bound())
    }

    /// The changes are done: gives back what was set aside for them and not used, or returns it to
    /// the room, if they drew on that.
    pub fn settle(&mut self, quota: &TargetQuota) {
        let credit = std::mem::take(&mut self.credit);
        if std::mem::take(&mut self.draws) {
            self.kept += credit;
        } else if credit > 0 {
            quota.uncharge(credit);
        }
        self.limit = QuotaLimit::Open;
    }

    /// Keeps room of at least `least` bytes, if they are there, and `wanted` if the target can
    /// spare them. Returns how many bytes it has.
    pub fn keep(&mut self, quota: &TargetQuota, least: u64, wanted: u64) -> u64 {
        let mut share = quota.capacity() / IDLE_PART;
        if wanted > KEPT_IDLE {
            share += quota.free() / BUSY_PART;
        }
        let goal = least.max(wanted.min(share));
        if self.kept > goal {
            quota.uncharge(self.kept - goal);
            self.kept = goal;
        } else if self.kept < goal {
            self.kept += quota.charge_some(goal - self.kept);
        }
        self.kept
    }

    /// Gives back everything.
    pub fn close(&mut self, quota: &TargetQuota) {
        self.draws = false;
        self.settle(quota);
        quota.uncharge(std::mem::take(&mut self.kept));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CAPACITY: u64 = 64 << 20;

    #[test]
    fn only_what_makes_room_takes_the_reserve() {
        let quota = TargetQuota::new(CAPACITY);
        assert!(quota.charge(quota.free(), QuotaLimit::Open));
        assert_eq!(quota.free(), 0);
        assert!(!quota.charge(1, QuotaLimit::Open));
        assert!(quota.charge(CAPACITY / RESERVE_PART, QuotaLimit::Whole));
        assert!(!quota.charge(1, QuotaLimit::Whole));
        assert!(quota.charge(1, QuotaLimit::Beyond));
        assert_eq!(quota.charge_some(1), 0);
    }

    #[test]
    fn what_is_kept_is_there_when_the_target_is_full() {
        let quota = TargetQuota::new(CAPACITY);
        let mut account = QuotaAccount::default();
        assert_eq!(account.keep(&quota, 10_000, 0), 10_000);
        while quota.charge_some(1 << 20) > 0 {}
        account.draw(6_000);
        assert!(account.set_aside(&quota, 6_000));
        assert!(account.spend(&quota, 1_000));
        account.settle(&quota);
        assert_eq!(account.keep(&quota, 9_000, 20_000), 9_000, "what was not used is kept");
        account.draw(9_001);
        assert!(!account.set_aside(&quota, 9_001), "there is no more");
        account.settle(&quota);
        account.close(&quota);
        assert_eq!(quota.free(), 9_000);
    }

    /// A step of somebody who uses a target, or changes its size.
    #[derive(Clone, Debug)]
    enum QuotaStep {
        Charge(u64, QuotaLimit),
        ChargeSome(u64),
        Uncharge(u64),
        Resize(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<QuotaStep>> {
        let bytes = || 0..CAPACITY;
        let limit = prop::sample::select(vec![QuotaLimit::Open, QuotaLimit::Whole]);
        let step = prop_oneof![
            (bytes(), limit).prop_map(|(bytes, limit)| QuotaStep::Charge(bytes, limit)),
            bytes().prop_map(QuotaStep::ChargeSome),
            bytes().prop_map(QuotaStep::Uncharge),
            (0..3 * CAPACITY).prop_map(QuotaStep::Resize),
        ];
        prop::collection::vec(step, 0..60)
    }

    proptest! {
        #[test]
        fn a_target_of_any_size_holds_what_its_size_says(steps in steps()) {
            let quota = TargetQuota::with_maximum(CAPACITY, 2 * CAPACITY);
            let (mut capacity, mut used) = (CAPACITY, 0);
            for step in steps {
                match step {
                    QuotaStep::Charge(bytes, limit) => {
                        let fits = used + bytes <= bound_of(capacity, limit);
                        prop_assert_eq!(quota.charge(bytes, limit), fits);
                        used += if fits { bytes } else { 0 };
                    }
                    QuotaStep::ChargeSome(bytes) => {
                        let open = bound_of(capacity, QuotaLimit::Open).saturating_sub(used);
                        prop_assert_eq!(quota.charge_some(bytes), bytes.min(open));
                        used += bytes.min(open);
                    }
                    QuotaStep::Uncharge(bytes) => {
                        quota.uncharge(bytes.min(used));
                        used -= bytes.min(used);
                    }
                    QuotaStep::Resize(to) => {
                        let is_less = to < capacity;
                        let kind = match () {
                            () if to > 2 * CAPACITY => Some(ErrorKind::Invalid),
                            () if is_less && used > bound_of(to, QuotaLimit::Open) => {
                                Some(ErrorKind::Conflict)
                            }
                            () => None,
                        };
                        let resized = quota.resize(to);
                        prop_assert_eq!(resized.err().map(|error| error.kind()), kind);
                        capacity = if kind.is_none() { to } else { capacity };
                    }
                }
                prop_assert_eq!((quota.used(), quota.capacity()), (used, capacity));
            }
        }
    }

    #[test]
    fn a_target_that_shrinks_beside_charges_never_holds_too_much() {
        const LARGE: u64 = 1 << 20;
        const SMALL: u64 = 512 << 10;
        let quota = TargetQuota::with_maximum(LARGE, LARGE);
        let held = AtomicU64::new(0);
        let hold = |bytes: u64| {
            held.fetch_add(bytes, Ordering::SeqCst);
            held.fetch_sub(bytes, Ordering::SeqCst);
            quota.uncharge(bytes);
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        if quota.charge(SMALL + 1, QuotaLimit::Open) {
                            hold(SMALL + 1);
                        }
                        hold(quota.charge_some(SMALL + 1));
                    }
                });
            }
            for _ in 0..50_000 {
                if quota.resize(SMALL).is_ok() {
                    let all = held.load(Ordering::SeqCst);
                    assert!(all <= bound_of(SMALL, QuotaLimit::Open), "{all}");
                    quota.resize(LARGE).unwrap();
                }
            }
        });
        assert_eq!(quota.used(), 0);
    }

    #[test]
    fn a_full_target_spares_what_it_can() {
        let quota = TargetQuota::new(CAPACITY);
        let mut account = QuotaAccount::default();
        let idle = account.keep(&quota, 0, KEPT_IDLE);
        assert_eq!(idle, CAPACITY / IDLE_PART);
        let busy = account.keep(&quota, 0, 8 << 20);
        assert!(busy > idle && busy <= CAPACITY / BUSY_PART + idle, "{busy}");
        quota.charge_some(quota.free() - 500);
        assert_eq!(account.keep(&quota, busy + 2_000, 8 << 20), busy + 500);
        assert_eq!(account.keep(&quota, 0, 0), 0);
        assert_eq!(quota.free(), busy + 500);
    }
}
