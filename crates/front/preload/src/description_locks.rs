//! The locks of open file descriptions (`flock`, `F_OFD_SETLK`): they end with the description's last
//! descriptor in any process ([`keep_alive`]). Those of the process itself are in
//! [`locks`](crate::locks).

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use rustix::io::Errno;
use samite_fs::{FileLocks, LockMode, LockPlace, LockRange, LockSpace, WantedLock};

use crate::session::DescriptionSlot;
use crate::{descriptor_range, keep_alive, store};

/// Each owner has a client of its own, so it needs one token.
const TOKEN: u64 = 1;

/// Most keep-alive sockets that are made in advance: each takes a descriptor. A description beyond
/// it whose first lock is taken by another process than the one that made it loses its locks with
/// that process.
const KEEP_ALIVES_MAX: usize = 128;
/// How many keep-alive sockets this process has.
static KEEP_ALIVES: AtomicUsize = AtomicUsize::new(0);

/// Whether any connection for the locks of a description was ever made here.
static USED: AtomicBool = AtomicBool::new(false);

/// Where the locks of an owner on a file are.
pub const fn lock_place(ino: u64, space: LockSpace) -> LockPlace {
    LockPlace { ino, space, token: TOKEN }
}

/// The locks of an open file description, as this process reaches them.
pub struct DescriptionLocks {
    /// From [`Box::into_raw`]; null until needed.
    locks: AtomicPtr<FileLocks>,
    /// -1: none.
    keep_alive: AtomicI32,
    /// Connections that this process put into it.
    kept: AtomicUsize,
}

impl DescriptionLocks {
    pub const fn new() -> Self {
        let locks = AtomicPtr::new(null_mut());
        Self { locks, keep_alive: AtomicI32::new(-1), kept: AtomicUsize::new(0) }
    }

    /// Whether any description of this process ever had locks.
    pub fn are_used() -> bool {
        USED.load(Ordering::Relaxed)
    }

    /// The connections that only these locks use.
    pub fn descriptors(&self) -> impl Iterator<Item = c_int> {
        self.get().map(FileLocks::descriptors).into_iter().flatten()
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
        let line = self.keep_alive.load(Ordering::Acquire);
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
        if self.keep_alive.load(Ordering::Acquire) < 0 {
            if self.get().is_none() && KEEP_ALIVES.load(Ordering::Relaxed) >= KEEP_ALIVES_MAX {
                return;
            }
            let Ok(line) = keep_alive::create() else { return };
            // Without it the file is lost to a process that touches it for the first time after
            // this process has ended.
            let _ = keep_alive::fill(line, holder.as_slice());
            self.keep_alive.store(line, Ordering::Release);
            KEEP_ALIVES.fetch_add(1, Ordering::Relaxed);
        }
        // Out of descriptors: then its locks end with this process.
        let _ = self.keep_alive(slot);
    }

    /// Whether the next program gets the keep-alive socket; its number, -1 for none.
    pub fn set_survives(&self, survives: bool) -> c_int {
        let line = self.keep_alive.load(Ordering::Acquire);
        if line >= 0 {
            keep_alive::set_survives(line, survives);
        }
        line
    }

    /// Takes over the keep-alive socket of the program before `exec`.
    pub fn inherit(&self, line: c_int) {
        if self.keep_alive.load(Ordering::Acquire) < 0
            && let Some(line) = keep_alive::adopt(line)
        {
            self.keep_alive.store(line, Ordering::Release);
            KEEP_ALIVES.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Its number, -1 for none.
    pub fn keep_alive_socket(&self) -> c_int {
        self.keep_alive.load(Ordering::Acquire)
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
        let line = self.keep_alive.swap(-1, Ordering::AcqRel);
        if line >= 0 {
            descriptor_range::release(line);
            KEEP_ALIVES.fetch_sub(1, Ordering::Relaxed);
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
