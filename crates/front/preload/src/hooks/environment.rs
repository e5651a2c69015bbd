//! The kind of a descriptor: not a terminal, not a device.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use libc::{c_ulong, size_t};
use rustix::io::Errno;

use crate::hook::{by_open_fd, hooks};
use crate::hooks::reading::seek;
use crate::hooks::status::look_open;
use crate::real::set_errno;
use crate::table::OpenDescription;
use crate::{foreign, raw, table};

fn control(
    fd: c_int,
    open: &OpenDescription,
    request: c_ulong,
    argument: *mut c_void,
) -> Result<c_int, Errno> {
    match request {
        libc::FIOCLEX => raw::control(fd, libc::F_SETFD, libc::FD_CLOEXEC as c_ulong),
        libc::FIONCLEX => raw::control(fd, libc::F_SETFD, 0),
        libc::FIONBIO => Ok(0),
        libc::FIONREAD => {
            let at = seek(open, 0, libc::SEEK_CUR)?;
            let left = look_open(open)?.size.saturating_sub(at.cast_unsigned());
            foreign::put(argument.cast::<c_int>(), c_int::try_from(left).unwrap_or(c_int::MAX))?;
            Ok(0)
        }
        FICLONE | FICLONERANGE => Err(Errno::OPNOTSUPP),
        _ => Err(Errno::NOTTY),
    }
}

const FICLONE: c_ulong = 0x4004_9409;
const FICLONERANGE: c_ulong = 0x4020_940d;

fn not_a_terminal(fd: c_int) -> bool {
    let ours = table::has(fd);
    if ours {
        set_errno(libc::ENOTTY);
    }
    ours
}

hooks! {
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        by_open_fd!(fd, real(fd, request, argument), |open| control(fd, &open, request, argument))
    }

    fn isatty(fd: c_int) -> c_int {
        if not_a_terminal(fd) { 0 } else { real(fd) }
    }

    fn ttyname(fd: c_int) -> *mut c_char {
        if not_a_terminal(fd) { null_mut() } else { real(fd) }
    }

    fn __ttyname_r_chk(fd: c_int, out: *mut c_char, room: size_t, whole: size_t) -> c_int {
        if table::has(fd) { libc::ENOTTY } else { real(fd, out, room, whole) }
    }

    fn ttyname_r(fd: c_int, out: *mut c_char, room: size_t) -> c_int {
        if table::has(fd) { libc::ENOTTY } else { real(fd, out, room) }
    }

    fn tcgetattr(fd: c_int, out: *mut c_void) -> c_int {
        if not_a_terminal(fd) { -1 } else { real(fd, out) }
    }

    fn tcsetattr(fd: c_int, actions: c_int, to: *const c_void) -> c_int {
        if not_a_terminal(fd) { -1 } else { real(fd, actions, to) }
    }

    fn tcgetpgrp(fd: c_int) -> c_int {
        if not_a_terminal(fd) { -1 } else { real(fd) }
    }

    fn tcsetpgrp(fd: c_int, group: c_int) -> c_int {
        if not_a_terminal(fd) { -1 } else { real(fd, group) }
    }

    fn tcgetsid(fd: c_int) -> c_int {
        if not_a_terminal(fd) { -1 } else { real(fd) }
    }

    fn tcdrain(fd: c_int) -> c_int {
        if not_a_terminal(fd) { -1 } else { real(fd) }
    }

    fn tcflow(fd: c_int, action: c_int) -> c_int {
        if not_a_terminal(fd) { -1 } else { real(fd, action) }
    }

    fn tcflush(fd: c_int, queue: c_int) -> c_int {
        if not_a_terminal(fd) { -1 } else { real(fd, queue) }
    }

    fn tcsendbreak(fd: c_int, duration: c_int) -> c_int {
        if not_a_terminal(fd) { -1 } else { real(fd, duration) }
    }
}
