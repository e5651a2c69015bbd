//! Path classification: whether a path belongs to the store or to the kernel.

use std::ffi::{c_char, c_int};

use rustix::io::Errno;

use crate::mount_prefix::{below_prefix, normalise, prefix};
use crate::store_location::{PathRoom, PathRoute, StoreLocation};
use crate::{cwd, foreign, hook, outside_path, session, table};

/// Decides where a call on `path`, relative to `dirfd`, goes.
#[inline]
pub fn classify<'a>(dirfd: c_int, path: *const c_char, room: &'a mut PathRoom) -> PathRoute<'a> {
    let Some(first) = foreign::get(path.cast::<u8>()) else { return PathRoute::Real };
    if first == b'/' {
        if starts_with_prefix(path) {
            absolute(path, room)
        } else if is_of_descriptors(path) && is_beneath_descriptor(path) {
            beneath_descriptor(path, room)
        } else if has_detours(path) {
            absolute(path, room)
        } else {
            PathRoute::Real
        }
    } else if dirfd == libc::AT_FDCWD && cwd::is_inside() {
        relative_to_cwd(path, room)
    } else if dirfd != libc::AT_FDCWD && table::has(dirfd) {
        relative_to_dir(dirfd, path, room)
    } else if outside_path::may_lead_in(path) {
        outside_path::relative(dirfd, path, room)
    } else {
        PathRoute::Real
    }
}

/// The one comparison that any absolute path pays.
#[inline]
fn starts_with_prefix(path: *const c_char) -> bool {
    let prefix = prefix();
    for (index, byte) in prefix.iter().enumerate() {
        // SAFETY: every byte before this one was equal to one of the prefix, so not the terminating NUL.
        if unsafe { path.add(index).cast::<u8>().read() } != *byte {
            return false;
        }
    }
    // SAFETY: as above.
    !prefix.is_empty() && matches!(unsafe { path.add(prefix.len()).cast::<u8>().read() }, 0 | b'/')
}

/// The descriptor of the store that a path like `/dev/stdin` or `/proc/self/fd/3` names. The kernel would take the
/// placeholder's own memory for it.
#[inline]
pub fn named_descriptor(path: *const c_char) -> Option<c_int> {
    if !is_of_descriptors(path) {
        return None;
    }
    let text = foreign::text(path).ok()?;
    find_named_descriptor(text).filter(|(_, rest)| rest.is_empty()).map(|(fd, _)| fd)
}

/// Whether the path may name a descriptor of the store: that begins with `/p` or `/d`, while there are any.
#[inline]
fn is_of_descriptors(path: *const c_char) -> bool {
    if table::is_unused() || foreign::is_bad(path, 1) {
        return false;
    }
    // SAFETY: the second byte is read only when the first one is not the terminating NUL.
    let byte = |index: usize| unsafe { path.add(index).cast::<u8>().read() };
    byte(0) == b'/' && matches!(byte(1), b'p' | b'd')
}

/// The descriptor of the store with whose name `path` begins, and what follows it.
fn find_named_descriptor(path: &[u8]) -> Option<(c_int, &[u8])> {
    const STREAMS: [&[u8]; 3] = [b"/dev/stdin", b"/dev/stdout", b"/dev/stderr"];
    let (number, rest) = match STREAMS.iter().position(|name| path == *name) {
        Some(number) => (number as c_int, &[][..]),
        None => {
            let name = match path.strip_prefix(b"/dev/fd/") {
                Some(name) => name,
                None => descriptor_of_process(path.strip_prefix(b"/proc/")?)?,
            };
            let end = name.iter().position(|byte| *byte == b'/').unwrap_or(name.len());
            (std::str::from_utf8(&name[..end]).ok()?.parse().ok()?, &name[end..])
        }
    };
    table::has(number).then_some((number, rest))
}

/// The text that follows `self/fd/`, or the same in other words, below `/proc/`. Of other processes
/// nothing is known.
fn descriptor_of_process(path: &[u8]) -> Option<&[u8]> {
    let (process, mut rest) = path.split_at_checked(path.iter().position(|byte| *byte == b'/')?)?;
    let is_own = |number: &[u8]| {
        let number = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok());
        number == Some(session::pid())
    };
    if !matches!(process, b"self" | b"thread-self") && !is_own(process) {
        return None;
    }
    if let Some(thread) = rest.strip_prefix(b"/task/") {
        // Threads share their descriptors; a thread that does not exist has none.
        rest = &thread[thread.iter().position(|byte| *byte == b'/')?..];
    }
    rest.strip_prefix(b"/fd/")
}

