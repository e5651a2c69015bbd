//! Streams (`FILE`) on files of the store.
//!
//! libc's streams call libc's own `read` and `write`, past the hooks. A stream on a file of the store is therefore one of
//! `fopencookie`, whose functions come back to the hooks. `fileno` works because the descriptor is written into the stream.
//!
//! The standard streams are reached through the variables `stdin`, `stdout` and `stderr`. When a
//! descriptor of the store comes to lie on 0, 1 or 2 (at an `exec`, or by `dup2` as shells do), the
//! variable is set to a cookie stream on that number, once and for good: the cookie asks the table
//! at each call, so it serves the kernel's files as well. Bytes that the old stream had not written
//! yet move into the new one's buffer, where they would have been.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{AT_FDCWD, FILE, off_t, size_t, ssize_t};
use rustix::io::Errno;

use crate::hook::{attempt, guard, hooks};
use crate::hooks::descriptors::{close, close_open, dup2};
use crate::hooks::open::{open_again, open_store_path};
use crate::hooks::reading::{lseek, read, write};
use crate::hooks::special;
use crate::outside_path::through_link;
use crate::path_class::{classify, named_descriptor};
use crate::real::{errno, set_errno};
use crate::store_location::{PathRoom, PathRoute, way_out};
use crate::{foreign, table};

/// Buffer of a stream, in bytes: a read of the store costs a message, so fewer and larger ones pay.
const BUFFER_LEN: usize = 64 << 10;

/// Where glibc keeps things in a `FILE` (`struct _IO_FILE`, part of its ABI on every 64-bit platform).
const FLAGS_AT: usize = 0;
const WRITE_BASE_AT: usize = 32;
const FILENO_AT: usize = 112;
const FUNCTIONS_AT: usize = 216;
/// The value that `fopencookie` leaves there.
const FILENO_OF_COOKIE: c_int = -2;
const UNBUFFERED: c_int = 2;

#[repr(C)]
struct CookieFunctions {
    read: extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: extern "C" fn(*mut c_void, *mut off_t, c_int) -> c_int,
    close: extern "C" fn(*mut c_void) -> c_int,
}

impl CookieFunctions {
    const OURS: Self =
        Self { read: cookie_read, write: cookie_write, seek: cookie_seek, close: cookie_close };
}

unsafe extern "C" {
    fn fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: CookieFunctions,
    ) -> *mut FILE;
    fn __fpending(stream: *mut FILE) -> size_t;
    fn __fpurge(stream: *mut FILE);
    fn __flbf(stream: *mut FILE) -> c_int;
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// The file behind a cookie stream.
struct StreamCookie {
    fd: c_int,
    buffer: Box<[u8]>,
}

fn cookie<'a>(raw: *mut c_void) -> &'a StreamCookie {
    // SAFETY: libc hands back what `stream_on` gave it.
    unsafe { &*raw.cast::<StreamCookie>() }
}

extern "C" fn cookie_read(raw: *mut c_void, into: *mut c_char, len: size_t) -> ssize_t {
    read(cookie(raw).fd, into.cast(), len)
}

/// Writes everything: libc takes less for a failure.
extern "C" fn cookie_write(raw: *mut c_void, from: *const c_char, len: size_t) -> ssize_t {
    let mut done = 0;
    while done < len {
        // SAFETY: libc's buffer has `len` bytes.
        let part = write(cookie(raw).fd, unsafe { from.add(done) }.cast(), len - done);
        match usize::try_from(part) {
            Ok(part @ 1..) => done += part,
            _ if part < 0 && errno() == libc::EINTR => {}
            _ => break,
        }
    }
    done.cast_signed()
}

extern "C" fn cookie_seek(raw: *mut c_void, offset: *mut off_t, whence: c_int) -> c_int {
    let at = lseek(cookie(raw).fd, foreign::get(offset).unwrap_or(0), whence);
    if at < 0 || foreign::put(offset, at).is_err() { -1 } else { 0 }
}

