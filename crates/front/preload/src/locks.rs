//! The owners of locks in this process: the process itself (`fcntl`, `lockf`), and open file
//! descriptions (`flock`, `F_OFD_SETLK`).
//!
//! The locks of a process are not inherited by its children, go on over `exec`, and end for a file
//! when the process closes any descriptor of it. The locks of a description end with its last
//! descriptor in any process ([`keep_alive`]).

use std::ffi::c_int;
use std::fmt::Write;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use samite_fs::{FileLocks, LockMode, LockPlace, LockRange, LockSpace, WantedLock};

use crate::session::DescriptionSlot;
use crate::table::OpenDescription;
use crate::{keep_alive, own_descriptors, store};

/// Each owner has a client of its own, so it needs one token.
const TOKEN: u64 = 1;
/// Most files whose numbers an `exec` hands on; with more of them every close looks for locks.
const FILES_MAX: usize = 256;

/// Most keep-alive sockets that are made in advance: each takes a descriptor. A description beyond
/// it whose first lock is taken by another process than the one that made it loses its locks with
/// that process.
const LIFELINES_MAX: usize = 128;
/// How many keep-alive sockets this process has.
static LIFELINES: AtomicUsize = AtomicUsize::new(0);

/// Where the locks of an owner on a file are.
pub const fn lock_place(ino: u64, space: LockSpace) -> LockPlace {
    LockPlace { ino, space, token: TOKEN }
}

/// The process's own locks; made when first needed, never freed.
static PROCESS: AtomicPtr<FileLocks> = AtomicPtr::new(null_mut());
/// Its identity, when it was another program before an `exec`.
static PROCESS_ID: AtomicU64 = AtomicU64::new(0);
/// Keeps those of the program before `exec` alive; -1: none.
static PROCESS_LIFELINE: AtomicI32 = AtomicI32::new(-1);
/// Whether this process has put its connections into it.
static PROCESS_FILLED: AtomicBool = AtomicBool::new(false);
/// Files on which this process has, or had, locks since it last closed them.
static FILES: Mutex<Vec<u64>> = Mutex::new(Vec::new());
/// How many those are: a close looks no further than this if there are none.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// There are more than [`FILES`] knows.
static UNKNOWN: AtomicBool = AtomicBool::new(false);
/// Whether any connection for locks was ever made here.
static USED: AtomicBool = AtomicBool::new(false);

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
    USED.store(true, Ordering::Relaxed);
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
/// `id.lifeline.ino…`. `None`: there are none.
pub fn hand_on() -> Option<String> {
    if COUNT.load(Ordering::Relaxed) == 0 && !UNKNOWN.load(Ordering::Relaxed) {
        return None;
    }
    let line = match PROCESS_LIFELINE.load(Ordering::Relaxed) {
        -1 => keep_alive::create().ok()?,
        line => line,
    };
    PROCESS_LIFELINE.store(line, Ordering::Relaxed);
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
    let line = PROCESS_LIFELINE.load(Ordering::Relaxed);
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
    PROCESS_LIFELINE.store(line, Ordering::Relaxed);
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
    let line = PROCESS_LIFELINE.swap(-1, Ordering::Relaxed);
    if line >= 0 {
        own_descriptors::release(line);
    }
    PROCESS_FILLED.store(false, Ordering::Relaxed);
    PROCESS_ID.store(0, Ordering::Relaxed);
    UNKNOWN.store(false, Ordering::Relaxed);
    COUNT.store(0, Ordering::Relaxed);
    if let Ok(mut files) = FILES.try_lock() {
        files.clear();
    }
}

/// Connections of this process that only locks use.
pub fn descriptors() -> Vec<c_int> {
    if !USED.load(Ordering::Relaxed) {
        return Vec::new();
    }
    // SAFETY: as in `of_process`.
    let process = unsafe { PROCESS.load(Ordering::Acquire).as_ref() };
    let mut all = process.map(FileLocks::descriptors).unwrap_or_default();
    for (_, open) in crate::table::each_from(0) {
        if let Some(locks) = open.locks.get() {
            all.extend(locks.descriptors());
        }
    }
    all
}

/// The locks of an open file description, as this process reaches them.
pub struct DescriptionLocks {
    /// From [`Box::into_raw`]; null until needed.
    locks: AtomicPtr<FileLocks>,
    /// -1: none.
    lifeline: AtomicI32,
    /// Connections that this process put into it.
    kept: AtomicUsize,
}

impl DescriptionLocks {
    pub const fn new() -> Self {
        let locks = AtomicPtr::new(null_mut());
        Self { locks, lifeline: AtomicI32::new(-1), kept: AtomicUsize::new(0) }
    }

    fn get(&self) -> Option<&FileLocks> {
        // SAFETY: the value lives until `end`, after the last use of the description.
        unsafe { self.locks.load(Ordering::Acquire).as_ref() }
    }

