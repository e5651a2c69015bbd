//! Descriptors of the store that travel over sockets, and calls that are for sockets only.
//!
//! A placeholder says which session its open file belongs to, but not which slot of it. So a
//! *ticket* travels in its place: the session's memory file, opened once more, with a file offset
//! that names the slot. A receiver that knows nothing of the store reads the end of a file from it,
//! and can write nothing; with this library it becomes a placeholder again, at the number that the
//! kernel gave it. While it travels the ticket counts as a process that has the open file.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, OwnedFd};

use libc::{cmsghdr, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};
use rustix::io::Errno;

use crate::hook::{attempt, hooks};
use crate::real::set_errno;
use crate::table::{self, DescriptionUse};
use crate::{raw, session};

/// A message that is not quite the program's.
struct SocketMessage {
    control: Vec<u8>,
    tickets: Vec<OwnedFd>,
    travelling: Vec<DescriptionUse>,
}

/// Calls `visit` with the place of each descriptor in the control part of a message.
fn each_descriptor(message: &msghdr, mut visit: impl FnMut(*mut c_int)) {
    // SAFETY: the program, or the kernel, made the control part; the macros stay within its length.
    unsafe {
        let mut next: *mut cmsghdr = libc::CMSG_FIRSTHDR(message);
        while !next.is_null() {
            let head = next.read_unaligned();
            if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
                let bytes = (head.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(next).cast::<c_int>();
                for index in 0..bytes / size_of::<c_int>() {
                    visit(first.add(index));
                }
            }
            next = libc::CMSG_NXTHDR(message, next);
        }
    }
}

/// The message that is sent instead of another; `None`: no descriptor of the store is in it.
fn outgoing(message: *const msghdr) -> Result<Option<SocketMessage>, Errno> {
    // SAFETY: the program vouches for its message.
    let Some(message) = (unsafe { message.as_ref() }) else { return Ok(None) };
    if message.msg_control.is_null() || message.msg_controllen == 0 || table::is_unused() {
        return Ok(None);
    }
    let mut concerned = false;
    // SAFETY: `each_descriptor` gives places within the control part.
    each_descriptor(message, |place| concerned |= table::has(unsafe { place.read_unaligned() }));
    if !concerned {
        return Ok(None);
    }
    let len = message.msg_controllen;
    let mut control = vec![0; len];
    // SAFETY: the program vouches for `len` bytes.
    unsafe { message.msg_control.cast::<u8>().copy_to_nonoverlapping(control.as_mut_ptr(), len) };
    let mut new = SocketMessage { control, tickets: Vec::new(), travelling: Vec::new() };
    let mut copy = *message;
    copy.msg_control = new.control.as_mut_ptr().cast();
    let mut failed = None;
    each_descriptor(&copy, |place| {
        // SAFETY: within the copy.
        let fd = unsafe { place.read_unaligned() };
        let Some(open) = table::get(fd) else { return };
        match table::describe(&open).and_then(|()| session::slot_ticket(fd, table::slot_id(&open)))
        {
            Ok(ticket) => {
                // SAFETY: within the copy.
                unsafe { place.write_unaligned(ticket.as_raw_fd()) };
                open.slot().open_reference();
                new.tickets.push(ticket);
                new.travelling.push(open);
            }
            Err(error) => failed = Some(error),
        }
    });
    match failed {
        None => Ok(Some(new)),
        Some(error) => {
            new.stay();
            Err(error)
        }
    }
}

impl SocketMessage {
    fn message(&mut self, original: &msghdr) -> msghdr {
        let mut copy = *original;
        copy.msg_control = self.control.as_mut_ptr().cast();
        copy
    }

    /// The message was not sent.
    fn stay(&self) {
        for open in &self.travelling {
            open.slot().let_go();
        }
    }
}

fn send_message(message: *const msghdr, real: impl FnOnce(*const msghdr) -> ssize_t) -> ssize_t {
    match attempt(|| outgoing(message)) {
        Ok(None) => real(message),
        Ok(Some(mut new)) => {
            // SAFETY: not null, or there would be nothing to send.
            let copy = new.message(unsafe { &*message });
            let sent = real(&raw const copy);
            if sent < 0 {
                new.stay();
            }
            sent
        }
        Err(failed) => {
            set_errno(failed.raw_os_error());
            -1
        }
    }
}

/// One message after the other: how many were sent, or the first one's failure.
fn send_many(messages: *mut mmsghdr, count: c_uint, real: impl Fn(*mut mmsghdr) -> c_int) -> c_int {
    let mut done = 0;
    while done < count {
        // SAFETY: the program vouches for `count` messages.
        let entry = unsafe { messages.add(done as usize) };
        // SAFETY: as above.
        let outcome = send_message(unsafe { &raw const (*entry).msg_hdr }, |message| {
            // SAFETY: a message of `send_message`'s, or the program's own.
            let mut one = mmsghdr { msg_hdr: unsafe { *message }, msg_len: 0 };
            let outcome = real(&raw mut one);
            // SAFETY: as above.
            unsafe { (*entry).msg_len = one.msg_len };
            outcome as ssize_t
        });
        if outcome != 1 {
            return if done > 0 { done.cast_signed() } else { outcome as c_int };
        }
        done += 1;
    }
    done.cast_signed()
}

