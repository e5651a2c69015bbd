//! Waiting on descriptors. A file of the store is always ready, like any regular file.

use std::ffi::{c_int, c_short};

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::hook::hooks;
use crate::real::set_errno;
use crate::table;

const READY: c_short = libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM;

/// `poll` over a list with files of the store: they are left out (-1 is skipped), and the rest is asked without waiting.
fn poll_mixed(list: &mut [pollfd], ask: impl FnOnce(&mut [pollfd]) -> c_int) -> c_int {
    let numbers: Vec<c_int> = list.iter().map(|entry| entry.fd).collect();
    for entry in list.iter_mut().filter(|entry| table::has(entry.fd)) {
        entry.fd = -1;
    }
    let mut ready = ask(list);
    for (entry, fd) in list.iter_mut().zip(numbers) {
        if entry.fd != fd {
            entry.fd = fd;
            entry.revents = entry.events & READY;
            if ready >= 0 && entry.revents != 0 {
                ready += 1;
            }
        }
    }
    ready
}

fn list<'a>(start: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if start.is_null() || count == 0 || count > c_int::MAX as nfds_t {
        return None;
    }
    // SAFETY: the program vouches for `count` entries.
    let list = unsafe { std::slice::from_raw_parts_mut(start, count as usize) };
    list.iter().any(|entry| table::has(entry.fd) && entry.events & READY != 0).then_some(list)
}

/// A copy of a set, for putting the files of the store back in.
fn taken_out(set: *mut fd_set, count: c_int) -> Vec<c_int> {
    if set.is_null() {
        return Vec::new();
    }
    let mut ours = Vec::new();
    for fd in 0..count.min(libc::FD_SETSIZE as c_int) {
        // SAFETY: the program vouches for its set; `fd` is within it.
        unsafe {
            if table::has(fd) && libc::FD_ISSET(fd, set) {
                libc::FD_CLR(fd, set);
                ours.push(fd);
            }
        }
    }
    ours
}

/// `select` over sets with files of the store.
fn select_mixed(
    count: c_int,
    [read, write, except]: [*mut fd_set; 3],
    ask: impl FnOnce() -> c_int,
) -> c_int {
    let (reads, writes) = (taken_out(read, count), taken_out(write, count));
    taken_out(except, count);
    let mut ready = ask();
    if ready >= 0 {
        for (set, ours) in [(read, reads), (write, writes)] {
            for fd in ours {
                // SAFETY: as in `taken_out`.
                unsafe { libc::FD_SET(fd, set) };
                ready += 1;
            }
        }
    }
    ready
}

fn concerns(count: c_int, sets: [*mut fd_set; 2]) -> bool {
    !table::is_unused()
        && sets.into_iter().filter(|set| !set.is_null()).any(|set| {
            // SAFETY: as in `taken_out`.
            (0..count.min(libc::FD_SETSIZE as c_int))
                .any(|fd| table::has(fd) && unsafe { libc::FD_ISSET(fd, set) })
        })
}

static NO_TIME: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

hooks! {
    fn poll = __poll (entries: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        match list(entries, count) {
            Some(list) => poll_mixed(list, |list| real(list.as_mut_ptr(), count, 0)),
            None => real(entries, count, timeout),
        }
    }

    fn __poll_chk(entries: *mut pollfd, count: nfds_t, timeout: c_int, room: usize) -> c_int {
        match list(entries, count) {
            Some(list) => poll_mixed(list, |list| real(list.as_mut_ptr(), count, 0, room)),
            None => real(entries, count, timeout, room),
        }
    }

    fn ppoll(entries: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        match list(entries, count) {
            Some(list) => poll_mixed(list, |list| real(list.as_mut_ptr(), count, &raw const NO_TIME, mask)),
            None => real(entries, count, timeout, mask),
        }
    }

    fn __ppoll_chk(entries: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: usize) -> c_int {
        match list(entries, count) {
            Some(list) => poll_mixed(list, |list| real(list.as_mut_ptr(), count, &raw const NO_TIME, mask, room)),
            None => real(entries, count, timeout, mask, room),
        }
    }

    fn select = __select (count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int {
        if !concerns(count, [read, write]) {
            return real(count, read, write, except, timeout);
        }
        let mut none = timeval { tv_sec: 0, tv_usec: 0 };
        select_mixed(count, [read, write, except], || real(count, read, write, except, &raw mut none))
    }

    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        if !concerns(count, [read, write]) {
            return real(count, read, write, except, timeout, mask);
        }
        select_mixed(count, [read, write, except], || real(count, read, write, except, &raw const NO_TIME, mask))
    }

    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        if table::has(fd) {
            // As for any regular file: programs then take it for always ready.
            set_errno(libc::EPERM);
            return -1;
        }
        real(epoll, operation, fd, event)
    }
}