/// Whether a path goes on behind the name of an open directory: `/proc/self/fd/3/name`.
#[cold]
fn is_beneath_descriptor(path: *const c_char) -> bool {
    let found = foreign::text(path).ok().and_then(find_named_descriptor);
    found.is_some_and(|(_, rest)| !rest.is_empty())
}

#[cold]
fn beneath_descriptor<'a>(path: *const c_char, room: &'a mut PathRoom) -> PathRoute<'a> {
    let Ok(text) = foreign::text(path) else { return PathRoute::Real };
    match find_named_descriptor(text) {
        Some((fd, [b'/', rest @ ..])) => {
            let start = rest.iter().position(|byte| *byte != b'/');
            relative_to_open(fd, start.map_or(b".", |start| &rest[start..]), room)
        }
        _ => PathRoute::Real,
    }
}

/// Whether the path has `//`, `/.` or `/..` in it, so that it may name the store in other words.
#[inline]
fn has_detours(path: *const c_char) -> bool {
    let Ok(path) = foreign::text(path) else { return false };
    path.windows(2).any(|pair| pair == b"//" || pair == b"/.") && components_have_detours(path)
}

fn components_have_detours(path: &[u8]) -> bool {
    path[1..].split(|byte| *byte == b'/').any(|name| matches!(name, b"" | b"." | b".."))
}

#[cold]
fn absolute<'a>(path: *const c_char, room: &'a mut PathRoom) -> PathRoute<'a> {
    let Ok(text) = foreign::text(path) else { return PathRoute::Real };
    match below_prefix(text) {
        Some(rest) if !climbs(rest) => in_store(rest),
        Some(_) => plain(text, room),
        None => {
            normalise(text, &mut room.0);
            match below_prefix(&room.0) {
                Some(rest) => in_store(rest),
                None => PathRoute::Real,
            }
        }
    }
}

const fn in_store(rest: &[u8]) -> PathRoute<'_> {
    PathRoute::Store(StoreLocation::below_prefix(rest))
}

#[cold]
fn relative_to_cwd<'a>(path: *const c_char, room: &'a mut PathRoom) -> PathRoute<'a> {
    let Ok(text) = foreign::text(path) else { return PathRoute::Real };
    if text.is_empty() {
        return PathRoute::Store(StoreLocation::whole(b""));
    }
    let mut whole = cwd::path();
    whole.push(b'/');
    whole.extend_from_slice(text);
    leave_or_stay(whole, room)
}

#[cold]
fn relative_to_dir<'a>(dirfd: c_int, path: *const c_char, room: &'a mut PathRoom) -> PathRoute<'a> {
    let Ok(text) = foreign::text(path) else { return PathRoute::Real };
    relative_to_open(dirfd, text, room)
}

fn relative_to_open<'a>(dirfd: c_int, text: &[u8], room: &'a mut PathRoom) -> PathRoute<'a> {
    let Some(dir) = table::get(dirfd) else { return PathRoute::Real };
    // SAFETY: the program vouches for its path for the length of the call (module `foreign`).
    let text: &'a [u8] = unsafe { std::slice::from_raw_parts(text.as_ptr(), text.len()) };
    if climbs(text) {
        let above = hook::attempt(|| {
            let path = dir.file()?.dir_path().ok_or(Errno::NOTDIR)?;
            Ok(path.to_vec())
        });
        if let Ok(mut whole) = above {
            whole.push(b'/');
            whole.extend_from_slice(text);
            if climbs(&whole) {
                return leave_or_stay(whole, room);
            }
        }
    }
    PathRoute::Store(StoreLocation::beneath(dir, text))
}

/// `whole` is a path below the store's root that may climb above it.
fn leave_or_stay(whole: Vec<u8>, room: &mut PathRoom) -> PathRoute<'_> {
    if climbs(&whole) {
        let mut absolute = prefix().to_vec();
        absolute.extend_from_slice(&whole);
        return plain(&absolute, room);
    }
    room.0 = whole;
    PathRoute::Store(StoreLocation::whole(&room.0))
}

/// A path that crosses the root of the store, by its plain name.
fn plain<'a>(text: &[u8], room: &'a mut PathRoom) -> PathRoute<'a> {
    normalise(text, &mut room.0);
    match below_prefix(&room.0) {
        Some(_) => in_store(&room.0[prefix().len()..]),
        None => {
            room.0.push(0);
            PathRoute::Elsewhere(room.0.as_ptr().cast())
        }
    }
}

/// Whether `..` leads above where the path starts.
fn climbs(path: &[u8]) -> bool {
    let mut depth = 0_usize;
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if depth == 0 => return true,
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}
