//! Which files this process has open, so that what it unlinks while it has it open lives on for it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Open files by inode number.
#[derive(Default)]
pub struct OpenTable {
    counts: Mutex<HashMap<u64, Open>>,
    /// Files in `counts`, to be read without its lock.
    files: AtomicUsize,
    /// Removals under way: between the moment at which a name goes and that at which the orphan is there.
    removals: AtomicUsize,
}

#[derive(Default)]
struct Open {
    handles: u32,
    is_orphan: bool,
}

/// What is left after a handle went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Other handles, or a file with a name.
    Nothing,
    /// It was the last handle of a file without a name.
    Orphan,
}

/// A removal under way.
pub struct Removal<'a>(&'a OpenTable);

impl OpenTable {
    pub fn add(&self, ino: u64) {
        let mut counts = self.lock();
        counts.entry(ino).or_default().handles += 1;
        self.files.store(counts.len(), Ordering::Release);
    }

    /// One handle less.
    pub fn remove(&self, ino: u64) -> Left {
        let mut counts = self.lock();
        let Some(open) = counts.get_mut(&ino) else { return Left::Nothing };
        open.handles -= 1;
        if open.handles > 0 {
            return Left::Nothing;
        }
        let is_orphan = open.is_orphan;
        counts.remove(&ino);
        self.files.store(counts.len(), Ordering::Release);
        if is_orphan { Left::Orphan } else { Left::Nothing }
    }

    /// The file has no name any more. False: this process does not have it open.
    pub fn set_orphan(&self, ino: u64) -> bool {
        let mut counts = self.lock();
        counts.get_mut(&ino).map(|open| open.is_orphan = true).is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.files.load(Ordering::Acquire) == 0
    }

    pub fn begin_removal(&self) -> Removal<'_> {
        self.removals.fetch_add(1, Ordering::AcqRel);
        Removal(self)
    }

    pub fn is_removing(&self) -> bool {
        self.removals.load(Ordering::Acquire) > 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Open>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.0.removals.fetch_sub(1, Ordering::AcqRel);
    }
}
