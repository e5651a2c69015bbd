//! A thread for a log, so that who appends never waits for flash.
//!
//! Frames gather in a batch while the one before is written: many operations share one `fdatasync`, and one alone does not wait for others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use samite_types::{Error, ErrorKind, Result};

use crate::frame::{Batch, framed_len};
use crate::log::Log;

/// Most bytes of frames that wait to be written; then appending is refused as busy.
const PENDING_LEN_MAX: u64 = 64 << 20;
/// Memory of a batch beyond this is not kept for the next.
const KEEP_LEN_MAX: usize = 4 << 20;
/// How often a full disk is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// What a log has and takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes of its files.
    pub len: u64,
    /// Frames written since it was opened.
    pub frames: u64,
    /// Batches of them: as many writes and syncs.
    pub batches: u64,
}

/// Appends to a log from one thread, while another writes. Dropping it writes what was submitted, and ends the thread.
#[derive(Debug)]
pub struct Appender {
    shared: Arc<Shared>,
    /// Number of the next frame.
    next: u64,
    /// Bytes appended since the log was opened.
    appended: u64,
    /// Frames were added that the thread was not told of.
    is_quiet: bool,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
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
struct Queue {
    batch: Batch,
    is_submitted: bool,
    drop_below: u64,
    ends: bool,
    trouble: Option<Trouble>,
}

/// Why the log takes nothing.
#[derive(Clone, Debug)]
enum Trouble {
    /// There is no space for a next segment; what is there can be used.
    Full(Error),
    /// It cannot be written any more.
    Broken(Error),
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Appender {
    /// Starts a thread called `name` for `log`. It calls `wake` whenever more is on flash, and when the log breaks.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start(name: &str, log: Log, wake: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
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
        let next = log.next();
        let mut writer = Writer { shared: Arc::clone(&shared), log, wake };
        // Before the first frame, so that a disk that is full is known from the start.
        writer.prepare();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || writer.run())?;
        Ok(Self { shared, next, appended: 0, is_quiet: false, thread: Some(thread) })
    }

    /// Whether a frame with a payload of `len` bytes may be added: what is added then is sure to have its place.
    ///
    /// # Errors
    /// `Busy`: too much waits to be written. `NoSpace` or another of the disk's: there is no space, or the log is broken.
    pub fn admit(&self, len: usize) -> Result<(), ErrorKind> {
        let len = framed_len(len) as u64;
        let after = self.appended + len;
        // The limit allows for a gap as long as the longest frame before this one.
        let is_longest = len > self.shared.longest.load(Ordering::Relaxed);
        let gap = if is_longest { len } else { 0 };
        let limit = self.shared.limit.load(Ordering::Acquire);
        let waiting = after.saturating_sub(self.shared.written.load(Ordering::Relaxed));
        if after + gap <= limit && waiting <= PENDING_LEN_MAX {
            return Ok(());
        }
        match self.trouble() {
            Some(error) => Err(error.kind()),
            None => Err(ErrorKind::Busy),
        }
    }

    /// Why the log takes no more, or soon will not.
    #[must_use]
    pub fn trouble(&self) -> Option<Error> {
        match &lock(&self.shared.queue).trouble {
            Some(Trouble::Full(error) | Trouble::Broken(error)) => Some(error.clone()),
            None => None,
        }
    }

    /// Why what was added and is not durable will never be.
    #[must_use]
    pub fn broken(&self) -> Option<Error> {
        match &lock(&self.shared.queue).trouble {
            Some(Trouble::Broken(error)) => Some(error.clone()),
            _ => None,
        }
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
            lock(&self.shared.queue).is_submitted = true;
            self.shared.changed.notify_one();
        }
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

    /// Figures.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let of = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let shared = &*self.shared;
        Figures { len: of(&shared.len), frames: of(&shared.frames), batches: of(&shared.batches) }
    }
}

impl Drop for Appender {
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

struct Writer<W> {
    shared: Arc<Shared>,
    log: Log,
    wake: W,
}

impl<W: Fn()> Writer<W> {
    fn run(mut self) {
        let mut batch = Batch::default();
        let mut dropped = 0;
        while let Some(drop_below) = self.next_work(&mut batch) {
            if !batch.is_empty() {
                self.write(&mut batch);
            }
            if drop_below > dropped {
                dropped = drop_below;
                if let Err(error) = self.log.drop_below(drop_below) {
                    tracing::warn!(%error, "remove old segments of the log");
                }
            }
            self.prepare();
        }
    }

    /// Waits for frames, or for something to drop; `None` at the end.
    fn next_work(&self, batch: &mut Batch) -> Option<u64> {
        let mut queue = lock(&self.shared.queue);
        let before = queue.drop_below;
        loop {
            if queue.is_submitted {
                queue.is_submitted = false;
                std::mem::swap(&mut queue.batch, batch);
                return Some(queue.drop_below);
            }
            if queue.ends {
                return None;
            }
            let is_full = matches!(queue.trouble, Some(Trouble::Full(_)));
            if queue.drop_below > before {
                return Some(queue.drop_below);
            }
            let changed = &self.shared.changed;
            if is_full {
                let waited = changed.wait_timeout(queue, RETRY_AFTER);
                let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                queue = woken;
                if timeout.timed_out() {
                    return Some(queue.drop_below);
                }
            } else {
                queue = changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn write(&mut self, batch: &mut Batch) {
        let written = self.log.write(batch);
        let shared = &*self.shared;
        shared.durable.store(self.log.next(), Ordering::Release);
        shared.written.fetch_add(batch.len() as u64, Ordering::Relaxed);
        shared.frames.fetch_add(batch.count(), Ordering::Relaxed);
        shared.batches.fetch_add(1, Ordering::Relaxed);
        batch.clear(KEEP_LEN_MAX);
        if let Err(error) = written {
            self.set_trouble(Some(Trouble::Broken(error)));
        }
        (self.wake)();
    }

    fn set_trouble(&self, trouble: Option<Trouble>) {
        let mut queue = lock(&self.shared.queue);
        match (&queue.trouble, &trouble) {
            (Some(Trouble::Broken(_)), _) => return,
            (_, Some(Trouble::Broken(error))) => tracing::error!(%error, "the log is broken"),
            (None, Some(Trouble::Full(error))) => tracing::warn!(%error, "no space for the log"),
            (Some(Trouble::Full(_)), None) => tracing::info!("there is space for the log again"),
            _ => {}
        }
        queue.trouble = trouble;
    }

    /// Sets the next segment aside, and says how much may be appended.
    fn prepare(&mut self) {
        let is_broken = matches!(lock(&self.shared.queue).trouble, Some(Trouble::Broken(_)));
        if !is_broken {
            let prepared = self.log.prepare();
            self.set_trouble(prepared.err().map(Trouble::Full));
        }
        let shared = &*self.shared;
        shared.len.store(self.log.len(), Ordering::Relaxed);
        let written = shared.written.load(Ordering::Relaxed);
        let longest = shared.longest.load(Ordering::Relaxed) as usize;
        let room = if is_broken { 0 } else { self.log.room(longest) };
        shared.limit.store(written + room, Ordering::Release);
    }
}
