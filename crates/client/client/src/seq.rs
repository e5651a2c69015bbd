//! Sequence numbers of one session: which are in use, and below which all have been answered.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use samite_types::{Deadline, Error, ErrorKind, Result, Seq};

/// Most numbers between the oldest unanswered and the newest.
///
/// Wider than the window of one partition, so that one node that does not answer holds up no caller
/// that works with others.
const SPAN_MAX: u64 = 1 << 16;

/// How long a thread that finds no number free sleeps before it looks again.
const FULL_PAUSE: Duration = Duration::from_micros(200);

/// Hands out sequence numbers, and keeps the watermark below which all are answered.
#[derive(Debug)]
pub(crate) struct SequenceNumbers {
    window: Mutex<SequenceWindow>,
    answered_below: AtomicU64,
}

#[derive(Debug)]
struct SequenceWindow {
    /// The next number to hand out.
    next: u64,
    /// The oldest number that is not answered; equal to `next` when there is none.
    oldest: u64,
    /// One bit for each number from `oldest` on, at its remainder: it is answered.
    answered: Box<[u64]>,
}

impl SequenceWindow {
    fn bit(&mut self, seq: u64) -> (&mut u64, u64) {
        let at = seq % SPAN_MAX;
        // The remainder is below SPAN_MAX, so its word exists.
        (&mut self.answered[(at / 64) as usize], 1 << (at % 64))
    }

    fn answer(&mut self, first: u64, count: u64) {
        // Numbers come back in the order they went out more often than not: then nothing needs to be noted.
        if first == self.oldest {
            self.oldest += count;
        } else {
            for seq in first..first + count {
                let (word, bit) = self.bit(seq);
                *word |= bit;
            }
        }
        while self.oldest < self.next {
            let oldest = self.oldest;
            let (word, bit) = self.bit(oldest);
            if *word & bit == 0 {
                break;
            }
            *word &= !bit;
            self.oldest += 1;
        }
    }
}

impl SequenceNumbers {
    pub(crate) fn new() -> Self {
        let answered = vec![0; (SPAN_MAX / 64) as usize].into_boxed_slice();
        Self {
            window: Mutex::new(SequenceWindow { next: 1, oldest: 1, answered }),
            answered_below: AtomicU64::new(1),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SequenceWindow> {
        // Nothing inside panics half-way.
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every number below this one is answered.
    pub(crate) fn answered_below(&self) -> Seq {
        Seq(self.answered_below.load(Ordering::Acquire))
    }

    /// Takes `count` consecutive numbers (at most [`SPAN_MAX`]); waits while too many are unanswered.
    pub(crate) fn take(&self, count: u64, deadline: Deadline) -> Result<SeqRange<'_>> {
        loop {
            if let Some(range) = self.try_take(count) {
                return Ok(range);
            }
            if deadline.remaining().is_none() {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!("more than {SPAN_MAX} operations wait for their answers"),
                ));
            }
            std::thread::sleep(FULL_PAUSE);
        }
    }

    /// Takes `count` consecutive numbers unless too many are unanswered.
    pub(crate) fn try_take(&self, count: u64) -> Option<SeqRange<'_>> {
        if count == 0 {
            return Some(SeqRange { seqs: self, first: 0, count });
        }
        let mut window = self.lock();
        if window.next + count - window.oldest > SPAN_MAX {
            return None;
        }
        let first = window.next;
        window.next += count;
        Some(SeqRange { seqs: self, first, count })
    }

    /// Gives back numbers that [`SeqRange::leak`] took out of a range.
    pub(crate) fn give_back(&self, first: Seq, count: u64) {
        if count > 0 {
            let mut window = self.lock();
            window.answer(first.get(), count);
            self.answered_below.store(window.oldest, Ordering::Release);
        }
    }
}

/// Numbers in use. Dropping it says that nobody will send them again.
#[derive(Debug)]
pub(crate) struct SeqRange<'s> {
    seqs: &'s SequenceNumbers,
    first: u64,
    count: u64,
}

impl SeqRange<'_> {
    pub(crate) const fn first(&self) -> Seq {
        Seq(self.first)
    }

    /// The first number and how many there are, kept in use until [`SequenceNumbers::give_back`].
    pub(crate) fn leak(self) -> (Seq, u64) {
        let taken = (Seq(self.first), self.count);
        std::mem::forget(self);
        taken
    }
}

impl Drop for SeqRange<'_> {
    fn drop(&mut self) {
        self.seqs.give_back(Seq(self.first), self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_millis(5))
    }

    #[test]
    fn the_watermark_waits_for_the_oldest() {
        let seqs = SequenceNumbers::new();
        let a = seqs.take(1, soon()).unwrap();
        let b = seqs.take(3, soon()).unwrap();
        let c = seqs.take(1, soon()).unwrap();
        assert_eq!((a.first(), b.first(), c.first()), (Seq(1), Seq(2), Seq(5)));
        drop(b);
        assert_eq!(seqs.answered_below(), Seq(1));
        drop(a);
        assert_eq!(seqs.answered_below(), Seq(5));
        drop(c);
        assert_eq!(seqs.answered_below(), Seq(6));
    }

    #[test]
    fn a_full_window_waits_and_then_times_out() {
        let seqs = SequenceNumbers::new();
        let held = seqs.take(1, soon()).unwrap();
        drop(seqs.take(SPAN_MAX - 1, soon()).unwrap());
        assert_eq!(seqs.take(1, soon()).unwrap_err().kind(), ErrorKind::Timeout);
        drop(held);
        // The whole ring of bits has been used once: nothing of it is left over.
        for _ in 0..3 {
            let all = seqs.take(SPAN_MAX, soon()).unwrap();
            assert!(seqs.try_take(1).is_none());
            drop(all);
        }
        assert_eq!(seqs.answered_below(), Seq(4 * SPAN_MAX + 1));
    }
}
