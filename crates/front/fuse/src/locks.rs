//! File locks: the store keeps them, so that they are valid on every node and over every access
//! path.
//!
//! The kernel keeps no list of them. The locks that end with a close are noted here: the locks of a
//! process when it closes any descriptor of the file, those of an open file description when that
//! goes. All of them end with the daemon.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::{Errno, Request};
use samite_fs::{
    FileLocks, FileSystem, LOCK_LAST, LockFound, LockMode, LockPlace, LockRange, LockSpace,
    WantedLock,
};

use crate::kernel::{Answer, errno};

const F_RDLCK: i32 = 0;
const F_WRLCK: i32 = 1;
const F_UNLCK: i32 = 2;

/// Most callers that wait for a lock at a time.
const WAITERS_MAX: usize = 512;
/// How often a waiter looks whether its caller has a signal to handle.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// A lock as the kernel asks for it.
#[derive(Clone, Copy, Debug)]
pub struct LockAsk {
    /// Inode number.
    pub ino: u64,
    /// Open file through which it comes.
    pub handle: u64,
    /// The owner: a process or an open file description, by a number of the kernel's.
    pub owner: u64,
    /// Which kind.
    pub space: LockSpace,
    /// First and last byte.
    pub range: (u64, u64),
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// Process that asks.
    pub pid: u32,
}

/// A lock that is held, as the kernel is told of it: first byte, last byte, kind and process.
pub type Shown = (u64, u64, i32, u32);

struct MountLock {
    space: LockSpace,
    owner: u64,
    handle: u64,
}

/// The locks of one mount.
pub struct MountLocks {
    locks: FileLocks,
    /// Inode number → the owners that may hold locks on it.
    held: Mutex<HashMap<u64, Vec<MountLock>>>,
    /// Inodes in `held`: closing a file without locks looks at this only.
    inodes: AtomicUsize,
    waiters: AtomicUsize,
}

impl MountLocks {
    pub fn new(fs: &FileSystem) -> Self {
        Self {
            locks: fs.locks(),
            held: Mutex::default(),
            inodes: AtomicUsize::new(0),
            waiters: AtomicUsize::new(0),
        }
    }

    /// Takes or releases a lock if nobody is in the way; says whether.
    pub fn try_set(&self, ask: &LockAsk) -> Answer<bool> {
        let place = ask.place();
        if ask.kind == F_UNLCK {
            self.locks.unlock(place, ask.bytes()).map_err(|error| errno(&error))?;
            return Ok(true);
        }
        let wanted = ask.wanted()?;
        self.note(ask);
        let found = self.locks.try_lock(place, wanted).map_err(|error| errno(&error))?;
        Ok(found.is_none())
    }

    /// Registers a caller that is going to wait. `None`: too many do.
    pub fn waiter(&self) -> Option<LockQueuePlace<'_>> {
        let before = self.waiters.fetch_add(1, Ordering::AcqRel);
        let waiter = LockQueuePlace(self);
        (before < WAITERS_MAX).then_some(waiter)
    }

    /// The lock that is in the way of another.
    pub fn test(&self, ask: &LockAsk) -> Answer<Option<Shown>> {
        let found = self.locks.test(ask.place(), ask.wanted()?).map_err(|error| errno(&error))?;
        Ok(found.map(|found| self.show(&found)))
    }

    fn show(&self, found: &LockFound) -> Shown {
        let kind = if found.mode == LockMode::Shared { F_RDLCK } else { F_WRLCK };
        let pid = self.locks.process_of(found).unwrap_or(0);
        (found.range.start, found.range.last, kind, pid)
    }

    /// A process has closed a descriptor of the file: its range locks there end.
    pub fn on_flush(&self, ino: u64, owner: u64) -> Answer<()> {
        self.end(ino, |held| held.space == LockSpace::Ranges && held.owner == owner)
    }

    /// An open file description is gone, and with it its locks.
    pub fn on_release(&self, ino: u64, handle: u64) -> Answer<()> {
        self.end(ino, |held| held.handle == handle)
    }

    fn end(&self, ino: u64, ends: impl Fn(&MountLock) -> bool) -> Answer<()> {
        if self.inodes.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut ended: Vec<(LockSpace, u64)> = Vec::new();
        let mut all = self.lock();
        if let Some(held) = all.get_mut(&ino) {
            ended.extend(held.iter().filter(|one| ends(one)).map(|one| (one.space, one.owner)));
            // Through whichever description: an owner's locks on a file end together.
            held.retain(|one| !ended.contains(&(one.space, one.owner)));
            if held.is_empty() {
                all.remove(&ino);
            }
        }
        self.inodes.store(all.len(), Ordering::Release);
        drop(all);
        ended.sort_unstable();
        ended.dedup();
        ended.into_iter().try_for_each(|(space, token)| {
            let place = LockPlace { ino, space, token };
            self.locks.unlock(place, LockRange::WHOLE).map_err(|error| errno(&error))
        })
    }

    /// Before a lock is asked for, so that a close can only release too much, never too little.
    fn note(&self, ask: &LockAsk) {
        let mut all = self.lock();
        let held = all.entry(ask.ino).or_default();
        let is_known = |one: &MountLock| {
            (one.space, one.owner, one.handle) == (ask.space, ask.owner, ask.handle)
        };
        if !held.iter().any(is_known) {
            held.push(MountLock { space: ask.space, owner: ask.owner, handle: ask.handle });
        }
        self.inodes.store(all.len(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Vec<MountLock>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among the waiting requests.
pub struct LockQueuePlace<'l>(&'l MountLocks);

impl LockQueuePlace<'_> {
    /// Waits for the lock, or until the calling thread has a signal to handle.
    pub fn wait(&self, ask: &LockAsk, thread: u32) -> Answer<()> {
        let wanted = ask.wanted()?;
        let signals = WaiterSignals::of(thread);
        self.0
            .locks
            .lock(ask.place(), wanted, &|| signals.are_pending())
            .map_err(|error| errno(&error))
    }
}

impl Drop for LockQueuePlace<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::AcqRel);
    }
}

