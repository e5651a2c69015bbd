//! Numbers that no other process uses: inode numbers of a range that this process has drawn from a
//! counter of the store, and tokens.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use samite_client::OwnedOutcome;
use samite_types::{Clock, ErrorKind, Result, SystemClock};
use samite_wire::op::{Action, Guard, Operation};

use crate::records::store::{RecordStoreView, fail, only};

/// Inode numbers that a process takes at a time.
const INO_RANGE: u64 = 1 << 12;
/// How often a counter may vanish while a process draws from it.
const DRAWS_MAX: u32 = 3;

/// The numbers of one process.
pub struct ProcessNumbers {
    /// Next inode number; a multiple of [`INO_RANGE`] means that a new range is due.
    next_ino: AtomicU64,
    tokens: AtomicU64,
    /// Forks that this process is away from the one that opened the file system.
    forks: AtomicU32,
}

impl ProcessNumbers {
    /// `entropy` is random: tokens begin there.
    pub const fn new(entropy: u64) -> Self {
        Self {
            next_ino: AtomicU64::new(0),
            tokens: AtomicU64::new(entropy),
            forks: AtomicU32::new(0),
        }
    }

    /// In the child of a fork: the numbers that were not used are the parent's.
    pub fn after_fork_child(&self, entropy: u64) {
        self.next_ino.store(0, Ordering::Relaxed);
        self.forks.fetch_add(1, Ordering::AcqRel);
        self.tokens.store(entropy, Ordering::Relaxed);
    }

    /// Forks that this process is away from the one that opened the file system.
    pub fn forks(&self) -> u32 {
        self.forks.load(Ordering::Acquire)
    }

    /// A number that no other process, and no other call, gets; never 0 or all ones.
    pub fn token(&self) -> u64 {
        // Steps of an odd constant from a random start: no repeats before 2^64, and far from other processes' starts.
        let token = self.tokens.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        token.clamp(1, u64::MAX - 1)
    }

    /// The next inode number of the range that was drawn last; `None`: a new one is due.
    pub fn next_ino(&self) -> Option<u64> {
        let next = |ino: u64| (!ino.is_multiple_of(INO_RANGE)).then(|| ino + 1);
        self.next_ino.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }

    /// Range `range` was drawn. Two threads may each draw one; the loser's is dropped, which
    /// changes nothing.
    pub fn start_range(&self, range: u64) {
        self.next_ino.store(range * INO_RANGE + 1, Ordering::Relaxed);
    }
}

impl RecordStoreView {
    /// The next number of a counter. One that is not there begins with the time, in milliseconds:
    /// it may have died with a node, and the numbers that it gave out before are not given out
    /// again.
    pub fn draw(&self, counter: &[u8]) -> Result<u64> {
        let partition = self.dataset.partition_of(counter);
        for _ in 0..DRAWS_MAX {
            let op = Operation::new(partition, [Action::Add { key: counter, offset: 0, delta: 1 }])
                .guard(Guard::Exists(counter));
            if let OwnedOutcome::Done(results) = self.run(op)? {
                return Ok(only(&results)?.number()?.wrapping_add(1));
            }
            let start = SystemClock.realtime().as_millis() as u64;
            let start = start.to_le_bytes();
            let begin = Operation::put(partition, counter, &start).guard(Guard::Absent(counter));
            // A faster process has begun it.
            self.run(begin)?;
        }
        Err(fail(ErrorKind::Busy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_numbers_are_those_of_the_range() {
        let numbers = ProcessNumbers::new(1);
        assert_eq!(numbers.next_ino(), None);
        numbers.start_range(3);
        let all: Vec<u64> = std::iter::from_fn(|| numbers.next_ino()).collect();
        // The first number of a range says that a new one is due.
        assert!(all.iter().copied().eq(3 * INO_RANGE + 1..4 * INO_RANGE));
        numbers.start_range(9);
        assert_eq!(numbers.next_ino(), Some(9 * INO_RANGE + 1));
    }

    #[test]
    fn tokens_differ_and_none_is_0_or_all_ones() {
        for entropy in [0, u64::MAX] {
            let numbers = ProcessNumbers::new(entropy);
            let tokens = [(); 3].map(|()| numbers.token());
            assert!(tokens.iter().all(|token| (1..u64::MAX).contains(token)));
            assert!(tokens[0] != tokens[1] && tokens[1] != tokens[2] && tokens[0] != tokens[2]);
        }
    }

    #[test]
    fn the_child_of_a_fork_draws_numbers_of_its_own() {
        let numbers = ProcessNumbers::new(1);
        numbers.start_range(3);
        assert_eq!((numbers.forks(), numbers.token()), (0, 1));
        numbers.after_fork_child(7);
        assert_eq!(numbers.next_ino(), None);
        assert_eq!((numbers.forks(), numbers.token()), (1, 7));
    }
}
