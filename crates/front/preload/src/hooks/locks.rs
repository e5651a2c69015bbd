//! File locks: `fcntl`, `lockf`, `flock`.

use std::ffi::c_int;

use libc::{flock as Flock, off_t};
use rustix::io::Errno;
use samite_client::WaitEnd;
use samite_client::locks::LockWait;
use samite_fs::{FileLocks, LOCK_LAST, LockFound, LockMode, LockRange, LockSpace, WantedLock};

use crate::description_locks::lock_place;
use crate::hook::{attempt, hooks};
use crate::real::set_errno;
use crate::signals::BlockedSignals;
use crate::store::errno;
use crate::table::{self, DescriptionUse};
use crate::{foreign, locks, session};

/// The request of a call.
#[derive(Clone, Copy)]
struct LockCallRequest {
    /// `None`: let go.
    mode: Option<LockMode>,
    range: LockRange,
    space: LockSpace,
    /// The owner of the lock: the process, or else the open file description.
    is_process: bool,
    waits: bool,
}

impl LockCallRequest {
    fn locks(self, open: &DescriptionUse) -> Result<&FileLocks, Errno> {
        if self.is_process { locks::of_process() } else { open.locks.get_or_make(open.slot()) }
    }

    fn wanted(self, mode: LockMode) -> WantedLock {
        let pid = if self.is_process { session::pid() } else { 0 };
        WantedLock { range: self.range, mode, pid, detects_deadlock: self.is_process }
    }
}

/// Takes or frees a lock. Only the wait itself is no call in progress: another thread may fork meanwhile, and a signal handler
/// may use the store.
fn apply(open: &DescriptionUse, asked: LockCallRequest) -> Result<c_int, Errno> {
    match asked.mode {
        None => attempt(|| {
            let place = lock_place(open.file()?.ino(), asked.space);
            asked.locks(open)?.unlock(place, asked.range).map_err(|error| errno(&error))?;
            Ok(0)
        }),
        Some(mode) if asked.waits => {
            let mut signals = BlockedSignals::new();
            if take(open, asked, mode)? { Ok(0) } else { wait(open, asked, mode, &mut signals) }
        }
        Some(mode) if take(open, asked, mode)? => Ok(0),
        Some(_) => Err(Errno::AGAIN),
    }
}

/// Takes a lock if nobody is in the way.
fn take(open: &DescriptionUse, asked: LockCallRequest, mode: LockMode) -> Result<bool, Errno> {
    attempt(|| {
        let ino = open.file()?.ino();
        if asked.is_process {
            locks::process_locks(ino);
        }
        let locks = asked.locks(open)?;
        let found = locks.try_lock(lock_place(ino, asked.space), asked.wanted(mode));
        if !asked.is_process {
            open.locks.keep_alive(open.slot())?;
        }
        found.map(|found| found.is_none()).map_err(|error| errno(&error))
    })
}

fn wait(
    open: &DescriptionUse,
    asked: LockCallRequest,
    mode: LockMode,
    signals: &mut BlockedSignals,
) -> Result<c_int, Errno> {
    let mut waiting = attempt(|| {
        let place = lock_place(open.file()?.ino(), asked.space);
        asked.locks(open)?.begin(place, asked.wanted(mode)).map_err(|error| errno(&error))
    })?;
    let woken = until_woken(&mut waiting, signals);
    // Whatever its outcome, a wait ends in a call: with it connections may end.
    attempt(|| {
        woken.and_then(|woken| waiting.finish(woken).map_err(|error| errno(&error)))?;
        if !asked.is_process {
            open.locks.keep_alive(open.slot())?;
        }
        Ok(0)
    })
}

/// Waits for the answer or for a signal that ends the call. The work on the wait in between is a
/// call in progress: it may open and close connections.
fn until_woken(waiting: &mut LockWait<'_>, signals: &mut BlockedSignals) -> Result<WaitEnd, Errno> {
    loop {
        let woken = waiting.block_beside(signals.timer_signal()?).map_err(|error| errno(&error))?;
        if woken == WaitEnd::Interrupted && signals.deliver() {
            return Ok(woken);
        }
        if attempt(|| waiting.proceed(woken).map_err(|error| errno(&error)))? {
            return Ok(WaitEnd::Arrived);
        }
    }
}

/// The bytes that a `struct flock` means.
fn range(open: &DescriptionUse, asked: &Flock) -> Result<LockRange, Errno> {
    let base = match c_int::from(asked.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => {
            open.slot().offset.load(std::sync::atomic::Ordering::Relaxed).cast_signed()
        }
        libc::SEEK_END => {
            let size = open.file()?.attr().map_err(|error| errno(&error))?.size;
            i64::try_from(size).map_err(|_| Errno::OVERFLOW)?
        }
        _ => return Err(Errno::INVAL),
    };
    let start = base.checked_add(asked.l_start).ok_or(Errno::OVERFLOW)?;
    let (start, last) = match asked.l_len {
        0 => (start, LOCK_LAST.cast_signed()),
        len @ 1.. => (start, start.checked_add(len - 1).ok_or(Errno::OVERFLOW)?),
        len => (start.checked_add(len).ok_or(Errno::INVAL)?, start - 1),
    };
    let start = u64::try_from(start).map_err(|_| Errno::INVAL)?;
    let last = u64::try_from(last).map_err(|_| Errno::INVAL)?;
    Ok(LockRange { start, last })
}

fn mode(kind: c_int) -> Result<Option<LockMode>, Errno> {
    match kind {
        libc::F_RDLCK => Ok(Some(LockMode::Shared)),
        libc::F_WRLCK => Ok(Some(LockMode::Exclusive)),
        libc::F_UNLCK => Ok(None),
        _ => Err(Errno::INVAL),
    }
}