    /// The locks of the description that `slot` is the shared part of.
    pub fn get_or_make(&self, slot: &DescriptionSlot) -> Result<&FileLocks, Errno> {
        if let Some(locks) = self.get() {
            return Ok(locks);
        }
        let locks = store::call(|fs| {
            Ok(match slot.lock_client.load(Ordering::Acquire) {
                0 => fs.locks(),
                id => fs.locks_of(id),
            })
        })?;
        let named =
            slot.lock_client.compare_exchange(0, locks.id(), Ordering::AcqRel, Ordering::Acquire);
        // Another process that has the description may have been faster.
        let locks = match named {
            Err(id) if id != locks.id() => store::call(|fs| Ok(fs.locks_of(id)))?,
            _ => locks,
        };
        let fresh = Box::into_raw(Box::new(locks));
        let raced =
            self.locks.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
        USED.store(true, Ordering::Relaxed);
        if let Err(other) = raced {
            // SAFETY: nobody else has seen `fresh`; the other one lives until `end`.
            unsafe {
                drop(Box::from_raw(fresh));
                return Ok(&*other);
            }
        }
        // SAFETY: as in `get`.
        Ok(unsafe { &*fresh })
    }

    /// For a description that came over a socket: from here on this process, too, keeps its locks alive.
    pub fn join(&self, slot: &DescriptionSlot, ino: u64) -> Result<(), Errno> {
        if slot.lock_client.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let (range, mode) = (LockRange::WHOLE, LockMode::Shared);
        let any = WantedLock { range, mode, pid: 0, detects_deadlock: false };
        // A question is enough for the node to count the connection.
        let asked = self.get_or_make(slot)?.test(lock_place(ino, LockSpace::Whole), any);
        asked.map(drop).map_err(|error| error.kind().errno())
    }

    /// After a lock was asked for: the connection lives as long as the description.
    pub fn keep_alive(&self, slot: &DescriptionSlot) -> Result<(), Errno> {
        let line = self.lifeline.load(Ordering::Acquire);
        let Some(locks) = self.get() else { return Ok(()) };
        let connections = locks.descriptors();
        if line < 0 || connections.is_empty() {
            return Ok(());
        }
        // Locks on what is mirrored have connections to several nodes, and get others as nodes come and go.
        let are_more = connections.len() > self.kept.load(Ordering::Acquire).max(1);
        let number = keep_alive::number(line)?;
        if slot.lock_line.swap(number, Ordering::AcqRel) != number || are_more {
            keep_alive::fill(line, &connections)?;
        }
        self.kept.fetch_max(connections.len(), Ordering::AcqRel);
        Ok(())
    }

    /// Before the description gets into another process. While `holder` is alive, so is the file,
    /// with or without a name.
    pub fn share(&self, slot: &DescriptionSlot, holder: Option<c_int>) {
        if self.lifeline.load(Ordering::Acquire) < 0 {
            if self.get().is_none() && LIFELINES.load(Ordering::Relaxed) >= LIFELINES_MAX {
                return;
            }
            let Ok(line) = keep_alive::create() else { return };
            // Without it the file is lost to a process that touches it for the first time after
            // this process has ended.
            let _ = keep_alive::fill(line, holder.as_slice());
            self.lifeline.store(line, Ordering::Release);
            LIFELINES.fetch_add(1, Ordering::Relaxed);
        }
        // Out of descriptors: then its locks end with this process.
        let _ = self.keep_alive(slot);
    }

    /// Whether the next program gets the keep-alive socket; its number, -1 for none.
    pub fn set_survives(&self, survives: bool) -> c_int {
        let line = self.lifeline.load(Ordering::Acquire);
        if line >= 0 {
            keep_alive::set_survives(line, survives);
        }
        line
    }

    /// Takes over the keep-alive socket of the program before `exec`.
    pub fn inherit(&self, line: c_int) {
        if self.lifeline.load(Ordering::Acquire) < 0
            && let Some(line) = keep_alive::adopt(line)
        {
            self.lifeline.store(line, Ordering::Release);
            LIFELINES.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Its number, -1 for none.
    pub fn keep_alive_socket(&self) -> c_int {
        self.lifeline.load(Ordering::Acquire)
    }

    /// The last process with the description closes it: its locks are free before the closing call
    /// returns.
    pub fn release(&self, slot: &DescriptionSlot, ino: u64) {
        if let Ok(locks) = self.get_or_make(slot) {
            for space in [LockSpace::Ranges, LockSpace::Whole] {
                // The connection's end frees them too, a little later.
                let _ = locks.unlock(lock_place(ino, space), LockRange::WHOLE);
            }
        }
    }

    /// This process does not have the description any more.
    pub fn end(&self) {
        let locks = self.locks.swap(null_mut(), Ordering::AcqRel);
        if !locks.is_null() {
            // SAFETY: it came from Box::into_raw, and this was the last use of the description.
            drop(unsafe { Box::from_raw(locks) });
        }
        let line = self.lifeline.swap(-1, Ordering::AcqRel);
        if line >= 0 {
            own_descriptors::release(line);
            LIFELINES.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// In the child of a fork: the connection is the parent's; the keep-alive socket is both's.
    /// Neither allocates nor frees.
    pub fn after_fork_child(&self) {
        let inherited = self.locks.swap(null_mut(), Ordering::AcqRel);
        // SAFETY: it came from Box::into_raw and is leaked from here on.
        if let Some(locks) = unsafe { inherited.as_ref() } {
            locks.abandon();
        }
    }
}
