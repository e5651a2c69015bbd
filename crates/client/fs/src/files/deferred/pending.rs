//! The deferred files of a process: what waits, what is being sent, and what became of it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use samite_client::PendingOperations;
use samite_types::Error;

use super::waiting::{NamedFiles, UnsentFile, WaitingFiles};
use crate::records::store::FoundInode;

/// Failures kept for [`FileSystem::late_failures`](crate::FileSystem::late_failures).
const FAILURES_MAX: usize = 64;

/// The fate of a file that was sent, when it is not simply there.
pub enum DeferredSurprise {
    /// It was there before.
    Existed(Box<FoundInode>),
    Failed(Error),
}

/// The deferred files of a process.
#[derive(Default)]
pub struct DeferredFiles {
    is_on: AtomicBool,
    /// Files that wait or are being sent.
    count: AtomicUsize,
    waiting: Mutex<WaitingFiles>,
    /// Answers under way, to the files that fly, flight by flight. The lock is held while files are
    /// sent, so that others wait until they are there.
    sending: Mutex<VecDeque<PendingOperations>>,
    /// By the number that the handle has; taken out by it.
    surprises: Mutex<HashMap<u64, DeferredSurprise>>,
    failures: Mutex<Vec<Error>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeferredFiles {
    /// Whether no file waits or is being sent.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Lets new files wait, or not any more.
    pub fn allow(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Whether new files may wait.
    pub fn is_allowed(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// The files that wait and those that fly.
    pub fn waiting(&self) -> MutexGuard<'_, WaitingFiles> {
        lock(&self.waiting)
    }

    /// The answers under way; who holds them keeps others from sending.
    pub fn sending(&self) -> MutexGuard<'_, VecDeque<PendingOperations>> {
        lock(&self.sending)
    }

    /// Lets a new file wait. It counts until [`DeferredFiles::finished`].
    pub fn add(&self, file: UnsentFile) {
        let mut waiting = self.waiting();
        waiting.files.push(file);
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes the files that wait; they are to be sent.
    pub fn take_waiting(&self) -> NamedFiles {
        let mut waiting = self.waiting();
        waiting.data_len = 0;
        std::mem::take(&mut waiting.files)
    }

    /// So many files are there, or have failed.
    pub fn finished(&self, count: usize) {
        self.count.fetch_sub(count, Ordering::AcqRel);
    }

    /// Notes what became of the file with number `ino`, whose handle is open.
    pub fn surprise(&self, ino: u64, surprise: DeferredSurprise) {
        lock(&self.surprises).insert(ino, surprise);
    }

    /// What became of the file with number `ino`; `None`: it is simply there.
    pub fn take_surprise(&self, ino: u64) -> Option<DeferredSurprise> {
        lock(&self.surprises).remove(&ino)
    }

    /// Keeps the failure of a file whose handle is closed, unless there are too many.
    pub fn keep_failure(&self, error: Error) {
        let mut failures = lock(&self.failures);
        if failures.len() < FAILURES_MAX {
            failures.push(error);
        }
    }

    /// Takes the first failure that was kept.
    pub fn first_failure(&self) -> Option<Error> {
        let mut failures = lock(&self.failures);
        (!failures.is_empty()).then(|| failures.remove(0))
    }

    /// Takes all failures that were kept.
    pub fn take_failures(&self) -> Vec<Error> {
        std::mem::take(&mut lock(&self.failures))
    }

    /// The files that wait are the parent's, which has sent them before the fork, or has yet to.
    /// Nothing is freed: the fork may have come in the middle of that.
    pub fn after_fork_child(&self) {
        if let Ok(mut waiting) = self.waiting.try_lock() {
            std::mem::forget(std::mem::take(&mut *waiting));
        }
        if let Ok(mut sending) = self.sending.try_lock() {
            // Their connections are the parent's.
            sending.drain(..).for_each(std::mem::forget);
        }
        self.count.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use samite_types::{Epoch, ErrorKind, PartitionId};

    use super::*;
    use crate::files::deferred::waiting::FilePlace;
    use crate::records::key;
    use crate::records::store::RecordLocation;
    use crate::{CallerContext, OpenFlags};

    fn location(name: &[u8]) -> RecordLocation {
        RecordLocation { key: key::entry(1, name), partition: PartitionId(0) }
    }

    fn place() -> FilePlace {
        FilePlace {
            dir: 1,
            dir_location: location(b"dir"),
            tombstone: key::tombstone(1),
            epoch: Epoch(3),
            ctx: CallerContext::root(),
        }
    }

    fn unsent(files: &DeferredFiles, ino: u64, name: &[u8]) -> UnsentFile {
        UnsentFile {
            ino,
            location: location(name),
            place: files.waiting().start_place(place()),
            value: Vec::new(),
            flags: OpenFlags::creating(),
            open_reference: ino,
            is_open: true,
            is_held: false,
        }
    }

    #[test]
    fn a_file_counts_until_it_is_finished() {
        let files = DeferredFiles::default();
        assert!(files.is_empty());
        files.add(unsent(&files, 7, b"a"));
        assert!(files.waiting().has(&location(b"a")));
        assert!(!files.waiting().has(&location(b"b")));
        let taken = files.take_waiting();
        assert_eq!(taken.all.len(), 1);
        assert!(!files.is_empty() && !files.waiting().has(&location(b"a")));
        files.waiting().flying.push_back(taken);
        assert!(files.waiting().has(&location(b"a")));
        files.finished(1);
        assert!(files.is_empty());
    }

    #[test]
    fn a_place_is_shared_while_directory_generation_and_caller_are_the_same() {
        let files = DeferredFiles::default();
        let root = CallerContext::root();
        assert!(files.waiting().place(1, Epoch(3), &root).is_none());
        files.waiting().start_place(place());
        assert!(files.waiting().place(1, Epoch(3), &root).is_some());
        assert!(files.waiting().place(2, Epoch(3), &root).is_none());
        assert!(files.waiting().place(1, Epoch(4), &root).is_none());
        let other = CallerContext { uid: 5, ..root };
        assert!(files.waiting().place(1, Epoch(3), &other).is_none());
    }

    #[test]
    fn a_surprise_is_told_once() {
        let files = DeferredFiles::default();
        let failed = Error::new(ErrorKind::NoSpace, "full");
        files.surprise(7, DeferredSurprise::Failed(failed));
        assert!(files.take_surprise(8).is_none());
        assert!(matches!(files.take_surprise(7), Some(DeferredSurprise::Failed(_))));
        assert!(files.take_surprise(7).is_none());
    }

    #[test]
    fn failures_are_bounded_and_told_in_order() {
        let files = DeferredFiles::default();
        assert!(files.first_failure().is_none());
        let kinds = [ErrorKind::NoSpace, ErrorKind::Exists];
        for kind in kinds.into_iter().cycle().take(FAILURES_MAX + 1) {
            files.keep_failure(Error::new(kind, "make"));
        }
        assert_eq!(files.first_failure().map(|error| error.kind()), Some(ErrorKind::NoSpace));
        assert_eq!(files.take_failures().len(), FAILURES_MAX - 1);
        assert!(files.take_failures().is_empty());
    }

    #[test]
    fn the_child_of_a_fork_has_none() {
        let files = DeferredFiles::default();
        files.add(unsent(&files, 7, b"a"));
        files.after_fork_child();
        assert!(files.is_empty());
        assert!(files.take_waiting().all.is_empty());
    }
}
