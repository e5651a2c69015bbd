//! `close`, `dup`, `fcntl`, and what must not happen to this library's own descriptors.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;

use libc::c_ulong;
use rustix::io::Errno;

use crate::hook::{attempt, guard, hooks};
use crate::hooks::locks::{self as locks_of, is_lock_command};
use crate::hooks::{owner, stdio};
use crate::real::set_errno;
use crate::table::{self, DescriptionUse};
use crate::{locks, own_descriptors, raw};

/// Closes a descriptor of the store. The program hears of a failure to settle what was written: nobody can tell it later.
pub fn close_open(fd: c_int) -> Result<c_int, Errno> {
    let open = table::remove(fd).ok_or(Errno::BADF)?;
    locks::process_closes(&open);
    // The number is free from here on, and the placeholder has nothing to lose.
    raw::close(fd);
    let settled = open.settle();
    drop(open);
    settled.map(|()| 0)
}

/// The end of `dup` and its kin for `fd`, now that it stands for `open`, or for a file of the
/// kernel's.
fn became(fd: c_int, open: Option<DescriptionUse>) -> Result<c_int, Errno> {
    match open {
        Some(open) => table::set(fd, open)?,
        None => drop(table::remove(fd)),
    }
    stdio::redirect(fd);
    Ok(fd)
}

fn duplicate(old: c_int, floor: c_int, close_on_exec: bool) -> Result<c_int, Errno> {
    let open = table::get(old).ok_or(Errno::BADF)?;
    became(raw::duplicate_from(old, floor, close_on_exec)?, Some(open))
}

fn duplicate_to(old: c_int, new: c_int, flags: c_int) -> Result<c_int, Errno> {
    if own_descriptors::is_ours(new) || own_descriptors::is_ours(old) {
        return Err(Errno::BADF);
    }
    let open = table::get(old);
    let before = table::get(new);
    raw::duplicate_to(old, new, flags)?;
    if let Some(before) = before {
        // As close(2) does at this point, dup2 keeps a failure to itself.
        let _ = before.settle();
        locks::process_closes(&before);
    }
    became(new, open)
}

/// Whether `dup2` concerns the store.
fn concerns(old: c_int, new: c_int) -> bool {
    table::has(old)
        || table::has(new)
        || own_descriptors::is_ours(new)
        || own_descriptors::is_ours(old)
}

const SETTABLE: c_int =
    libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOATIME | libc::O_DIRECT | libc::O_ASYNC;
/// Linux tells this of every file opened by a 64-bit program.
const LARGE_FILE: c_int = 0o100_000;

fn control(fd: c_int, command: c_int, argument: c_ulong) -> Result<c_int, Errno> {
    let open = table::get(fd).ok_or(Errno::BADF)?;
    let number = c_int::try_from(argument.cast_signed()).unwrap_or(-1);
    match command {
        libc::F_DUPFD => duplicate(fd, number, false),
        libc::F_DUPFD_CLOEXEC => duplicate(fd, number, true),
        // The kernel keeps the close-on-exec flag, on the placeholder.
        libc::F_GETFD | libc::F_SETFD => raw::control(fd, command, argument),
        libc::F_GETFL if open.status() & libc::O_PATH != 0 => Ok(open.status()),
        libc::F_GETFL => Ok(open.status() | LARGE_FILE),
        _ if open.status() & libc::O_PATH != 0 => Err(Errno::BADF),
        libc::F_SETFL => {
            let status = (open.status() & !SETTABLE) | (number & SETTABLE);
            open.slot().status.store(status.cast_unsigned(), Ordering::Relaxed);
            open.file()?.set_append(status & libc::O_APPEND != 0);
            Ok(0)
        }
        _ => owner::control(&open, command, argument),
    }
}

/// Highest number that any kernel's default limit of open files allows.
const NUMBERS_MAX: c_uint = 1 << 20;

/// Closes every descriptor of `first..=last` except this library's own.
fn close_span(
    first: c_uint,
    last: c_uint,
    flags: c_uint,
    close: impl Fn(c_uint, c_uint) -> c_int,
) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC == 0 {
        let open = attempt(|| {
            for (fd, _) in table::each_from(c_int::try_from(first).unwrap_or(c_int::MAX)) {
                if fd.cast_unsigned() > last {
                    break;
                }
                // There is no way to tell the program of one file among many.
                let _ = close_open(fd);
            }
            Ok(())
        });
        if open.is_err() {
            set_errno(libc::EDEADLK);
            return -1;
        }
    }
    let mut from = first;
    for ours in own_descriptors::each() {
        let ours = ours.cast_unsigned();
        if ours < from || ours > last {
            continue;
        }
        if ours > from && close(from, ours - 1) != 0 {
            return -1;
        }
        from = ours + 1;
    }
    if from <= last { close(from, last) } else { 0 }
}

hooks! {
    fn close = __close (fd: c_int) -> c_int {
        if table::has(fd) {
            return guard(|| close_open(fd));
        }
        if own_descriptors::is_ours(fd) {
            set_errno(libc::EBADF);
            return -1;
        }
        real(fd)
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if first > last {
            return real(first, last, flags);
        }
        close_span(first, last, flags.cast_unsigned(), |first, last| real(first, last, flags))
    }

    fn closefrom(first: c_int) -> () {
        let first = first.max(0).cast_unsigned();
        close_span(first, c_uint::MAX, 0, |first, last| {
            if raw::close_range(first, last).is_err() {
                // A kernel without close_range: one by one, as libc does.
                for fd in first..=last.min(NUMBERS_MAX) {
                    raw::close(fd.cast_signed());
                }
            }
            0
        });
    }

    fn dup(old: c_int) -> c_int {
        if table::has(old) { guard(|| duplicate(old, 0, false)) } else { real(old) }
    }

    fn dup2 = __dup2 (old: c_int, new: c_int) -> c_int {
        if !concerns(old, new) {
            return real(old, new);
        }
        if old == new && table::has(old) {
            return new;
        }
        guard(|| duplicate_to(old, new, 0))
    }

    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        if old == new || !concerns(old, new) {
            return real(old, new, flags);
        }
        guard(|| duplicate_to(old, new, flags))
    }

    fn fcntl = fcntl64 = __fcntl (fd: c_int, command: c_int, argument: c_ulong) -> c_int {
        if table::has(fd) {
            if is_lock_command(command) {
                return locks_of::control(fd, command, argument as *mut libc::flock);
            }
            return guard(|| control(fd, command, argument));
        }
        if own_descriptors::is_ours(fd) {
            set_errno(libc::EBADF);
            return -1;
        }
        real(fd, command, argument)
    }
}