impl LockAsk {
    const fn place(&self) -> LockPlace {
        LockPlace { ino: self.ino, space: self.space, token: self.owner }
    }

    fn bytes(&self) -> LockRange {
        match self.space {
            LockSpace::Whole => LockRange::WHOLE,
            LockSpace::Ranges => {
                LockRange { start: self.range.0, last: self.range.1.min(LOCK_LAST) }
            }
        }
    }

    fn wanted(&self) -> Answer<WantedLock> {
        let mode = match self.kind {
            F_RDLCK => LockMode::Shared,
            F_WRLCK => LockMode::Exclusive,
            _ => return Err(Errno::EINVAL),
        };
        let range = self.bytes();
        if !range.is_valid() {
            return Err(Errno::EINVAL);
        }
        let detects_deadlock = self.space == LockSpace::Ranges;
        Ok(WantedLock { range, mode, pid: self.pid, detects_deadlock })
    }
}

/// The kernel's number for "no lock".
pub const UNLOCKED: Shown = (0, 0, F_UNLCK, 0);

/// Which kind of lock a request is about.
///
/// The kernel says in the request's flags whether it comes from `flock`, and fuser does not pass that on. A [`Request`] is the head of the
/// request in the buffer that it was read to, so the flags stand behind it.
pub fn space_of(request: &Request) -> LockSpace {
    const HEAD_LEN: usize = 40;
    const BODY_LEN: u32 = 48;
    const FLAGS_AT: usize = HEAD_LEN + 40;
    const SETLK: u32 = 32;
    const SETLKW: u32 = 33;
    const FLOCK: u32 = 1;
    const { assert!(size_of::<Request>() == HEAD_LEN) };
    let head = std::ptr::from_ref(request).cast::<u32>();
    // SAFETY: length and opcode are the first two words of the head that `request` refers to.
    let (len, opcode) = unsafe { (head.read(), head.wrapping_add(1).read()) };
    if !matches!(opcode, SETLK | SETLKW) || len < HEAD_LEN as u32 + BODY_LEN {
        return LockSpace::Ranges;
    }
    // SAFETY: fuser makes the reference from the start of the buffer that holds the whole request, checked against `len`, and the
    // buffer lives until the request is dispatched; the flags lie within `len`.
    let flags = unsafe { head.wrapping_byte_add(FLAGS_AT).read_unaligned() };
    if flags & FLOCK != 0 { LockSpace::Whole } else { LockSpace::Ranges }
}

/// Signals of a thread that waits for an answer. The kernel tells of an interruption only a daemon
/// that takes such messages, which fuser does not, so it is asked.
struct WaiterSignals {
    path: Option<String>,
    looked: Mutex<Instant>,
}

impl WaiterSignals {
    fn of(thread: u32) -> Self {
        let path = format!("/proc/{thread}/status");
        let is_seen = thread != 0 && std::fs::exists(&path).unwrap_or(false);
        Self { path: is_seen.then_some(path), looked: Mutex::new(Instant::now()) }
    }

    fn are_pending(&self) -> bool {
        let Some(path) = &self.path else { return false };
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.elapsed() < SIGNAL_INTERVAL {
            return false;
        }
        *looked = Instant::now();
        // No such thread any more: nobody waits for the answer.
        std::fs::read_to_string(path).map_or(true, |status| pending(&status) != 0)
    }
}

/// Signals that a thread with this `/proc/…/status` is to handle.
fn pending(status: &str) -> u64 {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| u64::from_str_radix(value.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") & !mask("SigIgn:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_and_ignored_signals_interrupt_nobody() {
        let status = |pending: &str, shared: &str, blocked: &str, ignored: &str| {
            format!(
                "Name:\tx\nSigPnd:\t{pending}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\n"
            )
        };
        assert_eq!(pending(&status("0", "4000", "0", "0")), 0x4000);
        assert_eq!(pending(&status("200", "0", "0", "0")), 0x200);
        assert_eq!(pending(&status("200", "4000", "200", "4000")), 0);
        assert_eq!(pending(""), 0);
    }
}
