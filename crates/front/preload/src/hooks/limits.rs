//! The largest file that the program may write (`RLIMIT_FSIZE`), which the kernel checks for files of its own only.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use libc::pid_t;
use rustix::io::Errno;
use rustix::process::{Resource, Signal, getrlimit};

use crate::hook::hooks;
use crate::table::OpenDescription;

/// The limit, in bytes; asked of the kernel when it may have changed.
static LIMIT: AtomicU64 = AtomicU64::new(UNKNOWN);
const UNKNOWN: u64 = u64::MAX - 1;
const NONE: u64 = u64::MAX;

#[inline]
fn limit() -> u64 {
    match LIMIT.load(Ordering::Relaxed) {
        UNKNOWN => ask(),
        limit => limit,
    }
}

#[cold]
fn ask() -> u64 {
    let limit = getrlimit(Resource::Fsize).current.unwrap_or(NONE);
    LIMIT.store(limit, Ordering::Relaxed);
    limit
}

/// How many of `len` bytes may be written at `at`. Where none may, the program gets the signal that it would get of the kernel.
#[inline]
pub fn allowed(at: u64, len: usize) -> Result<usize, Errno> {
    let limit = limit();
    if at.saturating_add(len as u64) <= limit { Ok(len) } else { cut(limit, at, len) }
}

/// As [`allowed`], for bytes that go to the end of the file.
#[inline]
pub fn allowed_at_end(open: &OpenDescription, len: usize) -> Result<usize, Errno> {
    if limit() == NONE {
        return Ok(len);
    }
    let size = open.file()?.attr().map_err(|error| error.kind().errno())?.size;
    allowed(size, len)
}

/// Whether the file may become `len` bytes long; a file that is longer already may be cut to any
/// length.
pub fn may_grow(open: &OpenDescription, len: u64) -> Result<(), Errno> {
    let limit = limit();
    if len <= limit || len <= open.file()?.attr().map_err(|error| error.kind().errno())?.size {
        return Ok(());
    }
    cut(limit, limit, 1).map(drop)
}

#[cold]
fn cut(limit: u64, at: u64, len: usize) -> Result<usize, Errno> {
    match usize::try_from(limit.saturating_sub(at)).unwrap_or(len).min(len) {
        0 if len > 0 => {
            // A signal to oneself can always be sent; without a handler it ends the process.
            let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::XFSZ);
            Err(Errno::FBIG)
        }
        some => Ok(some),
    }
}

fn changed(outcome: c_int) -> c_int {
    LIMIT.store(UNKNOWN, Ordering::Relaxed);
    outcome
}

hooks! {
    fn setrlimit = setrlimit64 (resource: c_int, to: *const c_void) -> c_int {
        changed(real(resource, to))
    }

    fn prlimit = prlimit64 (process: pid_t, resource: c_int, to: *const c_void, before: *mut c_void) -> c_int {
        changed(real(process, resource, to, before))
    }
}
