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
use samite_types::{Error, ErrorKind, Result};

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
    capacity: u64,
    used: AtomicU64,
}

impl TargetQuota {
    /// The quota of a target which holds `capacity` bytes.
    #[must_use]
    pub const fn new(capacity: u64) -> Self {
        Self { capacity, used: AtomicU64::new(0) }
    }

    /// Bytes that it can hold.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes charged to it.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that changes may take by `limit`, all in all.
    const fn bound(&self, limit: QuotaLimit) -> u64 {
        match limit {
            QuotaLimit::Open => self.capacity - self.capacity / RESERVE_PART,
            QuotaLimit::Whole => self.capacity,
            QuotaLimit::Beyond => u64::MAX,
        }
    }

    /// Bytes that are free outside of the reserve.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.bound(QuotaLimit::Open).saturating_sub(self.used())
    }

    /// Whether half of the reserve is free.
    #[must_use]
    pub fn has_reserve(&self) -> bool {
        self.used() <= self.capacity - self.capacity / RESERVE_PART / 2
    }

    /// Charges `bytes`; `false`, and nothing is charged, if they do not fit.
    pub fn charge(&self, bytes: u64, limit: QuotaLimit) -> bool {
        let before = self.used.fetch_add(bytes, Ordering::AcqRel);
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
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |used| Some(used + more(used)));
        charged.map_or(0, more)
    }

    /// Gives back a charge.
    pub fn uncharge(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::AcqRel);
        debug_assert!(before >= bytes, "more given back than charged");
    }

    /// The error that says how full it is.
    #[must_use]
    pub fn full(&self) -> Error {
        let (used, capacity) = (self.used(), self.capacity);
        Error::new(ErrorKind::NoSpace, format!("target full: {used} of {capacity} B used"))
    }
}

impl BlockQuota for TargetQuota {
    fn capacity(&self) -> u64 {
        self.capacity()
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
