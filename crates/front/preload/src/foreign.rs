//! Memory of the program, as its calls hand it over.
//!
//! The C interfaces that this library stands in for take bare pointers, and like libc it can only
//! trust them: a program that passes a wild pointer gets SIGSEGV. A pointer that no program can
//! have is refused with `EFAULT`, as the kernel does: null and what is close to it, and addresses
//! that are the kernel's. The functions are not `unsafe fn` because every hook would repeat the
//! same reason: *the program vouches for its pointers for the length of its call*. Nothing keeps
//! the references that they return beyond the call.

use std::ffi::{CStr, c_char, c_int, c_void};

use rustix::io::Errno;

/// No memory of a program lies below this address.
const LOWEST: usize = 4096;
/// Nor from this one on, whatever the kernel and the processor.
const END: usize = 1 << 56;

/// Whether no program can have `len` bytes there.
#[inline]
pub fn is_bad<T>(start: *const T, len: usize) -> bool {
    let address = start.addr();
    !(LOWEST..END).contains(&address) || len > END - address
}

/// A path or name.
pub fn text<'a>(path: *const c_char) -> Result<&'a [u8], Errno> {
    if is_bad(path, 1) {
        return Err(Errno::FAULT);
    }
    // SAFETY: not null; the program vouches for the rest (module docs).
    Ok(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// Bytes to write.
pub fn bytes<'a>(start: *const c_void, len: usize) -> Result<&'a [u8], Errno> {
    if len == 0 {
        return Ok(&[]);
    }
    if is_bad(start, len.min(IO_LEN_MAX)) {
        return Err(Errno::FAULT);
    }
    // SAFETY: not null; the program vouches for `len` readable bytes (module docs).
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), len.min(IO_LEN_MAX)) })
}

/// Room to read into.
pub fn room<'a>(start: *mut c_void, len: usize) -> Result<&'a mut [u8], Errno> {
    if len == 0 {
        return Ok(&mut []);
    }
    if is_bad(start.cast_const(), len.min(IO_LEN_MAX)) {
        return Err(Errno::FAULT);
    }
    // SAFETY: not null; the program vouches for `len` writable bytes (module docs).
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), len.min(IO_LEN_MAX)) })
}

/// Most bytes that one call moves, as in Linux.
pub const IO_LEN_MAX: usize = 0x7fff_f000;

/// Elements of an array.
pub fn array<'a, T>(start: *const T, len: c_int) -> Result<&'a [T], Errno> {
    let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
    if len == 0 {
        return Ok(&[]);
    }
    if is_bad(start, len.saturating_mul(size_of::<T>())) {
        return Err(Errno::FAULT);
    }
    // SAFETY: not null; the program vouches for `len` elements (module docs).
    Ok(unsafe { std::slice::from_raw_parts(start, len) })
}

/// The value behind a pointer; `None` for null, and for a pointer that no program can have.
pub fn get<T: Copy>(from: *const T) -> Option<T> {
    // SAFETY: not null; the program vouches for the rest (module docs).
    (!is_bad(from, size_of::<T>())).then(|| unsafe { from.read_unaligned() })
}

/// Writes a result where the program wants it.
pub fn put<T>(to: *mut T, value: T) -> Result<(), Errno> {
    if is_bad(to.cast_const(), size_of::<T>()) {
        return Err(Errno::FAULT);
    }
    // SAFETY: not null; the program vouches for the rest (module docs).
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Writes `text` and a NUL into `room` bytes at `to`; `None`: it does not fit.
pub fn put_text(to: *mut c_char, room: usize, text: &[u8]) -> Option<()> {
    if text.len() >= room {
        return None;
    }
    // SAFETY: it fits with its NUL; the program vouches for `room` bytes (module docs).
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        to.add(text.len()).write(0);
    }
    Some(())
}

/// A copy of `text` with a NUL, from `malloc`, for the program to free; null without memory.
pub fn give_text(text: &[u8]) -> *mut c_char {
    // SAFETY: malloc may be asked for any size.
    let to: *mut c_char = unsafe { libc::malloc(text.len() + 1) }.cast();
    if !to.is_null() {
        put_text(to, text.len() + 1, text);
    }
    to
}
