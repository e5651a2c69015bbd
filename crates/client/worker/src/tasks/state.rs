//! One task: its counts, its output until that is taken, its end.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use samite_types::{Error, ErrorKind, Result};

use crate::messages::{OUTPUT_LEN_MAX, PieceOutput, TaskCounts, TaskEnd, TaskProgress};

/// Most bytes of output that wait to be taken; the module waits then.
const WAITING_LEN_MAX: usize = 4 << 20;
/// Outputs of a piece are joined up to this length.
const JOINED_LEN_MAX: usize = 128 << 10;
/// Counts as bytes of each piece of output, for what it takes beside its bytes.
const PIECE_COST: usize = 16;

/// What a task has given, and not been rid of.
#[derive(Debug, Default)]
struct WaitingOutput {
    pieces: VecDeque<PieceOutput>,
    len: usize,
    /// The batch that was sent last, until it is known to have come.
    sent: Vec<PieceOutput>,
    batch: u64,
    end: Option<TaskEnd>,
}

#[derive(Clone, Copy, Debug, Default)]
struct TaskTimes {
    began: Option<Instant>,
    cancelled: Option<Instant>,
    /// How long it has run, if it is over.
    took: Option<Duration>,
}

/// A task that was begun. The thread that carries it out and those that answer questions share it.
#[derive(Debug)]
pub(crate) struct TaskState {
    records: AtomicU64,
    bytes_local: AtomicU64,
    bytes_moved: AtomicU64,
    bytes_returned: AtomicU64,
    piece: AtomicU64,
    is_cancelled: AtomicBool,
    times: Mutex<TaskTimes>,
    time_max: Duration,
    asked: Mutex<Instant>,
    output: Mutex<WaitingOutput>,
    changed: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A module that panics holds none of these.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TaskState {
    /// A task that may run for so long.
    pub(crate) fn new(time_max: Duration) -> Self {
        Self {
            records: AtomicU64::new(0),
            bytes_local: AtomicU64::new(0),
            bytes_moved: AtomicU64::new(0),
            bytes_returned: AtomicU64::new(0),
            piece: AtomicU64::new(0),
            is_cancelled: AtomicBool::new(false),
            times: Mutex::default(),
            time_max,
            asked: Mutex::new(Instant::now()),
            output: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// It begins to run.
    pub(crate) fn begin(&self) {
        lock(&self.times).began = Some(Instant::now());
    }

    /// Whether it may go on.
    ///
    /// # Errors
    /// `Interrupted`, `Timeout`.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_cancelled.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Interrupted, "the task was cancelled"));
        }
        if self.ran() > self.time_max {
            let words = format!("the task took longer than {:?}", self.time_max);
            return Err(Error::new(ErrorKind::Timeout, words));
        }
        Ok(())
    }

    /// For how long it has run.
    fn ran(&self) -> Duration {
        let TaskTimes { began, took, .. } = *lock(&self.times);
        took.or_else(|| began.map(|began| began.elapsed())).unwrap_or_default()
    }

    /// Whether it runs on although it should have ended, for so long.
    pub(crate) fn is_stuck(&self, patience: Duration) -> bool {
        let TaskTimes { began, cancelled, took } = *lock(&self.times);
        let runs = began.is_some() && took.is_none();
        let is_cancelled = cancelled.is_some_and(|since| since.elapsed() > patience);
        let ran = began.map_or(Duration::ZERO, |began| began.elapsed());
        runs && (is_cancelled || ran > self.time_max.saturating_add(patience))
    }

    /// It is to end.
    pub(crate) fn cancel(&self) {
        lock(&self.times).cancelled.get_or_insert_with(Instant::now);
        self.is_cancelled.store(true, Ordering::Relaxed);
        // The lock makes sure that nobody is between looking and waiting.
        drop(lock(&self.output));
        self.changed.notify_all();
    }

    /// Nobody has asked for it for so long.
    pub(crate) fn silence(&self) -> Duration {
        lock(&self.asked).elapsed()
    }

    pub(crate) fn add_record(&self) {
        self.records.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_input(&self, bytes: u64, is_local: bool) {
        let count = if is_local { &self.bytes_local } else { &self.bytes_moved };
        count.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Output is for this piece now.
    pub(crate) fn begin_piece(&self, number: u64) {
        self.piece.store(number, Ordering::Relaxed);
    }

    /// It is over.
    pub(crate) fn finish(&self, end: TaskEnd) {
        let ran = self.ran();
        lock(&self.times).took = Some(ran);
        lock(&self.output).end = Some(end);
        self.changed.notify_all();
    }

    /// Takes output for the piece at hand; waits while much was not taken.
    ///
    /// # Errors
    /// As of [`Self::check`].
    pub(crate) fn emit(&self, bytes: &[u8]) -> Result<()> {
        const { assert!(JOINED_LEN_MAX + PIECE_COST <= OUTPUT_LEN_MAX) };
        let piece = self.piece.load(Ordering::Relaxed);
        for part in bytes.chunks(JOINED_LEN_MAX) {
            let mut output = lock(&self.output);
            while output.len >= WAITING_LEN_MAX {
                self.check()?;
                let waited = self.changed.wait_timeout(output, Duration::from_millis(100));
                output = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            output.push(piece, part);
            self.bytes_returned.fetch_add(part.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn counts(&self) -> TaskCounts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TaskCounts {
            records: get(&self.records),
            bytes_local: get(&self.bytes_local),
            bytes_moved: get(&self.bytes_moved),
            bytes_returned: get(&self.bytes_returned),
            micros: u64::try_from(self.ran().as_micros()).unwrap_or(u64::MAX),
        }
    }

    /// Whether there is something to tell beside the counts.
    pub(crate) fn has_news(&self) -> bool {
        let output = lock(&self.output);
        !output.pieces.is_empty() || !output.sent.is_empty() || output.end.is_some()
    }

    /// How far it is, with output of at most `room` bytes, which is made less by that.
    pub(crate) fn progress(&self, taken: u64, room: &mut usize) -> TaskProgress {
        *lock(&self.asked) = Instant::now();
        let mut output = lock(&self.output);
        if taken >= output.batch {
            output.sent.clear();
            output.next_batch(*room);
            self.changed.notify_all();
        }
        let len: usize = output.sent.iter().map(|piece| piece.bytes.len() + PIECE_COST).sum();
        let is_told = len <= *room;
        *room = room.saturating_sub(len);
        let is_last = is_told && output.pieces.is_empty();
        TaskProgress {
            counts: self.counts(),
            batch: if is_told { output.batch } else { taken },
            output: if is_told { output.sent.clone() } else { Vec::new() },
            end: output.end.clone().filter(|_| is_last),
        }
    }
}

/// Time without a question after which a task is ended: nobody waits for it.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(30);

impl WaitingOutput {
    /// Makes the next batch, if there is output.
    fn next_batch(&mut self, room: usize) {
        let mut left = room;
        while let Some(piece) = self.pieces.front() {
            let cost = piece.bytes.len() + PIECE_COST;
            if cost > left {
                break;
            }
            left -= cost;
            self.len -= piece.bytes.len();
            self.sent.extend(self.pieces.pop_front());
        }
        if !self.sent.is_empty() {
            self.batch += 1;
        }
    }

    fn push(&mut self, piece: u64, bytes: &[u8]) {
        self.len += bytes.len();
        if let Some(last) = self.pieces.back_mut()
            && last.piece == piece
            && last.bytes.len() + bytes.len() <= JOINED_LEN_MAX
        {
            last.bytes.extend_from_slice(bytes);
            return;
        }
        self.pieces.push_back(PieceOutput { piece, bytes: bytes.to_vec() });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_task_that_is_cancelled_does_not_wait_for_room() {
        let state = TaskState::new(Duration::from_secs(60));
        state.begin();
        std::thread::scope(|scope| {
            let emits = scope.spawn(|| {
                let bytes = [0; 1 << 20];
                let mut given = 0;
                loop {
                    match state.emit(&bytes) {
                        Ok(()) => given += bytes.len(),
                        Err(error) => return (given, error.kind()),
                    }
                }
            });
            while !state.has_news() {
                std::thread::yield_now();
            }
            state.cancel();
            let (given, kind) = emits.join().unwrap();
            assert!(given <= WAITING_LEN_MAX + (1 << 20), "{given}");
            assert_eq!(kind, ErrorKind::Interrupted);
        });
    }

    proptest! {
        /// However often answers are lost, what is received is what was given.
        #[test]
        fn output_comes_once_and_in_order(
            given in proptest::collection::vec((0..4_u64, 0..3000_usize), 0..40),
            lost in proptest::collection::vec(any::<bool>(), 200),
            room in 2000..9000_usize,
        ) {
            let state = TaskState::new(Duration::from_secs(60));
            state.begin();
            let mut expected = vec![Vec::new(); 4];
            for (index, (piece, len)) in given.iter().enumerate() {
                state.begin_piece(*piece);
                let bytes = vec![index as u8; *len];
                expected[*piece as usize].extend_from_slice(&bytes);
                // Pieces no longer than a batch, as the limits outside of the test see to.
                for part in bytes.chunks(1000) {
                    state.emit(part).unwrap();
                    state.begin_piece(u64::MAX);
                    state.begin_piece(*piece);
                }
            }
            state.finish(TaskEnd::Done);
            let (mut got, mut taken, mut rounds) = (vec![Vec::new(); 4], 0, 0);
            let mut lost = lost.into_iter();
            loop {
                rounds += 1;
                prop_assert!(rounds < 1000, "it does not end");
                let mut room = room.max(JOINED_LEN_MAX + PIECE_COST);
                let progress = state.progress(taken, &mut room);
                if lost.next().unwrap_or(false) {
                    continue;
                }
                if progress.batch > taken {
                    for piece in progress.output {
                        got[piece.piece as usize].extend(piece.bytes);
                    }
                    taken = progress.batch;
                }
                if progress.end.is_some() {
                    break;
                }
            }
            prop_assert_eq!(got, expected);
        }
    }
}
