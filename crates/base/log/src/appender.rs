//! A thread for a log, so that the thread that appends never waits for flash.
//!
//! Frames gather in a batch while the one before is written: many operations share one `fdatasync`, and one alone does not wait for others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use samite_types::{Error, ErrorKind, Result};

use crate::frame::{FrameBatch, framed_len};
use crate::log::OpenLog;

/// Most bytes of frames that wait to be written; then appending is refused as busy.
const PENDING_LEN_MAX: u64 = 64 << 20;
/// Memory of a batch beyond this is freed before the next.
const KEEP_LEN_MAX: usize = 4 << 20;
/// How often a disk that is full or fails is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// Metrics of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogMetrics {
    /// Bytes of its files.
    pub len: u64,
    /// Frames written since it was opened.
    pub frames: u64,
    /// Batches of them: as many writes and syncs.
    pub batches: u64,
}

/// A so many-th part of a segment is reserved for frames that have to be written on a full disk.
const RESERVE: u64 = 16;

/// Purpose of a frame: how much of the last space it may take when the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FrameNeed {
    /// It gives space back, or is needed to read.
    Essential,
    /// It adds hardly anything, and may go with frames that give space back.
    Small,
    /// Anything else.
    Ordinary,
}

/// Appends to a log from one thread, while another writes. Dropping it writes what was submitted, and ends the thread.
#[derive(Debug)]
pub struct LogAppender {
    shared: Arc<AppenderShared>,
    /// Number of the next frame.
    next: u64,
    /// Bytes appended since the log was opened.
    appended: u64,
    /// Bytes reserved for frames that have to be written on a full disk.
    reserve: u64,
    /// Frames were added that the thread was not told of.
    is_quiet: bool,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct AppenderShared {
    queue: Mutex<AppendQueue>,
    changed: Condvar,
    /// Everything below is on flash.
    durable: AtomicU64,
    /// So many bytes may be appended in all since the log was opened.
    limit: AtomicU64,
    /// Bytes written since.
    written: AtomicU64,
    /// The longest frame so far, in bytes.
    longest: AtomicU64,
    len: AtomicU64,
    frames: AtomicU64,
    batches: AtomicU64,
}

#[derive(Debug, Default)]
struct AppendQueue {
    batch: FrameBatch,
    is_submitted: bool,
    drop_below: u64,
    ends: bool,
    /// The thread waits to be told.
    sleeps: bool,
    /// Why nothing can be written now, or no next segment be set aside.
    trouble: Option<Error>,
}

fn lock(queue: &Mutex<AppendQueue>) -> MutexGuard<'_, AppendQueue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LogAppender {
    /// Starts a thread called `name` for `log`. It calls `wake` whenever more is on flash.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start(
        name: &str,
        log: OpenLog,
        wake: impl Fn() + Send + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(AppenderShared {
            queue: Mutex::default(),
            changed: Condvar::new(),
            durable: AtomicU64::new(log.next()),
            limit: AtomicU64::new(0),
            written: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            len: AtomicU64::new(log.len()),
            frames: AtomicU64::new(0),
            batches: AtomicU64::new(0),
        });
        let (next, reserve) = (log.next(), log.segment_len() / RESERVE);
        let mut writer = AppendWriter { shared: Arc::clone(&shared), log, wake };
        // Before the first frame, so that a disk that is full is known from the start.
        let prepared = writer.log.prepare();
        if prepared.is_err() && writer.log.room(0) < reserve {
            // The first error says that there is no space.
            let _ = writer.log.prepare_small();
        }
        writer.set_trouble(prepared.err());
        writer.set_limit(true);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || writer.run())?;
        Ok(Self { shared, next, appended: 0, reserve, is_quiet: false, thread: Some(thread) })
    }

    /// Whether a frame with a payload of `len` bytes may be added: a frame that is added then is
    /// sure to have its place. Of the last space a part is reserved for frames with greater need of
    /// it, and the rest for those that are added without asking: notes that a partition makes by
    /// itself.
    ///
    /// # Errors
    /// `Busy`: too much waits to be written. `NoSpace` or another of the disk's: see [`trouble`](Self::trouble).
    pub fn admit(&self, len: usize, need: FrameNeed) -> Result<(), ErrorKind> {
        let len = framed_len(len) as u64;
        let after = self.appended + len;
        // The limit allows for a gap as long as the longest frame before this one.
        let is_longest = len > self.shared.longest.load(Ordering::Relaxed);
        let gap = if is_longest { len } else { 0 };
        let limit = self.shared.limit.load(Ordering::Acquire);
        let waiting = after.saturating_sub(self.shared.written.load(Ordering::Relaxed));
        let kept = match need {
            FrameNeed::Essential => self.reserve / 4,
            FrameNeed::Small => self.reserve / 2,
            FrameNeed::Ordinary => self.reserve,
        };
        if after + gap + kept <= limit && waiting <= PENDING_LEN_MAX {
            return Ok(());
        }
        match self.trouble() {
            Some(error) => Err(error.kind()),
            None => Err(ErrorKind::Busy),
        }
    }

    /// Why there is too little space for anything ordinary, or soon will be, if that is so.
    #[must_use]
    pub fn shortage(&self) -> Option<Error> {
        let limit = self.shared.limit.load(Ordering::Acquire);
        let is_short = self.appended + 2 * self.reserve > limit;
        let trouble = if is_short { self.trouble() } else { None };
        trouble.filter(|error| error.kind() == ErrorKind::NoSpace)
    }

    /// Why there is too little space even for notes that a partition makes by itself, if that is
    /// so.
    #[must_use]
    pub fn blocked(&self) -> Option<Error> {
        let limit = self.shared.limit.load(Ordering::Acquire);
        self.shortage().filter(|_| self.appended + self.reserve / 4 > limit)
    }

    /// Why nothing can be written now, or soon. It is tried again and again: added frames wait.
    #[must_use]
    pub fn trouble(&self) -> Option<Error> {
        lock(&self.shared.queue).trouble.clone()
    }

    /// Adds a frame that was [admitted](Self::admit); `write` appends its payload. Returns its number. It is written after the next
    /// [`submit`](Self::submit), or sooner.
    pub fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let len = lock(&self.shared.queue).batch.add(write) as u64;
        self.shared.longest.fetch_max(len, Ordering::Relaxed);
        self.appended += len;
        self.is_quiet = true;
        self.next += 1;
        self.next - 1
    }

    /// Has everything that was added written.
    pub fn submit(&mut self) {
        if std::mem::take(&mut self.is_quiet) {
            let mut queue = lock(&self.shared.queue);
            queue.is_submitted = true;
            let sleeps = queue.sleeps;
            drop(queue);
            if sleeps {
                self.shared.changed.notify_one();
            }
        }
    }

    /// Bytes of frames that were added since the log was opened.
    #[must_use]
    pub const fn appended(&self) -> u64 {
        self.appended
    }

    /// Number of the next frame.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Every frame with a number below this is on flash.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.shared.durable.load(Ordering::Acquire)
    }

    /// Frames below `sequence` are not needed any more.
    pub fn drop_below(&self, sequence: u64) {
        let mut queue = lock(&self.shared.queue);
        queue.drop_below = queue.drop_below.max(sequence);
        drop(queue);
        self.shared.changed.notify_one();
    }

    /// Metrics of the log.
    #[must_use]
    pub fn metrics(&self) -> LogMetrics {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let shared = &*self.shared;
        LogMetrics {
            len: of(&shared.len),
            frames: of(&shared.frames),
            batches: of(&shared.batches),
        }
    }
}

