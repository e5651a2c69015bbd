//! Open references that are to end: releases that wait for the next request to their node, and
//! those that were sent and whose answers nobody has looked at yet.
//!
//! The queue sends nothing itself: `open_references.rs` takes out of it what is to leave, and puts
//! back what is under way.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use samite_client::PendingOperations;
use samite_types::PartitionId;

/// Releases that wait before they travel with whatever goes to their node next.
const RIDE_LEN: usize = 32;
/// Releases that wait at most; then they travel alone.
const WAIT_LEN_MAX: usize = 64;
/// Requests with releases under way at most.
const FLIGHTS_MAX: usize = 4;

/// An open reference that is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferenceRelease {
    /// Where the reference was when it was last looked up.
    pub partition: PartitionId,
    pub token: u64,
    pub ino: u64,
    /// Much space may depend on it.
    pub is_urgent: bool,
}

/// Releases that wait for a request.
#[derive(Default)]
pub struct ReleaseQueue {
    queue: Mutex<Vec<ReferenceRelease>>,
    len: AtomicUsize,
    is_due: AtomicBool,
    /// Sent, and not waited for, oldest first.
    underway: Mutex<VecDeque<PendingReleases>>,
    is_underway: AtomicBool,
}

/// Releases whose answers nobody has looked at yet.
pub struct PendingReleases {
    pub releases: Vec<ReferenceRelease>,
    pub answers: PendingOperations,
}

impl ReleaseQueue {
    /// Adds a release. Whether there are too many now.
    pub fn push(&self, release: ReferenceRelease) -> bool {
        let mut queue = self.lock();
        queue.push(release);
        self.note(&queue);
        queue.len() >= WAIT_LEN_MAX
    }

    /// Takes the releases that `pick` selects.
    pub fn take(&self, pick: impl Fn(&ReferenceRelease) -> bool) -> Vec<ReferenceRelease> {
        if self.len.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut queue = self.lock();
        let taken = queue.extract_if(.., |release| pick(release)).collect();
        self.note(&queue);
        taken
    }

    /// Whether enough wait to travel with whatever goes to their node next.
    pub fn are_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    /// Whether any wait for this partition, or may not have been carried out yet.
    pub fn are_waiting(&self, partition: PartitionId) -> bool {
        let is_there =
            |all: &[ReferenceRelease]| all.iter().any(|release| release.partition == partition);
        self.len.load(Ordering::Acquire) > 0 && is_there(&self.lock())
            || self.is_underway.load(Ordering::Acquire)
                && self.lock_underway().iter().any(|sent| is_there(&sent.releases))
    }

    /// Takes all that was sent, if `pick` selects any of it.
    pub fn take_underway(
        &self,
        pick: impl Fn(&ReferenceRelease) -> bool,
    ) -> VecDeque<PendingReleases> {
        if !self.is_underway.load(Ordering::Acquire) {
            return VecDeque::new();
        }
        let mut underway = self.lock_underway();
        if !underway.iter().any(|sent| sent.releases.iter().any(&pick)) {
            return VecDeque::new();
        }
        self.is_underway.store(false, Ordering::Release);
        std::mem::take(&mut underway)
    }

    /// Keeps the request that was sent. Returns the oldest if there are too many.
    pub fn keep(&self, sent: PendingReleases) -> Option<PendingReleases> {
        let mut underway = self.lock_underway();
        self.is_underway.store(true, Ordering::Release);
        underway.push_back(sent);
        if underway.len() > FLIGHTS_MAX { underway.pop_front() } else { None }
    }

    fn lock_underway(&self) -> MutexGuard<'_, VecDeque<PendingReleases>> {
        self.underway.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In the child of a fork: releases that wait are the parent's to send, and releases that were
    /// sent are answered there. Waits for no lock.
    pub fn forget(&self) {
        if let Ok(mut underway) = self.underway.try_lock() {
            // The connections are the parent's.
            underway.drain(..).for_each(std::mem::forget);
            self.is_underway.store(false, Ordering::Release);
        }
        match self.queue.try_lock() {
            Ok(mut queue) => {
                queue.clear();
                self.note(&queue);
            }
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().clear(),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    fn note(&self, queue: &[ReferenceRelease]) {
        self.len.store(queue.len(), Ordering::Release);
        let is_due = queue.len() >= RIDE_LEN || queue.iter().any(|release| release.is_urgent);
        self.is_due.store(is_due, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ReferenceRelease>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(partition: u32, token: u64, is_urgent: bool) -> ReferenceRelease {
        ReferenceRelease { partition: PartitionId(partition), token, ino: 1, is_urgent }
    }

    #[test]
    fn releases_are_due_when_there_are_many_or_one_is_urgent() {
        let queue = ReleaseQueue::default();
        for token in 1..RIDE_LEN as u64 {
            assert!(!queue.push(release(0, token, false)));
            assert!(!queue.are_due());
        }
        queue.push(release(1, 100, false));
        assert!(queue.are_due());
        assert_eq!(queue.take(|_| true).len(), RIDE_LEN);
        assert!(!queue.are_due());
        queue.push(release(1, 101, true));
        assert!(queue.are_due());
    }

    #[test]
    fn a_full_queue_says_so() {
        let queue = ReleaseQueue::default();
        let mut pushed =
            (1..=WAIT_LEN_MAX as u64).map(|token| queue.push(release(0, token, false)));
        assert_eq!(pushed.position(|is_full| is_full), Some(WAIT_LEN_MAX - 1));
    }

    #[test]
    fn only_the_selected_releases_are_taken() {
        let queue = ReleaseQueue::default();
        queue.push(release(3, 1, false));
        queue.push(release(4, 2, false));
        assert!(queue.are_waiting(PartitionId(3)));
        let taken = queue.take(|release| release.partition == PartitionId(3));
        assert_eq!(taken, [release(3, 1, false)]);
        assert!(!queue.are_waiting(PartitionId(3)));
        assert!(queue.are_waiting(PartitionId(4)));
        assert!(queue.take_underway(|_| true).is_empty());
    }

    #[test]
    fn the_child_of_a_fork_has_none() {
        let queue = ReleaseQueue::default();
        queue.push(release(3, 1, true));
        queue.forget();
        assert!(!queue.are_due());
        assert!(!queue.are_waiting(PartitionId(3)));
        assert!(queue.take(|_| true).is_empty());
    }
}
