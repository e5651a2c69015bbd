//! File locks, which the store does not have yet: a lock that is not taken is never reported as taken.

use std::ffi::c_int;

use libc::off_t;
use rustix::io::Errno;

use crate::hook::{by_fd, hooks};

hooks! {
    fn flock(fd: c_int, operation: c_int) -> c_int {
        by_fd!(fd, real(fd, operation), |open| {
            let _ = (&open, operation);
            Err(Errno::NOLCK)
        })
    }

    fn lockf = lockf64 (fd: c_int, command: c_int, len: off_t) -> c_int {
        by_fd!(fd, real(fd, command, len), |open| {
            let _ = (&open, command, len);
            Err(Errno::NOLCK)
        })
    }
}