/// Whether the descriptor is open for what is to be locked.
fn check_access(open: &DescriptionUse, mode: Option<LockMode>) -> Result<(), Errno> {
    let status = open.status();
    if status & libc::O_PATH != 0 {
        return Err(Errno::BADF);
    }
    match (mode, status & libc::O_ACCMODE) {
        (Some(LockMode::Shared), libc::O_WRONLY) | (Some(LockMode::Exclusive), libc::O_RDONLY) => {
            Err(Errno::BADF)
        }
        _ => Ok(()),
    }
}

/// Tells in a `struct flock` who is in the way.
fn report(asked: &mut Flock, locks: &FileLocks, found: Option<LockFound>) {
    let Some(found) = found else {
        asked.l_type = libc::F_UNLCK as i16;
        return;
    };
    let kind = if found.mode == LockMode::Shared { libc::F_RDLCK } else { libc::F_WRLCK };
    asked.l_type = kind as i16;
    asked.l_whence = libc::SEEK_SET as i16;
    asked.l_start = found.range.start.cast_signed();
    let len = found.range.last - found.range.start + 1;
    asked.l_len = if found.range.last == LOCK_LAST { 0 } else { len.cast_signed() };
    let process = locks.process_of(&found).and_then(|pid| libc::pid_t::try_from(pid).ok());
    asked.l_pid = process.unwrap_or(-1);
}

/// Whether a command of `fcntl` is about locks.
pub const fn is_lock_command(command: c_int) -> bool {
    matches!(
        command,
        libc::F_SETLK
            | libc::F_SETLKW
            | libc::F_GETLK
            | libc::F_OFD_SETLK
            | libc::F_OFD_SETLKW
            | libc::F_OFD_GETLK
    )
}

fn by_command(open: &DescriptionUse, command: c_int, argument: *mut Flock) -> Result<c_int, Errno> {
    let mut asked: Flock = foreign::get(argument.cast_const()).ok_or(Errno::FAULT)?;
    let is_process = matches!(command, libc::F_SETLK | libc::F_SETLKW | libc::F_GETLK);
    let waits = matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW);
    let tests = matches!(command, libc::F_GETLK | libc::F_OFD_GETLK);
    if !is_process && asked.l_pid != 0 {
        return Err(Errno::INVAL);
    }
    let mode = mode(c_int::from(asked.l_type))?;
    let range = attempt(|| range(open, &asked))?;
    let call = LockCallRequest { mode, range, space: LockSpace::Ranges, is_process, waits };
    if !tests {
        check_access(open, mode)?;
        return apply(open, call);
    }
    check_access(open, None)?;
    let mode = mode.ok_or(Errno::INVAL)?;
    attempt(|| {
        let locks = call.locks(open)?;
        let place = lock_place(open.file()?.ino(), call.space);
        let found = locks.test(place, call.wanted(mode)).map_err(|error| errno(&error))?;
        report(&mut asked, locks, found);
        Ok(())
    })?;
    foreign::put(argument, asked)?;
    Ok(0)
}

/// `fcntl` with a command about locks.
pub fn control(fd: c_int, command: c_int, argument: *mut Flock) -> c_int {
    let outcome = match table::get(fd) {
        Some(open) => by_command(&open, command, argument),
        None => Err(Errno::BADF),
    };
    outcome.unwrap_or_else(fail)
}

fn fail(errno: Errno) -> c_int {
    set_errno(errno.raw_os_error());
    -1
}

fn whole(open: &DescriptionUse, operation: c_int) -> Result<c_int, Errno> {
    if open.status() & libc::O_PATH != 0 {
        return Err(Errno::BADF);
    }
    let mode = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => Some(LockMode::Shared),
        libc::LOCK_EX => Some(LockMode::Exclusive),
        libc::LOCK_UN => None,
        _ => return Err(Errno::INVAL),
    };
    let waits = operation & libc::LOCK_NB == 0;
    let (range, space) = (LockRange::WHOLE, LockSpace::Whole);
    apply(open, LockCallRequest { mode, range, space, is_process: false, waits })
}

/// `lockf` in terms of `fcntl`.
fn by_section(open: &DescriptionUse, command: c_int, len: off_t) -> Result<c_int, Errno> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut asked: Flock = unsafe { std::mem::zeroed() };
    asked.l_whence = libc::SEEK_CUR as i16;
    asked.l_len = len;
    let (kind, command) = match command {
        libc::F_LOCK => (libc::F_WRLCK, libc::F_SETLKW),
        libc::F_TLOCK => (libc::F_WRLCK, libc::F_SETLK),
        libc::F_ULOCK => (libc::F_UNLCK, libc::F_SETLK),
        libc::F_TEST => (libc::F_RDLCK, libc::F_GETLK),
        _ => return Err(Errno::INVAL),
    };
    asked.l_type = kind as i16;
    by_command(open, command, &raw mut asked)?;
    let is_free = command != libc::F_GETLK || c_int::from(asked.l_type) == libc::F_UNLCK;
    if is_free { Ok(0) } else { Err(Errno::ACCESS) }
}

hooks! {
    fn flock(fd: c_int, operation: c_int) -> c_int {
        match table::get(fd) {
            Some(open) => whole(&open, operation).unwrap_or_else(fail),
            None => real(fd, operation),
        }
    }

    fn lockf = lockf64 (fd: c_int, command: c_int, len: off_t) -> c_int {
        match table::get(fd) {
            Some(open) => by_section(&open, command, len).unwrap_or_else(fail),
            None => real(fd, command, len),
        }
    }
}
