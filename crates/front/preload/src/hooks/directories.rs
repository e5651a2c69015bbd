//! Directory streams.
//!
//! A `DIR` of the store is a [`DirectoryStream`] of ours. It is told from libc's by its first eight bytes: libc's `DIR` starts with a
//! descriptor and a lock word.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use libc::{AT_FDCWD, DIR, dirent64, off_t, size_t, ssize_t};
use rustix::io::Errno;
use samite_fs::{DirHandle, FileKind};

use crate::hook::{by_file, by_open_fd, guard, guard_code, hooks};
use crate::hooks::descriptors::close_open;
use crate::hooks::open::open_store_path;
use crate::real::set_errno;
use crate::store::errno;
use crate::store_location::StoreLocation;
use crate::table::DescriptionUse;
use crate::{foreign, real, table};

const MAGIC: u64 = u64::from_le_bytes(*b"\xffsamiteD");

#[repr(C)]
struct DirectoryStream {
    magic: u64,
    fd: c_int,
    handle: DirHandle,
    entry: dirent64,
}

/// The stream behind a `DIR` of ours; `None` for libc's.
fn stream<'a>(dir: *mut DIR) -> Option<&'a mut DirectoryStream> {
    if foreign::get(dir.cast::<u64>()) != Some(MAGIC) {
        return None;
    }
    // SAFETY: the magic says that `give` made it; a program uses one stream from one thread at a time (POSIX).
    Some(unsafe { &mut *dir.cast::<DirectoryStream>() })
}

fn give(fd: c_int) -> Result<*mut DIR, Errno> {
    let open = table::get(fd).ok_or(Errno::BADF)?;
    let file = open.file()?;
    if file.kind() == FileKind::Directory {
        open.check_open()?;
    }
    let handle = file.read_dir().map_err(|error| errno(&error))?;
    // SAFETY: a structure of numbers, for which zeros are valid.
    let entry = unsafe { std::mem::zeroed() };
    Ok(Box::into_raw(Box::new(DirectoryStream { magic: MAGIC, fd, handle, entry })).cast())
}

fn open_directory(place: &StoreLocation<'_>) -> Result<*mut DIR, Errno> {
    let fd = open_store_path(place, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0)?;
    give(fd).inspect_err(|_| {
        let _ = close_open(fd);
    })
}

/// The next entry, in `into`; `None` at the end.
fn next(handle: &mut DirHandle, into: &mut dirent64) -> Result<Option<()>, Errno> {
    let Some(entry) = handle.next_entry().map_err(|error| errno(&error))? else { return Ok(None) };
    const NAME_AT: usize = std::mem::offset_of!(dirent64, d_name);
    let len = entry.name.len().min(into.d_name.len() - 1);
    into.d_ino = entry.ino;
    into.d_off = entry.cookie.cast_signed();
    into.d_type = entry.kind.dirent_type();
    // At most the size of the structure.
    into.d_reclen = (NAME_AT + len + 1).next_multiple_of(8) as u16;
    for (to, from) in into.d_name.iter_mut().zip(&entry.name[..len]) {
        *to = from.cast_signed();
    }
    into.d_name[len] = 0;
    Ok(Some(()))
}

/// Neither `rewinddir` nor `seekdir` can fail; a position that does not exist is left to the next read.
fn go_to(stream: &mut DirectoryStream, position: u64) -> c_int {
    guard(|| stream.handle.seek(position).map(|()| 0).map_err(|error| errno(&error)))
}

type Filter = Option<extern "C" fn(*const dirent64) -> c_int>;
type Compare = Option<extern "C" fn(*mut *const dirent64, *mut *const dirent64) -> c_int>;

