//! The mount prefix, under which the store appears, and which whole paths lie below it.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Where the store appears: an absolute path without a slash at its end. Null until the library has started.
static PREFIX: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static PREFIX_LEN: AtomicUsize = AtomicUsize::new(0);

/// Sets the mount prefix, once, at start.
pub fn set_prefix(prefix: &'static [u8]) {
    PREFIX_LEN.store(prefix.len(), Ordering::Relaxed);
    PREFIX.store(prefix.as_ptr().cast_mut(), Ordering::Release);
}

/// The mount prefix; empty before the library has started.
#[inline]
pub fn prefix() -> &'static [u8] {
    let start = PREFIX.load(Ordering::Acquire);
    if start.is_null() {
        return &[];
    }
    // SAFETY: `set_prefix` had a static slice of this start and length.
    unsafe { std::slice::from_raw_parts(start, PREFIX_LEN.load(Ordering::Relaxed)) }
}

/// The part of a whole path below the prefix: empty, or starting with `/`.
pub fn below_prefix(path: &[u8]) -> Option<&[u8]> {
    let prefix = prefix();
    let rest = path.strip_prefix(prefix)?;
    (!prefix.is_empty() && (rest.is_empty() || rest[0] == b'/')).then_some(rest)
}

/// An absolute path without `//`, `.` and `..`. Lexical: a symbolic link before `..` is not looked at.
pub fn normalise(path: &[u8], out: &mut Vec<u8>) {
    out.clear();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                let parent = out.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                out.truncate(parent);
            }
            _ => {
                out.push(b'/');
                out.extend_from_slice(name);
            }
        }
    }
    if out.is_empty() {
        out.push(b'/');
    }
}
