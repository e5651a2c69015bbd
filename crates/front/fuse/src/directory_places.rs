//! Where the kernel has its directories.
//!
//! The kernel has a directory at one place only. When it finds one elsewhere, because another
//! client has moved it, it moves its own entry there. Within a rename to another directory it
//! cannot do so: the lock that this takes is held by the rename itself, which fails with `ESTALE`,
//! however often it is tried. So a thread takes the entry at the old place from the kernel. It may
//! have to wait for that until the rename has failed; but the kernel tries such a rename once more
//! by itself, and first looks up its path again, which waits for the thread.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuser::{INodeNo, Notifier};

use crate::kernel::KernelName;

/// Most entries that wait to be taken from the kernel.
const QUEUE_MAX: usize = 1024;
/// How long a request waits for them at most: the rename that it waits for may wait for its answer.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// Directory and name.
type Place = (u64, Box<[u8]>);

#[derive(Default)]
struct KnownDirectory {
    /// Inode number of a directory → its place.
    places: HashMap<u64, Place>,
    /// The same, the other way.
    inodes: HashMap<Place, u64>,
    /// Places where the kernel may have a directory that is elsewhere.
    left: VecDeque<Place>,
    is_over: bool,
}

impl KnownDirectory {
    fn put(&mut self, ino: u64, place: Place) {
        self.remove(ino);
        if let Some(before) = self.inodes.insert(place.clone(), ino) {
            self.places.remove(&before);
        }
        self.places.insert(ino, place);
    }

    fn remove(&mut self, ino: u64) {
        if let Some(place) = self.places.remove(&ino) {
            self.inodes.remove(&place);
        }
    }
}

/// Places of the directories that the kernel was told of.
#[derive(Default)]
pub struct DirectoryPlaces {
    known: Mutex<KnownDirectory>,
    /// How many the thread has to take from the kernel, with the one that it is at.
    under_way: AtomicUsize,
    /// There is more for the thread, or it is to end.
    more: Condvar,
    /// The thread has done one.
    less: Condvar,
}

impl DirectoryPlaces {
    /// The kernel is being told that directory `ino` is here.
    pub fn found(&self, ino: u64, at: KernelName<'_>) {
        let mut known = self.lock();
        if let Some((parent, name)) = known.places.get(&ino) {
            if *parent == at.parent && **name == *at.name.as_bytes() {
                return;
            }
            // Within one directory the kernel needs no lock to move it.
            if *parent != at.parent {
                if known.left.len() == QUEUE_MAX {
                    // It is taken for where it was: the next time it is found, this is tried again.
                    return;
                }
                let left = (*parent, name.clone());
                known.left.push_back(left);
                self.under_way.fetch_add(1, Ordering::Relaxed);
                self.more.notify_one();
            }
        }
        known.put(ino, place(at));
    }

    /// The kernel has renamed something, which may be a directory.
    pub fn renamed(&self, from: KernelName<'_>, to: KernelName<'_>, is_exchange: bool) {
        let mut known = self.lock();
        let (from, to) = (place(from), place(to));
        let (moved, there) = (known.inodes.get(&from).copied(), known.inodes.get(&to).copied());
        for ino in moved.into_iter().chain(there) {
            known.remove(ino);
        }
        if let Some(moved) = moved {
            known.put(moved, to);
        }
        if let Some(there) = there.filter(|_| is_exchange) {
            known.put(there, from);
        }
    }

    /// The kernel has removed a directory.
    pub fn removed(&self, at: KernelName<'_>) {
        let mut known = self.lock();
        if let Some(ino) = known.inodes.get(&place(at)).copied() {
            known.remove(ino);
        }
    }

    /// The kernel has forgotten an inode, unless it was told of it again meanwhile: `is_known`.
    pub fn forgotten(&self, ino: u64, is_known: impl FnOnce() -> bool) {
        let mut known = self.lock();
        if !is_known() {
            known.remove(ino);
        }
    }