extern "C" fn cookie_close(raw: *mut c_void) -> c_int {
    // SAFETY: as in `cookie`; libc does not come back after this.
    let cookie = unsafe { Box::from_raw(raw.cast::<StreamCookie>()) };
    if let Some(standard) = standard(cookie.fd)
        && standard.cookie.load(Ordering::Relaxed) == raw
    {
        standard.cookie.store(null_mut(), Ordering::Relaxed);
    }
    close(cookie.fd)
}

/// A stream of our own on `fd`, with room for `pending` bytes. `mode` is NUL-terminated.
fn stream_on(fd: c_int, mode: &'static CStr, pending: usize) -> Option<(*mut FILE, *mut c_void)> {
    let buffer = vec![0; BUFFER_LEN.max(pending + 1)].into_boxed_slice();
    let cookie = Box::into_raw(Box::new(StreamCookie { fd, buffer }));
    // SAFETY: the cookie lives until `cookie_close`.
    let stream = unsafe { fopencookie(cookie.cast(), mode.as_ptr(), CookieFunctions::OURS) };
    if stream.is_null() {
        // SAFETY: libc did not take it.
        drop(unsafe { Box::from_raw(cookie) });
        return None;
    }
    FUNCTIONS.store(functions(stream), Ordering::Relaxed);
    // SAFETY: a stream just made, and the buffer lives as long as it; the field is where the ABI says, and has what it must.
    unsafe {
        let buffer = &mut (*cookie).buffer;
        libc::setvbuf(stream, buffer.as_mut_ptr().cast(), libc::_IOFBF, buffer.len());
        let number = stream.cast::<u8>().add(FILENO_AT).cast::<c_int>();
        if number.read() == FILENO_OF_COOKIE {
            number.write(fd);
        }
    }
    Some((stream, cookie.cast()))
}

/// libc's functions for cookie streams, learned from the first one; null before.
static FUNCTIONS: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

fn functions(stream: *mut FILE) -> *mut c_void {
    // SAFETY: a stream of glibc has this field; the program vouches for its stream.
    unsafe { stream.cast::<u8>().add(FUNCTIONS_AT).cast::<*mut c_void>().read() }
}

/// Whether a stream is a cookie stream, as all streams on the store are.
#[inline]
pub fn is_ours(stream: *mut FILE) -> bool {
    let known = FUNCTIONS.load(Ordering::Relaxed);
    !known.is_null() && !stream.is_null() && functions(stream) == known
}

/// `stdin`, as it is now.
pub fn standard_input() -> *mut FILE {
    // SAFETY: libc's variable.
    unsafe { stdin }
}

/// `stdout`, as it is now.
pub fn standard_output() -> *mut FILE {
    // SAFETY: libc's variable.
    unsafe { stdout }
}

/// A standard stream.
struct StandardStream {
    /// The cookie of the stream that took its place; null while it is libc's.
    cookie: AtomicPtr<c_void>,
}

static STANDARD: [StandardStream; 3] =
    [const { StandardStream { cookie: AtomicPtr::new(null_mut()) } }; 3];

fn standard(fd: c_int) -> Option<&'static StandardStream> {
    STANDARD.get(usize::try_from(fd).ok()?)
}

fn variable(fd: c_int) -> *mut *mut FILE {
    match fd {
        0 => &raw mut stdin,
        1 => &raw mut stdout,
        _ => &raw mut stderr,
    }
}

/// Called when `fd` may have become a file of the store: standard streams must come to the hooks from here on.
#[inline]
pub fn redirect(fd: c_int) {
    if (0..=2).contains(&fd) && table::has(fd) {
        redirect_standard(fd);
    }
}

#[cold]
fn redirect_standard(fd: c_int) {
    let Some(standard) = standard(fd) else { return };
    if !standard.cookie.load(Ordering::Relaxed).is_null() {
        return;
    }
    let variable = variable(fd);
    // SAFETY: libc's variables; programs that change them while another thread does this are beyond help.
    unsafe {
        let before = *variable;
        let pending = if fd == 0 || before.is_null() { 0 } else { __fpending(before) };
        let mode = if fd == 0 { c"r" } else { c"w" };
        let Some((stream, cookie)) = stream_on(fd, mode, pending) else { return };
        if pending > 0 {
            let base = before.cast::<u8>().add(WRITE_BASE_AT).cast::<*const c_void>().read();
            libc::fwrite(base, 1, pending, stream);
            __fpurge(before);
        }
        if !before.is_null() && fd != 0 {
            let flags = before.cast::<u8>().add(FLAGS_AT).cast::<c_int>().read();
            if flags & UNBUFFERED != 0 || fd == 2 {
                libc::setvbuf(stream, null_mut(), libc::_IONBF, 0);
            } else if __flbf(before) != 0 {
                libc::setvbuf(stream, null_mut(), libc::_IOLBF, 0);
            }
        }
        *variable = stream;
        standard.cookie.store(cookie, Ordering::Relaxed);
    }
}

