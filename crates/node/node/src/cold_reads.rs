//! Requests that wait until what they read was read ahead, off the event loop.

use std::collections::BTreeMap;

/// Most requests that wait at one shard, and most bytes of them. Further ones are carried out at
/// once, and wait for the disk where they are.
const WAITING_MAX: usize = 1024;
const WAITING_LEN_MAX: usize = 16 << 20;

/// Work `W` that waits, by the number under which its reads are known.
#[derive(Debug)]
pub(crate) struct ColdReads<W> {
    waiting: BTreeMap<u64, (W, usize)>,
    next: u64,
    len: usize,
}

impl<W> Default for ColdReads<W> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), next: 0, len: 0 }
    }
}

impl<W> ColdReads<W> {
    /// Whether work of `len` bytes may wait.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.waiting.len() < WAITING_MAX && self.len + len <= WAITING_LEN_MAX
    }

    /// How much waits.
    pub(crate) fn count(&self) -> usize {
        self.waiting.len()
    }

    /// Work of `len` bytes waits. Returns its number.
    pub(crate) fn push(&mut self, work: W, len: usize) -> u64 {
        let number = self.next;
        self.next += 1;
        self.len += len;
        self.waiting.insert(number, (work, len));
        number
    }

    /// Its reads were done.
    pub(crate) fn take(&mut self, number: u64) -> Option<W> {
        let (work, len) = self.waiting.remove(&number)?;
        self.len -= len;
        Some(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_waits_under_its_number_within_bounds() {
        let mut reads = ColdReads::default();
        let (one, other) = (reads.push('a', WAITING_LEN_MAX - 1), reads.push('b', 1));
        assert!(reads.has_room(0) && !reads.has_room(1));
        assert_eq!((reads.take(one), reads.take(one)), (Some('a'), None));
        assert!(reads.has_room(1) && reads.count() == 1);
        assert_eq!(reads.take(other), Some('b'));
        (0..WAITING_MAX).for_each(|_| {
            reads.push('c', 0);
        });
        assert!(!reads.has_room(0));
    }
}
