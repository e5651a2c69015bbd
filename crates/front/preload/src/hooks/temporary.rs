//! Temporary names: the `XXXXXX` of a template of the store.

use std::ffi::{c_char, c_int};

use libc::{AT_FDCWD, mode_t};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::hook::{guard, hooks};
use crate::hooks::names::make_directory;
use crate::hooks::open::open_store_path;
use crate::path_class::classify;
use crate::store_location::{PathRoom, PathRoute, StoreLocation};
use crate::{foreign, store};

const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const PLACES: usize = 6;
/// Names tried before giving up, as many as glibc tries at least (TMP_MAX).
const TRIES: usize = 238_328;

/// Writes random letters over the six `X` before the last `suffix_len` bytes.
fn fill(template: *mut c_char, suffix_len: c_int) -> Result<(), Errno> {
    let len = foreign::text(template)?.len();
    let suffix_len = usize::try_from(suffix_len).map_err(|_| Errno::INVAL)?;
    let start = len.checked_sub(suffix_len + PLACES).ok_or(Errno::INVAL)?;
    let mut random = [0; PLACES];
    getrandom(&mut random, GetRandomFlags::empty())?;
    for (index, byte) in random.iter().enumerate() {
        let letter = LETTERS[usize::from(*byte) % LETTERS.len()];
        // SAFETY: within the program's template, which is writable for the length of the call.
        unsafe { template.add(start + index).cast::<u8>().write(letter) };
    }
    Ok(())
}

fn check(template: *const c_char, suffix_len: c_int) -> Result<(), Errno> {
    let text = foreign::text(template)?;
    let suffix_len = usize::try_from(suffix_len).map_err(|_| Errno::INVAL)?;
    let end = text.len().checked_sub(suffix_len).ok_or(Errno::INVAL)?;
    if text[..end].ends_with(b"XXXXXX") { Ok(()) } else { Err(Errno::INVAL) }
}

/// Tries names until `make` finds one free; `None`: the template is not of the store.
fn try_names(
    template: *mut c_char,
    suffix_len: c_int,
    make: impl Fn(&StoreLocation<'_>) -> Result<c_int, Errno>,
) -> Option<c_int> {
    let mut room = PathRoom::new();
    if !matches!(classify(AT_FDCWD, template, &mut room), PathRoute::Store(_)) {
        return None;
    }
    Some(guard(|| {
        check(template, suffix_len)?;
        for _ in 0..TRIES {
            fill(template, suffix_len)?;
            let mut room = PathRoom::new();
            let PathRoute::Store(place) = classify(AT_FDCWD, template, &mut room) else {
                return Err(Errno::INVAL);
            };
            match make(&place) {
                Err(Errno::EXIST) => {}
                outcome => return outcome,
            }
        }
        Err(Errno::EXIST)
    }))
}

fn make_file(template: *mut c_char, suffix_len: c_int, flags: c_int) -> Option<c_int> {
    const PRIVATE: mode_t = 0o600;
    let flags = (flags & !libc::O_ACCMODE) | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    try_names(template, suffix_len, |place| open_store_path(place, flags, PRIVATE))
}

hooks! {
    fn mkstemp = mkstemp64 (template: *mut c_char) -> c_int {
        make_file(template, 0, 0).unwrap_or_else(|| real(template))
    }

    fn mkostemp = mkostemp64 (template: *mut c_char, flags: c_int) -> c_int {
        make_file(template, 0, flags).unwrap_or_else(|| real(template, flags))
    }

    fn mkstemps = mkstemps64 (template: *mut c_char, suffix_len: c_int) -> c_int {
        make_file(template, suffix_len, 0).unwrap_or_else(|| real(template, suffix_len))
    }

    fn mkostemps = mkostemps64 (template: *mut c_char, suffix_len: c_int, flags: c_int) -> c_int {
        make_file(template, suffix_len, flags).unwrap_or_else(|| real(template, suffix_len, flags))
    }

    fn tempnam(directory: *const c_char, prefix: *const c_char) -> *mut c_char {
        // Looked for in this order, as libc does.
        let wanted = std::env::var_os("TMPDIR").map(|path| path.into_encoded_bytes());
        let given = foreign::text(directory).ok().map(<[u8]>::to_vec);
        let prefix_text = foreign::text(prefix).unwrap_or_default();
        for path in [wanted, given].into_iter().flatten().filter(|path| path.first() == Some(&b'/')) {
            let name = [&path, &b"/"[..], &prefix_text[..prefix_text.len().min(5)], b"XXXXXX"].concat();
            let name = foreign::give_text(&name);
            let mut room = PathRoom::new();
            if matches!(classify(AT_FDCWD, name, &mut room), PathRoute::Store(_)) && foreign::get(mktemp(name)).unwrap_or(0) != 0 {
                return name;
            }
            // SAFETY: from `give_text`, and not handed on.
            unsafe { libc::free(name.cast()) };
        }
        real(directory, prefix)
    }

    fn mkdtemp(template: *mut c_char) -> *mut c_char {
        const PRIVATE: mode_t = 0o700;
        match try_names(template, 0, |place| make_directory(place, PRIVATE)) {
            None => real(template),
            Some(0) => template,
            Some(_) => std::ptr::null_mut(),
        }
    }

    fn mktemp(template: *mut c_char) -> *mut c_char {
        let free = try_names(template, 0, |place| {
            let at = place.at()?;
            match store::call_as(|fs, caller| fs.stat(caller, at, false)) {
                Ok(_) => Err(Errno::EXIST),
                Err(Errno::NOENT) => Ok(0),
                Err(failed) => Err(failed),
            }
        });
        match free {
            None => return real(template),
            Some(0) => {}
            // An empty name says that there is none (POSIX).
            Some(_) => drop(foreign::put(template, 0)),
        }
        template
    }
}