/// The flags of open(2) and the mode for `fopencookie` behind a mode of `fopen`.
fn parse_mode(mode: *const c_char) -> Result<(c_int, &'static CStr), Errno> {
    let mode = foreign::text(mode)?;
    // The text after a comma names a character set.
    let mode = mode.split(|byte| *byte == b',').next().unwrap_or(mode);
    let both = mode.contains(&b'+');
    let (access, plain) = match (mode.first(), both) {
        (Some(b'r'), false) => (libc::O_RDONLY, c"r"),
        (Some(b'r'), true) => (libc::O_RDWR, c"r+"),
        (Some(b'w'), false) => (libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC, c"w"),
        (Some(b'w'), true) => (libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC, c"w+"),
        (Some(b'a'), false) => (libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND, c"a"),
        (Some(b'a'), true) => (libc::O_RDWR | libc::O_CREAT | libc::O_APPEND, c"a+"),
        _ => return Err(Errno::INVAL),
    };
    let exclusive = if mode.contains(&b'x') { libc::O_EXCL } else { 0 };
    let close_on_exec = if mode.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    Ok((access | exclusive | close_on_exec, plain))
}

/// The outcome of opening a path.
enum OpenedStream {
    /// It is libc's to open, under this name.
    Real(*const c_char),
    /// As [`OpenedStream::Real`]: a symbolic link leads out of the store.
    Outside(CString),
    /// An open file of the store, and the mode for `fopencookie`.
    Store(c_int, &'static CStr),
    /// `errno` says why not.
    Failed,
}

fn open_path(path: *const c_char, mode: *const c_char) -> OpenedStream {
    if let Some(fd) = named_descriptor(path) {
        return opened(attempt(|| {
            let (flags, mode) = parse_mode(mode)?;
            Ok((open_again(fd, flags)?, mode))
        }));
    }
    let mut room = PathRoom::new();
    let place = match classify(AT_FDCWD, path, &mut room) {
        PathRoute::Real => return OpenedStream::Real(path),
        PathRoute::Elsewhere(path) => return OpenedStream::Outside(plain_name(path)),
        PathRoute::Store(place) => place,
    };
    let outcome = attempt(|| {
        let (flags, mode) = parse_mode(mode)?;
        Ok((open_store_path(&place, flags, 0o666)?, mode))
    });
    match way_out(&place, &outcome) {
        Some(outside) => OpenedStream::Outside(outside),
        None => opened(outcome),
    }
}

fn opened(outcome: Result<(c_int, &'static CStr), Errno>) -> OpenedStream {
    match outcome {
        Ok((fd, mode)) => OpenedStream::Store(fd, mode),
        Err(errno) => {
            set_errno(errno.raw_os_error());
            OpenedStream::Failed
        }
    }
}

/// A copy of a path that lies in memory about to go.
fn plain_name(path: *const c_char) -> CString {
    foreign::text(path).ok().and_then(|path| CString::new(path).ok()).unwrap_or_default()
}

fn open_stream(
    path: *const c_char,
    mode: *const c_char,
    real: impl FnOnce(*const c_char) -> *mut FILE,
) -> *mut FILE {
    match open_path(path, mode) {
        OpenedStream::Real(path) => {
            let stream = real(path);
            if stream.is_null() { open_through_link(path, mode) } else { stream }
        }
        OpenedStream::Outside(path) => real(path.as_ptr()),
        OpenedStream::Store(fd, mode) => stream_or_close(fd, mode),
        OpenedStream::Failed => open_special(path, mode),
    }
}

/// After libc found nothing: a symbolic link of the kernel's may lead into the store.
fn open_through_link(path: *const c_char, mode: *const c_char) -> *mut FILE {
    let mut room = PathRoom::new();
    let Some(place) = through_link(AT_FDCWD, path, &mut room) else { return null_mut() };
    let outcome = attempt(|| {
        let (flags, mode) = parse_mode(mode)?;
        Ok((open_store_path(&place, flags, 0o666)?, mode))
    });
    match opened(outcome) {
        OpenedStream::Store(fd, mode) => stream_or_close(fd, mode),
        _ => null_mut(),
    }
}

/// A stream on a pipe or device that has its name in the store: libc's own, on the kernel's descriptor.
fn open_special(path: *const c_char, mode: *const c_char) -> *mut FILE {
    if errno() != libc::EOPNOTSUPP {
        return null_mut();
    }
    let special = parse_mode(mode).and_then(|(flags, _)| special::open(AT_FDCWD, path, flags));
    match special {
        // SAFETY: a descriptor just opened, and the program's mode.
        Ok(fd) => unsafe { libc::fdopen(fd, mode) },
        Err(failed) => {
            set_errno(failed.raw_os_error());
            null_mut()
        }
    }
}

fn stream_or_close(fd: c_int, mode: &'static CStr) -> *mut FILE {
    match stream_on(fd, mode, 0) {
        Some((stream, _)) => stream,
        None => {
            guard(|| close_open(fd));
            set_errno(libc::ENOMEM);
            null_mut()
        }
    }
}

fn number_of(stream: *mut FILE) -> c_int {
    // SAFETY: the program vouches for its stream.
    unsafe { libc::fileno(stream) }
}

fn reopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
    real: impl FnOnce(*const c_char) -> *mut FILE,
) -> *mut FILE {
    if path.is_null() {
        let ours = !stream.is_null() && table::has(number_of(stream));
        // A file of the store has one way to be read and written, whatever the mode.
        return if ours { stream } else { real(path) };
    }
    let (fd, mode) = match open_path(path, mode) {
        OpenedStream::Real(path) => return real(path),
        OpenedStream::Outside(path) => return real(path.as_ptr()),
        OpenedStream::Store(fd, mode) => (fd, mode),
        OpenedStream::Failed => return null_mut(),
    };
    // SAFETY: the program vouches for its stream.
    unsafe { libc::fflush(stream) };
    let number = number_of(stream);
    if number < 0 || number == fd {
        return stream_or_close(fd, mode);
    }
    let moved = dup2(fd, number);
    close(fd);
    if moved < 0 {
        return null_mut();
    }
    if (0..=2).contains(&number) {
        // SAFETY: libc's variables, which `dup2` has just set.
        return unsafe { *variable(number) };
    }
    // The old stream object cannot be made to serve the store. It is left alone: the program may still look at it.
    stream_or_close(number, mode)
}

hooks! {
    fn fopen = fopen64 = _IO_fopen = setmntent = __setmntent (path: *const c_char, mode: *const c_char) -> *mut FILE {
        open_stream(path, mode, |path| real(path, mode))
    }

    fn fdopen = _IO_fdopen (fd: c_int, mode: *const c_char) -> *mut FILE {
        if !table::has(fd) {
            return real(fd, mode);
        }
        match parse_mode(mode) {
            Ok((_, mode)) => stream_on(fd, mode, 0).map_or(null_mut(), |(stream, _)| stream),
            Err(errno) => {
                set_errno(errno.raw_os_error());
                null_mut()
            }
        }
    }

    fn freopen = freopen64 (path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        reopen(path, mode, stream, |path| real(path, mode, stream))
    }

    fn perror(text: *const c_char) -> () {
        if !table::has(2) {
            return real(text);
        }
        let code = errno();
        // SAFETY: strerror gives a NUL-terminated text for any code; `stderr` is the stream that `redirect` set.
        unsafe {
            if foreign::get(text).is_some_and(|first| first != 0) {
                libc::fputs(text, stderr);
                libc::fputs(c": ".as_ptr(), stderr);
            }
            libc::fputs(libc::strerror(code), stderr);
            libc::fputs(c"\n".as_ptr(), stderr);
        }
        set_errno(code);
    }
}