/// `scandir` over a stream. The program's functions run outside the guard: they may call anything.
fn scan(dir: *mut DIR, out: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int {
    if dir.is_null() {
        return -1;
    }
    let before = real::errno();
    let mut found: Vec<*mut dirent64> = Vec::new();
    set_errno(0);
    loop {
        let entry = readdir(dir);
        if entry.is_null() {
            break;
        }
        if filter.is_none_or(|wants| wants(entry) != 0) {
            match copy_entry(entry) {
                Some(copy) => found.push(copy),
                None => set_errno(libc::ENOMEM),
            }
        }
        if real::errno() == libc::ENOMEM {
            break;
        }
        set_errno(0);
    }
    let failure = real::errno();
    closedir(dir);
    set_errno(if failure == 0 { before } else { failure });
    give_list(found, failure, out, compare)
}

fn copy_entry(entry: *const dirent64) -> Option<*mut dirent64> {
    // SAFETY: `readdir` gave a whole entry.
    let len = usize::from(unsafe { (*entry).d_reclen });
    // SAFETY: malloc may be asked for any size; the copy is as long as the memory.
    unsafe {
        let copy = libc::malloc(len);
        if copy.is_null() {
            return None;
        }
        copy.cast::<u8>().copy_from_nonoverlapping(entry.cast(), len);
        Some(copy.cast())
    }
}

fn give_list(
    found: Vec<*mut dirent64>,
    failure: c_int,
    out: *mut *mut *mut dirent64,
    compare: Compare,
) -> c_int {
    let count = found.len();
    // SAFETY: malloc may be asked for any size.
    let list: *mut *mut dirent64 =
        unsafe { libc::malloc(size_of::<*mut dirent64>() * count.max(1)) }.cast();
    if failure != 0 || list.is_null() || foreign::put(out, list).is_err() {
        for entry in found {
            // SAFETY: `copy_entry` had it from malloc.
            unsafe { libc::free(entry.cast()) };
        }
        // SAFETY: from malloc, or null.
        unsafe { libc::free(list.cast()) };
        return -1;
    }
    // SAFETY: the list has room for `count` pointers; `compare` is for pointers to them, as qsort hands it.
    unsafe {
        list.copy_from_nonoverlapping(found.as_ptr(), count);
        if let Some(compare) = compare {
            let compare = std::mem::transmute::<
                extern "C" fn(*mut *const dirent64, *mut *const dirent64) -> c_int,
                unsafe extern "C" fn(*const c_void, *const c_void) -> c_int,
            >(compare);
            libc::qsort(list.cast(), count, size_of::<*mut dirent64>() as size_t, Some(compare));
        }
    }
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// Opens a directory of the store for `scandir`.
fn open_for_scan(dirfd: c_int, path: *const c_char) -> Option<*mut DIR> {
    let mut room = crate::store_location::PathRoom::new();
    match crate::path_class::classify(dirfd, path, &mut room) {
        crate::store_location::PathRoute::Store(place) => {
            Some(guard(move || open_directory(&place)))
        }
        _ => None,
    }
}

/// Fills `room` with entries of an open directory, from its offset on.
fn read_entries(open: &DescriptionUse, room: &mut [u8]) -> Result<usize, Errno> {
    let mut handle = open.file()?.read_dir().map_err(|error| errno(&error))?;
    let offset = &open.slot().offset;
    handle.seek(offset.load(Ordering::Acquire)).map_err(|error| errno(&error))?;
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut entry: dirent64 = unsafe { std::mem::zeroed() };
    let mut used = 0;
    loop {
        match next(&mut handle, &mut entry) {
            Ok(Some(())) => {}
            // The entries that were found come first.
            Err(errno) if used == 0 => return Err(errno),
            Ok(None) | Err(_) => break,
        }
        let len = usize::from(entry.d_reclen);
        if len > room.len() - used {
            return if used == 0 { Err(Errno::INVAL) } else { Ok(used) };
        }
        // SAFETY: an entry has `len` bytes, at most those of the structure.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const entry).cast::<u8>(), len) };
        room[used..][..len].copy_from_slice(bytes);
        used += len;
        offset.store(entry.d_off.cast_unsigned(), Ordering::Release);
    }
    Ok(used)
}

hooks! {
    fn getdents64(fd: c_int, out: *mut c_void, room: size_t) -> ssize_t {
        by_open_fd!(fd, real(fd, out, room), |open| {
            read_entries(&open, foreign::room(out, room)?).map(usize::cast_signed)
        })
    }

    fn getdirentries = getdirentries64 (fd: c_int, out: *mut c_char, room: size_t, base: *mut off_t) -> ssize_t {
        by_open_fd!(fd, real(fd, out, room, base), |open| {
            foreign::put(base, open.slot().offset.load(Ordering::Acquire).cast_signed())?;
            read_entries(&open, foreign::room(out.cast(), room)?).map(usize::cast_signed)
        })
    }

    fn opendir(path: *const c_char) -> *mut DIR {
        by_file!(AT_FDCWD, path, true, real(path), |open| open_directory(&StoreLocation::itself(&open)), |place| {
            open_directory(place)
        })
    }

    fn fdopendir(fd: c_int) -> *mut DIR {
        if table::has(fd) { guard(|| give(fd)) } else { real(fd) }
    }

    fn readdir = readdir64 (dir: *mut DIR) -> *mut dirent64 {
        let Some(stream) = stream(dir) else { return real(dir) };
        guard(|| {
            let found = next(&mut stream.handle, &mut stream.entry)?;
            Ok(found.map_or(null_mut(), |()| &raw mut stream.entry))
        })
    }

    fn readdir_r = readdir64_r (dir: *mut DIR, entry: *mut dirent64, out: *mut *mut dirent64) -> c_int {
        let Some(stream) = stream(dir) else { return real(dir, entry, out) };
        guard_code(|| {
            let found = next(&mut stream.handle, &mut stream.entry)?;
            if found.is_some() {
                let len = usize::from(stream.entry.d_reclen);
                // SAFETY: the program's entry has room for the longest name (POSIX); this one has `len` bytes.
                unsafe { entry.cast::<u8>().copy_from_nonoverlapping((&raw const stream.entry).cast(), len) };
            }
            foreign::put(out, if found.is_some() { entry } else { null_mut() })
        })
    }

    fn closedir(dir: *mut DIR) -> c_int {
        let Some(stream) = stream(dir) else { return real(dir) };
        guard(|| {
            // SAFETY: `give` made it with Box; the program does not use it again.
            let mut stream = unsafe { Box::from_raw(&raw mut *stream) };
            stream.magic = 0;
            close_open(stream.fd)
        })
    }

    fn rewinddir(dir: *mut DIR) -> () {
        match stream(dir) {
            Some(stream) => {
                go_to(stream, 0);
            }
            None => real(dir),
        }
    }

    fn telldir(dir: *mut DIR) -> c_long {
        let Some(stream) = stream(dir) else { return real(dir) };
        guard(|| Ok(stream.handle.tell().cast_signed()))
    }

    fn seekdir(dir: *mut DIR, position: c_long) -> () {
        match stream(dir) {
            Some(stream) => {
                go_to(stream, position.cast_unsigned());
            }
            None => real(dir, position),
        }
    }

    fn dirfd(dir: *mut DIR) -> c_int {
        stream(dir).map_or_else(|| real(dir), |stream| stream.fd)
    }

    fn scandir = scandir64 (path: *const c_char, out: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int {
        match open_for_scan(AT_FDCWD, path) {
            Some(dir) => scan(dir, out, filter, compare),
            None => real(path, out, filter, compare),
        }
    }

    fn scandirat = scandirat64 (dirfd: c_int, path: *const c_char, out: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int {
        match open_for_scan(dirfd, path) {
            Some(dir) => scan(dir, out, filter, compare),
            None => real(dirfd, path, out, filter, compare),
        }
    }
}