/// Whether any of the messages has a control part.
fn has_control(messages: *const mmsghdr, count: c_uint) -> bool {
    !table::is_unused()
        && !messages.is_null()
        // SAFETY: the program vouches for `count` messages.
        && (0..count as usize).any(|index| unsafe { (*messages.add(index)).msg_hdr.msg_controllen > 0 })
}

/// Turns the tickets of a message that came into placeholders.
fn receive(message: *const msghdr) {
    // SAFETY: the program vouches for its message, which the kernel has just filled.
    let Some(message) = (unsafe { message.as_ref() }) else { return };
    if message.msg_control.is_null() || message.msg_controllen == 0 {
        return;
    }
    each_descriptor(message, |place| {
        // SAFETY: within what the kernel wrote.
        let fd = unsafe { place.read_unaligned() };
        // The number was free: the file that it stood for here is gone.
        drop(table::remove(fd));
        // A ticket that cannot be taken in stays one, from which nothing can be read.
        let _ = attempt(|| admit(fd));
    });
}

fn admit(fd: c_int) -> Result<(), Errno> {
    let Some(id) = session::redeem(fd)? else { return Ok(()) };
    let close_on_exec = raw::closes_on_exec(fd);
    session::replace(fd, close_on_exec)?;
    let known = table::each_from(0).map(|(_, open)| open).find(|open| table::slot_id(open) == id);
    let open = match known {
        Some(open) => {
            // This process had it already.
            open.slot().let_go();
            open
        }
        None => {
            let open = table::take_over(id).ok_or(Errno::BADF)?;
            open.locks.join(open.slot(), open.file()?.ino())?;
            open
        }
    };
    table::set(fd, open)
}

pub fn not_a_socket(fd: c_int) -> bool {
    let ours = table::has(fd);
    if ours {
        set_errno(libc::ENOTSOCK);
    }
    ours
}

hooks! {
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        if not_a_socket(fd) { return -1 }
        send_message(message, |message| real(fd, message, flags))
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        if not_a_socket(fd) { return -1 }
        if !has_control(messages, count) {
            return real(fd, messages, count, flags);
        }
        send_many(messages, count, |message| real(fd, message, 1, flags))
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        if not_a_socket(fd) { return -1 }
        let len = real(fd, message, flags);
        if len >= 0 {
            receive(message);
        }
        len
    }

    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        if not_a_socket(fd) { return -1 }
        let came = real(fd, messages, count, flags, timeout);
        for index in 0..usize::try_from(came).unwrap_or(0) {
            // SAFETY: the kernel filled so many of the program's messages.
            receive(unsafe { &raw const (*messages.add(index)).msg_hdr });
        }
        came
    }

    fn send = __send (fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        if not_a_socket(fd) { -1 } else { real(fd, from, len, flags) }
    }

    fn recv(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        if not_a_socket(fd) { -1 } else { real(fd, into, len, flags) }
    }

    fn __recv_chk(fd: c_int, into: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
        if not_a_socket(fd) { -1 } else { real(fd, into, len, room, flags) }
    }

    fn recvfrom(fd: c_int, into: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t {
        if not_a_socket(fd) { -1 } else { real(fd, into, len, flags, from, from_len) }
    }

    fn __recvfrom_chk(fd: c_int, into: *mut c_void, len: size_t, room: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t {
        if not_a_socket(fd) { -1 } else { real(fd, into, len, room, flags, from, from_len) }
    }

    fn getsockname(fd: c_int, out: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if not_a_socket(fd) { -1 } else { real(fd, out, len) }
    }

    fn getpeername(fd: c_int, out: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if not_a_socket(fd) { -1 } else { real(fd, out, len) }
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, out: *mut c_void, len: *mut socklen_t) -> c_int {
        if not_a_socket(fd) { -1 } else { real(fd, level, name, out, len) }
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        if not_a_socket(fd) { -1 } else { real(fd, level, name, value, len) }
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        if not_a_socket(fd) { -1 } else { real(fd, how) }
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int {
        if not_a_socket(fd) { -1 } else { real(fd, backlog) }
    }

    fn accept(fd: c_int, out: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if not_a_socket(fd) { -1 } else { real(fd, out, len) }
    }

    fn accept4(fd: c_int, out: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        if not_a_socket(fd) { -1 } else { real(fd, out, len, flags) }
    }
}
