//! Mappings of files of the store, and how they and the store stay the same.
//!
//! A mapping is one of the kernel's, of a file in memory that all processes of the host share ([`backing`]). The mapped range
//! is read from the store when it is mapped, whole, holes excepted: to read a page when it is first touched takes either a signal
//! handler, past which system calls of the program would fail, or a thread of our own in every program.
//!
//! Changes through shared mappings go to the store at `msync`, `munmap`, `fsync`, `exec` and the
//! end of the process. Within one process `read`, `write` and `ftruncate` and its mappings see each
//! other at once; processes of one host see each other's mappings at once; everything else meets at
//! those points.

mod backing;
mod pages;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

pub use self::backing::{BackingFile, PAGE_LEN};
use crate::table::{DescriptionUse, OpenDescription};

/// A range of addresses.
#[derive(Clone, Copy)]
pub struct AddressRange {
    pub start: usize,
    pub len: usize,
}

impl AddressRange {
    pub const fn end(self) -> usize {
        self.start.saturating_add(self.len)
    }

    fn meets(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}

#[derive(Clone)]
pub struct FileMapping {
    pub range: AddressRange,
    pub open: DescriptionUse,
    /// Offset of its start in the file, in bytes.
    pub at: u64,
    pub backing: Arc<BackingFile>,
    /// Changes of it are changes of the file.
    pub writes: bool,
}

impl FileMapping {
    /// The part of it within `range`, of which there is some.
    fn part(&self, range: AddressRange) -> Self {
        let start = self.range.start.max(range.start);
        let end = self.range.end().min(range.end());
        let mut part = self.clone();
        part.range = AddressRange { start, len: end - start };
        part.at = self.at + (start - self.range.start) as u64;
        part
    }

    /// The parts of it outside `range`.
    fn without(&self, range: AddressRange) -> impl Iterator<Item = Self> {
        let before = AddressRange { start: 0, len: range.start };
        let after = AddressRange { start: range.end(), len: usize::MAX - range.end() };
        [before, after]
            .into_iter()
            .filter(|rest| rest.meets(self.range))
            .map(|rest| self.part(rest))
    }

    pub fn load(&self) -> Result<(), Errno> {
        let loaded = self.backing.load(self.open.file()?, self.at, self.range.len as u64);
        // It is memory of this host that is short, not the store.
        loaded.map_err(|failed| if failed == Errno::NOSPC { Errno::NOMEM } else { failed })
    }

    fn write_back(&self) -> Result<(), Errno> {
        if !self.writes {
            return Ok(());
        }
        if self.backing.write_back(self.open.file()?, self.at, self.range.len as u64)? {
            self.open.mark_dirty();
        }
        self.open.settle()
    }
}

static MAPPINGS: Mutex<Vec<FileMapping>> = Mutex::new(Vec::new());
/// How many there are: a call that concerns none pays one load.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether nothing is mapped.
#[inline]
pub fn is_none() -> bool {
    COUNT.load(Ordering::Relaxed) == 0
}

/// Works on the list. Nothing in `work` may wait for the store.
fn with_list<T>(work: impl FnOnce(&mut Vec<FileMapping>) -> T) -> T {
    let mut list = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let outcome = work(&mut list);
    COUNT.store(list.len(), Ordering::Relaxed);
    outcome
}

/// The parts of mappings within `range`.
pub fn parts(range: AddressRange) -> Vec<FileMapping> {
    let parts = |list: &mut Vec<FileMapping>| {
        list.iter()
            .filter(|found| found.range.meets(range))
            .map(|found| found.part(range))
            .collect()
    };
    if is_none() { Vec::new() } else { with_list(parts) }
}

pub fn add(mapping: FileMapping) {
    with_list(|list| list.push(mapping));
}

/// The kernel file for an inode, shared with the mappings that there are of it, with room for `len` bytes at `at`.
pub fn backing(ino: u64, at: u64, len: u64) -> Result<Arc<BackingFile>, Errno> {
    let known = with_list(|list| {
        list.iter().find(|found| found.backing.ino == ino).map(|found| Arc::clone(&found.backing))
    });
    match known {
        Some(known) => known.reserve(at, len).map(|()| known),
        None => BackingFile::open(ino, at, len).map(Arc::new),
    }
}

/// Writes what was written to the mappings within `range`.
pub fn write_back(range: AddressRange) -> Result<(), Errno> {
    let mut outcome = Ok(());
    for part in parts(range) {
        // A failure at one does not keep the others from being written.
        outcome = outcome.and(part.write_back());
    }
    outcome
}

/// Writes every shared mapping back.
pub fn write_back_all() -> Result<(), Errno> {
    write_back(AddressRange { start: 0, len: usize::MAX })
}

/// The addresses of `range` mean something else from now on.
pub fn forget(range: AddressRange) {
    let gone = with_list(|list| {
        let (hit, rest): (Vec<_>, Vec<_>) =
            std::mem::take(list).into_iter().partition(|found| found.range.meets(range));
        *list = rest;
        list.extend(hit.iter().flat_map(|found| found.without(range)));
        hit
    });
    // Outside the lock: the last of a file removes its name, and may close the file.
    drop(gone);
}

fn of_file(open: &OpenDescription) -> Vec<FileMapping> {
    let Ok(ino) = open.file().map(samite_fs::OpenFile::ino) else { return Vec::new() };
    with_list(|list| list.iter().filter(|found| found.backing.ino == ino).cloned().collect())
}

/// Before the program reads `len` bytes at `at` of a file: its changes through mappings are there.
pub fn before_read(open: &OpenDescription, at: u64, len: usize) -> Result<(), Errno> {
    for found in of_file(open).iter().filter(|found| found.writes) {
        let (from, until) = (
            at.max(found.at),
            at.saturating_add(len as u64).min(found.at + found.range.len as u64),
        );
        if from < until && found.backing.write_back(found.open.file()?, from, until - from)? {
            found.open.mark_dirty();
        }
    }
    Ok(())
}

/// After the program wrote to a file: its mappings show it.
pub fn after_write(open: &OpenDescription, bytes: &[u8], at: u64) -> Result<(), Errno> {
    of_file(open).first().map_or(Ok(()), |found| found.backing.wrote(bytes, at))
}

/// After the program changed the length of a file.
pub fn after_cut(open: &OpenDescription, len: u64) -> Result<(), Errno> {
    of_file(open).first().map_or(Ok(()), |found| found.backing.cut(len))
}

/// After the program changed a file in another way: mapped pages of it are read again.
pub fn refresh(open: &OpenDescription) -> Result<(), Errno> {
    of_file(open).iter().try_for_each(FileMapping::load)
}

/// At the end of the process, after [`write_back_all`]: removes the names of files that nobody else has mapped.
pub fn leave_all() {
    if !is_none() {
        with_list(|list| list.iter().for_each(|found| found.backing.leave()));
    }
}

/// Before a fork, with no call in progress.
pub fn before_fork() {
    if !is_none() {
        each_backing(BackingFile::before_fork);
    }
}

pub fn after_fork(is_child: bool) {
    if !is_none() {
        each_backing(|backing| backing.after_fork(is_child));
    }
}

fn each_backing(visit: impl Fn(&BackingFile)) {
    with_list(|list| {
        for (index, found) in list.iter().enumerate() {
            if !list[..index].iter().any(|other| Arc::ptr_eq(&other.backing, &found.backing)) {
                visit(&found.backing);
            }
        }
    });
}
