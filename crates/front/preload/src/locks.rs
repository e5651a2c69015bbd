//! The locks of the process itself (`fcntl`, `lockf`). Its open file descriptions are owners of
//! locks, too: [`description_locks`](crate::description_locks).
//!
//! The locks of a process are not inherited by its children, go on over `exec`, and end for a file
//! when the process closes any descriptor of it.

use std::ffi::c_int;
use std::fmt::Write;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use samite_fs::{FileLocks, LockRange, LockSpace};

use crate::description_locks::{DescriptionLocks, lock_place};
use crate::table::{self, OpenDescription};
use crate::{descriptor_range, keep_alive, store};

/// Most files whose numbers an `exec` hands on; with more of them every close looks for locks.
const FILES_MAX: usize = 256;

/// The process's own locks; made when first needed, never freed.
static PROCESS: AtomicPtr<FileLocks> = AtomicPtr::new(null_mut());
/// Its identity, when it was another program before an `exec`.
static PROCESS_ID: AtomicU64 = AtomicU64::new(0);
/// Keeps those of the program before `exec` alive; -1: none.
static PROCESS_KEEP_ALIVE: AtomicI32 = AtomicI32::new(-1);
/// Whether this process has put its connections into it.
static PROCESS_FILLED: AtomicBool = AtomicBool::new(false);
/// Files on which this process has, or had, locks since it last closed them.
static FILES: Mutex<Vec<u64>> = Mutex::new(Vec::new());
/// How many those are: a close looks no further than this if there are none.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// There are more than [`FILES`] knows.
static UNKNOWN: AtomicBool = AtomicBool::new(false);

/// The locks of this process.
pub fn of_process() -> Result<&'static FileLocks, Errno> {
    let known = PROCESS.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: it came from Box::into_raw and is never freed.
        return Ok(unsafe { &*known });
    }
    let locks = store::call(|fs| {
        Ok(match PROCESS_ID.load(Ordering::Relaxed) {
            0 => fs.locks(),
            id => fs.locks_of(id),
        })
    })?;
    PROCESS_ID.store(locks.id(), Ordering::Relaxed);
    let fresh = Box::into_raw(Box::new(locks));
    let raced = PROCESS.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: as above. A second one made at the same time is left unused.
    Ok(unsafe { &*raced.err().unwrap_or(fresh) })
}

fn files() -> std::sync::MutexGuard<'static, Vec<u64>> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process is about to lock this file.
pub fn process_locks(ino: u64) {
    let mut files = files();
    if !files.contains(&ino) {
        files.push(ino);
        COUNT.store(files.len(), Ordering::Relaxed);
    }
}

/// The process closes a descriptor of this file: its locks on it are free.
#[inline]
pub fn process_closes(description: &OpenDescription) {
    if COUNT.load(Ordering::Relaxed) > 0 || UNKNOWN.load(Ordering::Relaxed) {
        release_of_process(description);
    }
}

#[cold]
fn release_of_process(description: &OpenDescription) {
    let Ok(file) = description.file() else { return };
    let ino = file.ino();
    let known = {
        let mut files = files();
        let place = files.iter().position(|other| *other == ino);
        if let Some(place) = place {
            files.swap_remove(place);
            COUNT.store(files.len(), Ordering::Relaxed);
        }
        place.is_some()
    };
    if known || UNKNOWN.load(Ordering::Relaxed) {
        release_file(ino);
    }
}

fn release_file(ino: u64) {
    if let Ok(locks) = of_process() {
        // A node that cannot be reached has lost its locks, or frees them when the connection ends.
        let _ = locks.unlock(lock_place(ino, LockSpace::Ranges), LockRange::WHOLE);
    }
}

/// At the end of the process: a process that waits for its end finds its locks free.
pub fn process_ends() {
    if COUNT.load(Ordering::Relaxed) > 0 {
        for ino in std::mem::take(&mut *files()) {
            release_file(ino);
        }
        COUNT.store(0, Ordering::Relaxed);
    }
}

/// Before `exec`: the state of this process's locks that the next program needs,
/// `id.keep_alive.ino…`. `None`: there are none.
pub fn hand_on() -> Option<String> {
    if COUNT.load(Ordering::Relaxed) == 0 && !UNKNOWN.load(Ordering::Relaxed) {
        return None;
    }
    let line = match PROCESS_KEEP_ALIVE.load(Ordering::Relaxed) {
        -1 => keep_alive::create().ok()?,
        line => line,
    };
    PROCESS_KEEP_ALIVE.store(line, Ordering::Relaxed);
    keep_alive::set_survives(line, true);
    // SAFETY: as in `of_process`.
    if let Some(locks) = unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
        && !PROCESS_FILLED.swap(true, Ordering::Relaxed)
    {
        keep_alive::fill(line, &locks.descriptors()).ok()?;
    }
    let mut text = format!("{}.{line}", PROCESS_ID.load(Ordering::Relaxed));
    let files = files();
    for ino in files.iter().take(FILES_MAX) {
        // Writing to a String does not fail.
        let _ = write!(text, ".{ino}");
    }
    if files.len() > FILES_MAX || UNKNOWN.load(Ordering::Relaxed) {
        text.push_str(".*");
    }
    Some(text)
}

/// After an `exec` that failed, and for children that do not have this process's locks.
pub fn take_back() {
    let line = PROCESS_KEEP_ALIVE.load(Ordering::Relaxed);
    if line >= 0 {
        keep_alive::set_survives(line, false);
    }
}

/// The state that [`hand_on`] gave in the program before.
pub fn inherit(text: &[u8]) {
    let mut parts = text.split(|byte| *byte == b'.');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
    let (Some(id), Some(line)) = (number(), number()) else { return };
    let Some(line) = c_int::try_from(line).ok().and_then(keep_alive::adopt) else { return };
    keep_alive::set_survives(line, false);
    PROCESS_ID.store(id, Ordering::Relaxed);
    PROCESS_KEEP_ALIVE.store(line, Ordering::Relaxed);
    let mut files = files();
    for part in parts {
        match std::str::from_utf8(part).ok().and_then(|ino| ino.parse().ok()) {
            Some(ino) => files.push(ino),
            None => UNKNOWN.store(true, Ordering::Relaxed),
        }
    }
    COUNT.store(files.len(), Ordering::Relaxed);
}

/// In the child of a fork: its parent's locks are not its own. Neither allocates nor frees.
pub fn after_fork_child() {
    let inherited = PROCESS.swap(null_mut(), Ordering::AcqRel);
    // SAFETY: as in `of_process`.
    if let Some(locks) = unsafe { inherited.as_ref() } {
        locks.abandon();
    }
    let line = PROCESS_KEEP_ALIVE.swap(-1, Ordering::Relaxed);
    if line >= 0 {
        descriptor_range::release(line);
    }
    PROCESS_FILLED.store(false, Ordering::Relaxed);
    PROCESS_ID.store(0, Ordering::Relaxed);
    UNKNOWN.store(false, Ordering::Relaxed);
    COUNT.store(0, Ordering::Relaxed);
    if let Ok(mut files) = FILES.try_lock() {
        files.clear();
    }
}

/// Connections of this process that only locks use, its descriptions' locks included.
pub fn descriptors() -> Vec<c_int> {
    // SAFETY: as in `of_process`.
    let process = unsafe { PROCESS.load(Ordering::Acquire).as_ref() };
    let mut all = process.map(FileLocks::descriptors).unwrap_or_default();
    if DescriptionLocks::are_used() {
        for (_, open) in table::each_from(0) {
            all.extend(open.locks.descriptors());
        }
    }
    all
}
