//! `realpath` and what is known of paths without asking the store.

use std::ffi::{c_char, c_int, c_long, c_void};

use libc::{AT_FDCWD, size_t};
use rustix::io::Errno;
use samite_fs::{NAME_LEN_MAX, PATH_LEN_MAX};

use crate::hook::{answer, by_fd, by_path, hooks};
use crate::hooks::status::{look, means_descriptor};
use crate::hooks::working_directory::named;
use crate::store_location::StoreLocation;
use crate::{foreign, store};

const PATH_MAX: size_t = PATH_LEN_MAX + 1;
const LINK_MAX: c_long = 65_000;
const PIPE_BUF: c_long = 4096;
const FILE_SIZE_BITS: c_long = 64;
const CANON_MAX: c_long = 255;
const TRANSFER_LEN: c_long = 4096;

fn resolve(
    place: &StoreLocation<'_>,
    out: *mut c_char,
    room: size_t,
) -> Result<*mut c_char, Errno> {
    let at = place.at()?;
    let name = named(&store::call_as(|fs, caller| fs.canonicalize(caller, at))?);
    if out.is_null() {
        let given = foreign::give_text(&name);
        return if given.is_null() { Err(Errno::NOMEM) } else { Ok(given) };
    }
    foreign::put_text(out, room, &name).ok_or(Errno::NAMETOOLONG)?;
    Ok(out)
}

/// As libc answers for a file of the kernel; `-1` without an error: there is no limit.
fn limit(name: c_int) -> Result<c_long, Errno> {
    match name {
        libc::_PC_LINK_MAX => Ok(LINK_MAX),
        libc::_PC_NAME_MAX => Ok(NAME_LEN_MAX as c_long),
        libc::_PC_PATH_MAX => Ok(PATH_MAX as c_long),
        libc::_PC_PIPE_BUF => Ok(PIPE_BUF),
        libc::_PC_FILESIZEBITS => Ok(FILE_SIZE_BITS),
        libc::_PC_CHOWN_RESTRICTED | libc::_PC_NO_TRUNC | libc::_PC_2_SYMLINKS => Ok(1),
        libc::_PC_ASYNC_IO => Ok(1),
        // Of terminals.
        libc::_PC_MAX_CANON | libc::_PC_MAX_INPUT => Ok(CANON_MAX),
        libc::_PC_VDISABLE => Ok(0),
        libc::_PC_REC_MIN_XFER_SIZE | libc::_PC_REC_XFER_ALIGN | libc::_PC_ALLOC_SIZE_MIN => {
            Ok(TRANSFER_LEN)
        }
        libc::_PC_SYNC_IO
        | libc::_PC_PRIO_IO
        | libc::_PC_SOCK_MAXBUF
        | libc::_PC_REC_INCR_XFER_SIZE
        | libc::_PC_REC_MAX_XFER_SIZE
        | libc::_PC_SYMLINK_MAX => Ok(-1),
        _ => Err(Errno::INVAL),
    }
}

/// Whether libc asks for the file before it answers.
const fn is_of_file(name: c_int) -> bool {
    matches!(
        name,
        libc::_PC_LINK_MAX
            | libc::_PC_NAME_MAX
            | libc::_PC_CHOWN_RESTRICTED
            | libc::_PC_ASYNC_IO
            | libc::_PC_FILESIZEBITS
            | libc::_PC_REC_MIN_XFER_SIZE
            | libc::_PC_REC_XFER_ALIGN
            | libc::_PC_ALLOC_SIZE_MIN
            | libc::_PC_2_SYMLINKS
    )
}

hooks! {
    fn realpath(path: *const c_char, out: *mut c_char) -> *mut c_char {
        by_path!(AT_FDCWD, path, real(path, out), |place| resolve(place, out, PATH_MAX))
    }

    fn __realpath_chk(path: *const c_char, out: *mut c_char, room: size_t) -> *mut c_char {
        by_path!(AT_FDCWD, path, real(path, out, room), |place| resolve(place, out, room.min(PATH_MAX)))
    }

    fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        by_path!(AT_FDCWD, path, real(path), |place| resolve(place, std::ptr::null_mut(), 0))
    }

    fn name_to_handle_at(dirfd: c_int, path: *const c_char, handle: *mut c_void, mount: *mut c_int, flags: c_int) -> c_int {
        if means_descriptor(dirfd, path, flags) {
            return answer(Err(Errno::OPNOTSUPP));
        }
        by_path!(dirfd, path, real(dirfd, path, handle, mount, flags), |place| {
            place.at()?;
            Err(Errno::OPNOTSUPP)
        })
    }

    fn pathconf(path: *const c_char, name: c_int) -> c_long {
        by_path!(AT_FDCWD, path, real(path, name), |place| {
            if is_of_file(name) {
                look(place, true)?;
            }
            limit(name)
        })
    }

    fn fpathconf(fd: c_int, name: c_int) -> c_long {
        by_fd!(fd, real(fd, name), |open| {
            let _ = &open;
            limit(name)
        })
    }
}
