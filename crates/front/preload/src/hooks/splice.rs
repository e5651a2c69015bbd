//! `splice` between a file of the store and a pipe: read and written, where the kernel moves pages.
//!
//! Waiting for the pipe happens outside of the guard, like any wait that others end.

use std::ffi::{c_int, c_uint};

use libc::{loff_t, size_t, ssize_t};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use samite_fs::FileKind;

use crate::hook::{answer, attempt, hooks};
use crate::hooks::reading::{read_at, read_next, seek, write_at, write_next};
use crate::table::{self, DescriptionUse};
use crate::{foreign, raw};

/// Memory for one call, in bytes.
const MOVED_MAX: usize = 1 << 20;
/// The bytes that a pipe takes at once when it says that there is room.
const ROOM_MIN: usize = 4096;
const FLAGS: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

/// The kernel's end.
#[derive(Clone, Copy)]
struct Pipe {
    fd: c_int,
    waits: bool,
}

impl Pipe {
    /// `mode`: the access that it must be open for, as of `O_ACCMODE`.
    fn new(fd: c_int, mode: OFlags, flags: c_uint) -> Result<Self, Errno> {
        let end = raw::borrowed_fd(fd)?;
        let status = rustix::fs::fcntl_getfl(end)?;
        let access = status & OFlags::RWMODE;
        if access != mode && access != OFlags::RDWR {
            return Err(Errno::BADF);
        }
        if FileType::from_raw_mode(rustix::fs::fstat(end)?.st_mode) != FileType::Fifo {
            return Err(Errno::INVAL);
        }
        let waits = flags & libc::SPLICE_F_NONBLOCK == 0 && !status.contains(OFlags::NONBLOCK);
        Ok(Self { fd, waits })
    }

    /// Waits until the pipe is ready, or its other end has been closed.
    fn wait(self, wanted: PollFlags) -> Result<(), Errno> {
        if self.is_ready(wanted, self.waits)? { Ok(()) } else { Err(Errno::AGAIN) }
    }

    fn is_ready(self, wanted: PollFlags, waits: bool) -> Result<bool, Errno> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let limit = if waits { None } else { Some(&at_once) };
        let end = raw::borrowed_fd(self.fd)?;
        Ok(poll(&mut [PollFd::new(&end, wanted)], limit)? != 0)
    }

    /// Bytes that fit without a wait, once it is ready.
    fn room(self) -> Result<usize, Errno> {
        let end = raw::borrowed_fd(self.fd)?;
        if rustix::io::ioctl_fionread(end)? == 0 {
            return rustix::pipe::fcntl_getpipe_size(end);
        }
        Ok(ROOM_MIN)
    }
}

/// Fails unless bytes of the file can be moved.
fn check_file(open: &DescriptionUse) -> Result<(), Errno> {
    if open.file()?.kind() == FileKind::File { Ok(()) } else { Err(Errno::INVAL) }
}

/// An offset of the caller's own; `None`: that of the descriptor counts.
fn place(at: *mut loff_t) -> Result<Option<loff_t>, Errno> {
    if at.is_null() { Ok(None) } else { foreign::get(at).map(Some).ok_or(Errno::FAULT) }
}

/// Into the pipe: as much as it has room for.
fn out(open: &DescriptionUse, at: *mut loff_t, pipe: Pipe, len: size_t) -> Result<ssize_t, Errno> {
    let start = attempt(|| {
        open.check_readable()?;
        check_file(open)?;
        place(at)
    })?;
    if start.is_some_and(|start| start < 0) {
        return Err(Errno::INVAL);
    }
    let mut moved = 0;
    pipe.wait(PollFlags::OUT)?;
    while moved < len && moved < MOVED_MAX {
        let room = pipe.room()?.min(len - moved).min(MOVED_MAX);
        let piece =
            attempt(|| out_piece(open, start.map(|start| start + moved as loff_t), pipe, room));
        match piece {
            Ok(0) => break,
            Ok(piece) => moved += piece,
            Err(_) if moved > 0 => break,
            Err(failed) => return Err(failed),
        }
        if !matches!(pipe.is_ready(PollFlags::OUT, false), Ok(true)) {
            break;
        }
    }
    if let Some(start) = start {
        foreign::put(at, start + moved as loff_t)?;
    }
    Ok(moved.cast_signed())
}

fn out_piece(
    open: &DescriptionUse,
    at: Option<loff_t>,
    pipe: Pipe,
    room: usize,
) -> Result<usize, Errno> {
    let mut bytes = vec![0; room];
    let len = match at {
        Some(at) => read_at(open, &mut bytes, at)?,
        None => read_next(open, &mut bytes)?,
    };
    if len == 0 {
        return Ok(0);
    }
    let outcome = raw::write(pipe.fd, &bytes[..len], None);
    let missing = len - *outcome.as_ref().unwrap_or(&0);
    if at.is_none() && missing > 0 {
        seek(open, -(missing as loff_t), libc::SEEK_CUR)?;
    }
    outcome
}

/// Out of the pipe: the bytes that are in it. Bytes that then find no room in the store are gone
/// from the pipe, which an error tells.
fn into(open: &DescriptionUse, at: *mut loff_t, pipe: Pipe, len: size_t) -> Result<ssize_t, Errno> {
    let start = attempt(|| {
        open.check_writable()?;
        if open.status() & libc::O_APPEND != 0 {
            return Err(Errno::INVAL);
        }
        check_file(open)?;
        place(at)
    })?;
    if start.is_some_and(|start| start < 0) {
        return Err(Errno::INVAL);
    }
    if !pipe.waits {
        pipe.wait(PollFlags::IN)?;
    }
    let mut bytes = vec![0; len.min(MOVED_MAX)];
    let taken = raw::read(pipe.fd, &mut bytes, None)?;
    let mut written = 0;
    let outcome = attempt(|| {
        while written < taken {
            let rest = &bytes[written..taken];
            written += match start {
                Some(start) => write_at(open, rest, start + written as loff_t)?,
                None => write_next(open, rest)?,
            };
        }
        Ok(())
    });
    if let Some(start) = start {
        foreign::put(at, start + written as loff_t)?;
    }
    outcome.map(|()| taken.cast_signed())
}

fn between(
    (from, from_at): (c_int, *mut loff_t),
    (to, to_at): (c_int, *mut loff_t),
    len: size_t,
    flags: c_uint,
) -> Result<ssize_t, Errno> {
    if len == 0 {
        return Ok(0);
    }
    if flags & !FLAGS != 0 {
        return Err(Errno::INVAL);
    }
    match (table::get(from), table::get(to)) {
        (Some(open), None) => {
            let pipe = Pipe::new(to, OFlags::WRONLY, flags)?;
            if to_at.is_null() { out(&open, from_at, pipe, len) } else { Err(Errno::SPIPE) }
        }
        (None, Some(open)) => {
            let pipe = Pipe::new(from, OFlags::RDONLY, flags)?;
            if from_at.is_null() { into(&open, to_at, pipe, len) } else { Err(Errno::SPIPE) }
        }
        _ => Err(Errno::INVAL),
    }
}

hooks! {
    fn splice(from: c_int, from_at: *mut loff_t, to: c_int, to_at: *mut loff_t, len: size_t, flags: c_uint) -> ssize_t {
        if !table::has(from) && !table::has(to) {
            return real(from, from_at, to, to_at, len, flags);
        }
        let before = crate::real::errno();
        let outcome = between((from, from_at), (to, to_at), len, flags);
        if outcome.is_ok() {
            crate::real::set_errno(before);
        }
        answer(outcome)
    }
}
