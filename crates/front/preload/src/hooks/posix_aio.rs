//! POSIX asynchronous I/O: libc's threads would work on descriptors past the hooks, so what concerns the store is done at once,
//! and the request says that it is done. `aio_error`, `aio_return`, `aio_suspend` and `aio_cancel` read just that.

use std::ffi::{c_int, c_void};

use libc::{off_t, pthread_t, sigevent, sigval, size_t, ssize_t};
use rustix::io::Errno;

use crate::foreign;
use crate::hook::hooks;
use crate::hooks::{reading, space};
use crate::real::{errno, set_errno};
use crate::table;

/// `struct aiocb` of glibc on 64-bit platforms.
#[repr(C)]
pub struct PosixRequest {
    fd: c_int,
    kind: c_int,
    priority: c_int,
    buffer: *mut c_void,
    len: size_t,
    event: sigevent,
    next: *mut c_void,
    absolute_priority: c_int,
    policy: c_int,
    error: c_int,
    outcome: ssize_t,
    at: off_t,
}

const WAIT: c_int = 0;
const READ: c_int = 0;
const WRITE: c_int = 1;
const NOTHING: c_int = 2;

fn is_ours(request: *mut PosixRequest) -> bool {
    // SAFETY: the program vouches for its request.
    !request.is_null() && table::has(unsafe { (*request).fd })
}

/// Does it, and says so in the request.
fn perform(request: *mut PosixRequest, work: impl FnOnce(&PosixRequest) -> ssize_t) -> c_int {
    let before = errno();
    // SAFETY: the program vouches for its request, and leaves it alone until it is done.
    let request = unsafe { &mut *request };
    request.outcome = work(request);
    request.error = if request.outcome < 0 { errno() } else { 0 };
    set_errno(before);
    tell(&request.event);
    0
}

fn read(request: *mut PosixRequest) -> c_int {
    perform(request, |asked| reading::pread(asked.fd, asked.buffer, asked.len, asked.at))
}

fn write(request: *mut PosixRequest) -> c_int {
    perform(request, |asked| reading::pwrite(asked.fd, asked.buffer, asked.len, asked.at))
}

/// `sigevent` as glibc lays it out.
#[repr(C)]
#[derive(Clone, Copy)]
struct SignalEvent {
    value: *mut c_void,
    signal: c_int,
    kind: c_int,
    function: Option<extern "C" fn(*mut c_void)>,
}

/// Tells the program in the way it asked for.
fn tell(event: *const sigevent) {
    let Some(call) = foreign::get(event.cast::<SignalEvent>()) else { return };
    match call.kind {
        libc::SIGEV_SIGNAL => {
            // SAFETY: a signal to this process; a number that is none is an error.
            unsafe {
                libc::sigqueue(libc::getpid(), call.signal, sigval { sival_ptr: call.value })
            };
        }
        libc::SIGEV_THREAD => {
            if let Some(function) = call.function {
                start_thread(function, call.value);
            }
        }
        _ => {}
    }
}

/// Calls the program's function on a thread of its own, as POSIX asks for.
fn start_thread(function: extern "C" fn(*mut c_void), value: *mut c_void) {
    extern "C" fn run(raw: *mut c_void) -> *mut c_void {
        // SAFETY: from `Box::into_raw` below, handed on once.
        let call =
            unsafe { Box::from_raw(raw.cast::<(extern "C" fn(*mut c_void), *mut c_void)>()) };
        (call.0)(call.1);
        std::ptr::null_mut()
    }
    let call = Box::into_raw(Box::new((function, value)));
    let mut thread: pthread_t = 0;
    // SAFETY: the thread gets what it takes; without memory for a thread nobody is told, as with libc.
    unsafe {
        if libc::pthread_create(&raw mut thread, std::ptr::null(), run, call.cast()) == 0 {
            libc::pthread_detach(thread);
        } else {
            drop(Box::from_raw(call));
        }
    }
}

/// A list with some requests for the store: these are carried out now, and the rest is libc's.
fn perform_list(
    mode: c_int,
    list: &[*mut PosixRequest],
    event: *const sigevent,
    real: impl FnOnce(*const *mut PosixRequest, c_int) -> c_int,
) -> c_int {
    let mut rest = Vec::new();
    let mut failed = false;
    for request in list.iter().copied().filter(|request| !request.is_null()) {
        // SAFETY: the program vouches for its requests.
        let kind = unsafe { (*request).kind };
        match kind {
            NOTHING => {}
            _ if !is_ours(request) => rest.push(request),
            READ => drop(read(request)),
            WRITE => drop(write(request)),
            _ => failed = true,
        }
        // SAFETY: as above.
        failed |= is_ours(request) && kind != NOTHING && unsafe { (*request).error } != 0;
    }
    if !rest.is_empty() {
        let outcome = real(rest.as_ptr(), rest.len() as c_int);
        return if outcome == 0 && failed && mode == WAIT { report(Errno::IO) } else { outcome };
    }
    if mode != WAIT && !event.is_null() {
        tell(event);
    }
    if failed && mode == WAIT { report(Errno::IO) } else { 0 }
}

fn report(failed: Errno) -> c_int {
    set_errno(failed.raw_os_error());
    -1
}

hooks! {
    fn aio_read = aio_read64 (request: *mut PosixRequest) -> c_int {
        if is_ours(request) { read(request) } else { real(request) }
    }

    fn aio_write = aio_write64 (request: *mut PosixRequest) -> c_int {
        if is_ours(request) { write(request) } else { real(request) }
    }

    fn aio_fsync = aio_fsync64 (how: c_int, request: *mut PosixRequest) -> c_int {
        if is_ours(request) {
            return perform(request, |asked| space::fsync(asked.fd) as ssize_t);
        }
        real(how, request)
    }

    fn lio_listio = lio_listio64 (mode: c_int, list: *const *mut PosixRequest, count: c_int, event: *const sigevent) -> c_int {
        match foreign::array(list, count) {
            Ok(requests) if requests.iter().any(|request| is_ours(*request)) => {
                perform_list(mode, requests, event, |list, count| real(mode, list, count, event))
            }
            _ => real(mode, list, count, event),
        }
    }
}
