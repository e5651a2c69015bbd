//! Asynchronous I/O of Linux (`libaio`): a request for a file of the store is carried out when it
//! is submitted, and its result waits in a list of its own until the program asks for events. The
//! rest goes to the kernel.
//!
//! libaio's functions return the negative error, and leave `errno` alone.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::{iovec, off_t, timespec};
use rustix::io::Errno;

use crate::hook::{attempt, hooks};
use crate::hooks::{reading, space};
use crate::real::{errno, set_errno};
use crate::{foreign, raw, table};

/// `struct iocb`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelRequest {
    data: u64,
    key: u32,
    flags: u32,
    kind: u16,
    priority: i16,
    fd: c_int,
    buffer: *mut c_void,
    len: u64,
    at: i64,
    reserved: u64,
    options: u32,
    event_fd: c_int,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelEvent {
    data: u64,
    request: *mut KernelRequest,
    outcome: i64,
    second: i64,
}

// SAFETY: the pointer is the program's name for its request, and not followed here.
unsafe impl Send for KernelEvent {}

const READ: u16 = 0;
const WRITE: u16 = 1;
const SYNC: u16 = 2;
const SYNC_DATA: u16 = 3;
const READ_PARTS: u16 = 7;
const WRITE_PARTS: u16 = 8;
/// `IOCB_FLAG_RESFD`: an eventfd is told.
const TELLS_EVENT_FD: u32 = 1;

/// Events that wait in one context; a program that asks for more is told to fetch some first.
const EVENTS_MAX: usize = 1 << 16;

static DONE: Mutex<Option<HashMap<usize, VecDeque<KernelEvent>>>> = Mutex::new(None);
/// Events that wait in all contexts.
static WAITING: AtomicUsize = AtomicUsize::new(0);

fn with_queue<T>(context: *mut c_void, work: impl FnOnce(&mut VecDeque<KernelEvent>) -> T) -> T {
    let mut contexts = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let queue = contexts.get_or_insert_default().entry(context as usize).or_default();
    let before = queue.len();
    let outcome = work(queue);
    WAITING.fetch_add(queue.len(), Ordering::Relaxed);
    WAITING.fetch_sub(before, Ordering::Relaxed);
    outcome
}

/// Does what a request asks for: its result, or the negative error.
fn perform(request: &KernelRequest) -> i64 {
    let parts = || (request.buffer.cast::<iovec>().cast_const(), request.len as c_int);
    let (len, at) = (request.len as usize, request.at as off_t);
    let outcome = match request.kind {
        READ => reading::pread(request.fd, request.buffer, len, at),
        WRITE => reading::pwrite(request.fd, request.buffer, len, at),
        READ_PARTS => reading::preadv(request.fd, parts().0, parts().1, at),
        WRITE_PARTS => reading::pwritev(request.fd, parts().0, parts().1, at),
        SYNC | SYNC_DATA => space::fsync(request.fd) as isize,
        _ => return -i64::from(libc::EINVAL),
    };
    if outcome < 0 { -i64::from(errno()) } else { outcome as i64 }
}

fn submit_one(
    context: *mut c_void,
    at: *mut KernelRequest,
    request: &KernelRequest,
) -> Result<(), Errno> {
    if with_queue(context, |queue| queue.len()) >= EVENTS_MAX {
        return Err(Errno::AGAIN);
    }
    let before = errno();
    let outcome = perform(request);
    set_errno(before);
    let event = KernelEvent { data: request.data, request: at, outcome, second: 0 };
    with_queue(context, |queue| queue.push_back(event));
    if request.options & TELLS_EVENT_FD != 0 {
        // A descriptor that is no eventfd is found out by the program that waits for it.
        let _ = raw::write(request.event_fd, &1_u64.to_ne_bytes(), None);
    }
    Ok(())
}

/// Submits requests in order; how many, or the first one's error.
fn submit(
    context: *mut c_void,
    requests: &[*mut KernelRequest],
    real: impl Fn(c_long, *const *mut KernelRequest) -> c_int,
) -> c_int {
    let mut done = 0;
    for at in requests {
        let outcome = match foreign::get(at.cast_const()) {
            Some(request) if table::has(request.fd) => submit_one(context, *at, &request)
                .map_or_else(|failed| -failed.raw_os_error(), |()| 1),
            _ => real(1, at),
        };
        if outcome != 1 {
            return if done > 0 { done } else { outcome };
        }
        done += 1;
    }
    done
}