impl Drop for LogAppender {
    fn drop(&mut self) {
        self.submit();
        lock(&self.shared.queue).ends = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of it has been reported; there is nothing to add.
            let _ = thread.join();
        }
    }
}

struct AppendWriter<W> {
    shared: Arc<AppenderShared>,
    log: OpenLog,
    wake: W,
}

impl<W: Fn()> AppendWriter<W> {
    fn run(mut self) {
        let mut batch = FrameBatch::default();
        let mut dropped = 0;
        while let Some(drop_below) = self.next_work(&mut batch) {
            let written = if batch.is_empty() { Ok(()) } else { self.write(&mut batch) };
            if drop_below > dropped {
                match self.log.drop_below(drop_below) {
                    Ok(()) => dropped = drop_below,
                    Err(error) => tracing::warn!(%error, "remove old segments of the log"),
                }
            }
            let prepared = written.and_then(|()| self.log.prepare());
            let is_full = matches!(&prepared, Err(error) if error.kind() == ErrorKind::NoSpace);
            self.set_trouble(prepared.err());
            self.set_limit(batch.is_empty());
            if is_full {
                // The thread that has something to do about it is to look at it.
                (self.wake)();
            }
        }
    }

    /// Waits for frames, for something to drop, or for the time to try again; `None` at the end.
    /// Frames in `batch` come first.
    fn next_work(&self, batch: &mut FrameBatch) -> Option<u64> {
        let mut queue = lock(&self.shared.queue);
        let before = queue.drop_below;
        loop {
            if batch.is_empty() && queue.is_submitted {
                queue.is_submitted = false;
                std::mem::swap(&mut queue.batch, batch);
                return Some(queue.drop_below);
            }
            if queue.ends {
                return None;
            }
            if queue.drop_below > before {
                return Some(queue.drop_below);
            }
            let changed = &self.shared.changed;
            queue.sleeps = true;
            if queue.trouble.is_none() {
                queue = changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.sleeps = false;
                continue;
            }
            let waited = changed.wait_timeout(queue, RETRY_AFTER);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            queue.sleeps = false;
            if timeout.timed_out() {
                return Some(queue.drop_below);
            }
        }
    }

    fn write(&mut self, batch: &mut FrameBatch) -> Result<()> {
        let before = (self.log.next(), batch.written());
        let written = self.log.write(batch);
        let shared = &*self.shared;
        shared.durable.store(self.log.next(), Ordering::Release);
        shared.frames.fetch_add(self.log.next() - before.0, Ordering::Relaxed);
        shared.written.fetch_add((batch.written() - before.1) as u64, Ordering::Relaxed);
        shared.batches.fetch_add(1, Ordering::Relaxed);
        if written.is_ok() {
            batch.clear(KEEP_LEN_MAX);
        }
        (self.wake)();
        written
    }

    fn set_trouble(&self, trouble: Option<Error>) {
        let mut queue = lock(&self.shared.queue);
        match (&queue.trouble, &trouble) {
            (None, Some(error)) => tracing::error!(%error, "the log takes no more"),
            (Some(_), None) => tracing::info!("the log takes more again"),
            _ => {}
        }
        queue.trouble = trouble;
    }

    /// Sets how much may be appended: nothing while the accepted frames cannot be written.
    fn set_limit(&self, is_going: bool) {
        let shared = &*self.shared;
        shared.len.store(self.log.len(), Ordering::Relaxed);
        let written = shared.written.load(Ordering::Relaxed);
        let longest = shared.longest.load(Ordering::Relaxed) as usize;
        let room = if is_going { self.log.room(longest) } else { 0 };
        shared.limit.store(written + room, Ordering::Release);
    }
}