    /// Waits a short time for directories that are elsewhere to be gone from where the kernel had
    /// them.
    pub fn settle(&self) {
        if self.is_settled() {
            return;
        }
        let waited = self.less.wait_timeout_while(self.lock(), WAIT_MAX, |_| !self.is_settled());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn is_settled(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) == 0
    }

    /// The next place to be taken from the kernel; `None` when it is over.
    fn next(&self) -> Option<Place> {
        let nothing = |known: &mut KnownDirectory| known.left.is_empty() && !known.is_over;
        let known = self.more.wait_while(self.lock(), nothing);
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        if known.is_over { None } else { known.left.pop_front() }
    }

    /// It is taken.
    fn done(&self) {
        let _known = self.lock();
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        self.less.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, KnownDirectory> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place(at: KernelName<'_>) -> Place {
    (at.parent, at.name.as_bytes().into())
}

/// Takes directories that are elsewhere from the kernel, for as long as it lives.
pub struct PlaceClearing(Arc<DirectoryPlaces>);

impl PlaceClearing {
    /// Begins, on a thread of its own.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn begin(places: &Arc<DirectoryPlaces>, notifier: Notifier) -> io::Result<Self> {
        let its = Arc::clone(places);
        std::thread::Builder::new().name("places".to_owned()).spawn(move || {
            while let Some((parent, name)) = its.next() {
                // It fails where the kernel has no such entry any more.
                let _ = notifier.inval_entry(INodeNo(parent), OsStr::from_bytes(&name));
                its.done();
            }
        })?;
        Ok(Self(Arc::clone(places)))
    }
}

impl Drop for PlaceClearing {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.more.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(parent: u64, name: &str) -> KernelName<'_> {
        KernelName { parent, name: OsStr::new(name) }
    }

    fn left(places: &DirectoryPlaces) -> Vec<Place> {
        places.lock().left.drain(..).collect()
    }

    #[test]
    fn only_what_others_moved_to_another_directory_is_taken_from_the_kernel() {
        let places = DirectoryPlaces::default();
        places.found(10, at(1, "a"));
        places.found(10, at(1, "a"));
        // By another within the directory, and by this kernel to another directory.
        places.found(10, at(1, "b"));
        places.renamed(at(1, "b"), at(2, "b"), false);
        places.found(10, at(2, "b"));
        assert!(left(&places).is_empty() && places.is_settled());
        places.found(10, at(3, "c"));
        assert_eq!(left(&places), [(2, Box::from(*b"b"))]);
        assert!(!places.is_settled());
        places.done();
        places.settle();
        // Swapped with another, over which it is then renamed; and back.
        places.found(11, at(4, "d"));
        places.renamed(at(3, "c"), at(4, "d"), true);
        places.found(10, at(4, "d"));
        places.found(11, at(3, "c"));
        places.renamed(at(4, "d"), at(3, "c"), false);
        places.found(10, at(3, "c"));
        // Gone, and known no more.
        places.removed(at(3, "c"));
        places.found(12, at(3, "c"));
        places.forgotten(12, || true);
        places.forgotten(12, || false);
        places.found(12, at(5, "e"));
        assert!(left(&places).is_empty() && places.is_settled());
        assert_eq!(places.lock().places.len(), 1);
        assert_eq!(places.lock().inodes.len(), 1);
    }

    #[test]
    fn a_full_queue_drops_nothing() {
        let places = DirectoryPlaces::default();
        for ino in 0..QUEUE_MAX as u64 + 1 {
            places.found(ino, at(1, &ino.to_string()));
            places.found(ino, at(2, &ino.to_string()));
        }
        assert_eq!(left(&places).len(), QUEUE_MAX);
        places.found(QUEUE_MAX as u64, at(2, &QUEUE_MAX.to_string()));
        assert_eq!(left(&places).len(), 1);
    }
}