fn take(context: *mut c_void, count: c_long, out: *mut KernelEvent) -> c_long {
    let room = usize::try_from(count).unwrap_or(0);
    let taken = attempt(|| {
        Ok(with_queue(context, |queue| queue.drain(..queue.len().min(room)).collect::<Vec<_>>()))
    });
    let taken = taken.unwrap_or_default();
    // SAFETY: the program vouches for room for `count` events.
    unsafe { out.copy_from_nonoverlapping(taken.as_ptr(), taken.len()) };
    taken.len() as c_long
}

/// Events of ours first, and then the kernel's: waiting for those only as far as ours are not enough.
fn events(
    context: *mut c_void,
    least: c_long,
    count: c_long,
    out: *mut KernelEvent,
    timeout: *mut timespec,
    real: impl FnOnce(c_long, c_long, *mut KernelEvent, *mut timespec) -> c_int,
) -> c_int {
    if WAITING.load(Ordering::Relaxed) == 0 {
        return real(least, count, out, timeout);
    }
    let ours = take(context, count, out);
    if ours == count {
        return ours as c_int;
    }
    let mut none = timespec { tv_sec: 0, tv_nsec: 0 };
    let timeout = if ours >= least { &raw mut none } else { timeout };
    // SAFETY: `ours` events of the program's room are used.
    let rest = unsafe { out.add(ours as usize) };
    let theirs = real((least - ours).max(0), count - ours, rest, timeout);
    if theirs < 0 && ours > 0 { ours as c_int } else { ours as c_int + theirs }
}

fn list<'a>(
    count: c_long,
    requests: *const *mut KernelRequest,
) -> Option<&'a [*mut KernelRequest]> {
    let list = foreign::array(requests, c_int::try_from(count).ok()?).ok()?;
    let ours = |at: &*mut KernelRequest| {
        foreign::get(at.cast_const()).is_some_and(|request| table::has(request.fd))
    };
    list.iter().any(ours).then_some(list)
}

/// `io_submit` by number; `None`: nothing of it is the store's.
pub fn submit_by_number(
    (context, count, requests): (*mut c_void, c_long, *const *mut KernelRequest),
    real: impl Fn(c_long, *const *mut KernelRequest) -> c_long,
) -> Option<c_long> {
    let list = list(count, requests)?;
    Some(by_number(submit(context, list, |count, requests| from_number(real(count, requests)))))
}

/// `io_getevents` by number; `None`: no event of the store's waits.
pub fn events_by_number(
    (context, least, count): (*mut c_void, c_long, c_long),
    (out, timeout): (*mut KernelEvent, *mut timespec),
    real: impl FnOnce(c_long, c_long, *mut KernelEvent, *mut timespec) -> c_long,
) -> Option<c_long> {
    if WAITING.load(Ordering::Relaxed) == 0 {
        return None;
    }
    Some(by_number(events(context, least, count, out, timeout, |least, count, out, timeout| {
        from_number(real(least, count, out, timeout))
    })))
}

/// How `syscall` says what libaio's functions return.
fn by_number(outcome: c_int) -> c_long {
    if outcome >= 0 {
        return outcome.into();
    }
    set_errno(-outcome);
    -1
}

fn from_number(outcome: c_long) -> c_int {
    if outcome < 0 { -errno() } else { outcome as c_int }
}

hooks! {
    fn io_submit(context: *mut c_void, count: c_long, requests: *const *mut KernelRequest) -> c_int {
        match list(count, requests) {
            Some(list) => submit(context, list, |count, requests| real(context, count, requests)),
            None => real(context, count, requests),
        }
    }

    fn io_getevents(context: *mut c_void, least: c_long, count: c_long, out: *mut KernelEvent, timeout: *mut timespec) -> c_int {
        events(context, least, count, out, timeout, |least, count, out, timeout| {
            real(context, least, count, out, timeout)
        })
    }

    fn io_pgetevents(context: *mut c_void, least: c_long, count: c_long, out: *mut KernelEvent, timeout: *mut timespec, mask: *mut c_void) -> c_int {
        events(context, least, count, out, timeout, |least, count, out, timeout| {
            real(context, least, count, out, timeout, mask)
        })
    }

    fn io_destroy(context: *mut c_void) -> c_int {
        if WAITING.load(Ordering::Relaxed) > 0 {
            with_queue(context, VecDeque::clear);
        }
        real(context)
    }
}
