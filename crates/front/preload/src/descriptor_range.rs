//! The range of numbers for this library's own descriptors, out of the program's way.
//!
//! A shell expects `exec 3>f` to get 3, and closes whatever it finds up to some number. So our own descriptors
//! live high, in a range of numbers of which this module remembers what is ours. The connections of
//! the store are not counted here: [`own_descriptors`](crate::own_descriptors) has both.

use std::ffi::c_int;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::raw;

/// Numbers in the range.
const RANGE: i32 = 256;
/// The range ends here at the latest: the kernel keeps an array up to the highest number in use, and copies it at every fork.
const END: u64 = 1024;
const WORDS: usize = RANGE as usize / 64;

/// First number of the range; 0 before the first descriptor.
static FLOOR: AtomicI32 = AtomicI32::new(0);
static OURS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// The range ends where the soft limit of open files does, if that is lower than [`END`].
fn floor() -> i32 {
    let known = FLOOR.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(END).min(END);
    let floor = (i32::try_from(limit).unwrap_or(1024) - RANGE).max(16);
    FLOOR.store(floor, Ordering::Relaxed);
    floor
}

/// Moves a descriptor up, until [`release`] or the end of this process.
pub fn keep(fd: OwnedFd) -> Result<c_int, Errno> {
    let high = rustix::io::fcntl_dupfd_cloexec(&fd, floor());
    // The kernel has it that a number beyond the limit is no number.
    let high = high.map_err(|failed| if failed == Errno::INVAL { Errno::MFILE } else { failed })?;
    let high = high.into_raw_fd();
    adopt(high);
    Ok(high)
}

/// Moves a descriptor up that its owner closes soon.
pub fn out_of_the_way(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, floor()).unwrap_or(fd)
}

/// Takes over a descriptor from before `exec`, under its number.
pub fn adopt(fd: c_int) {
    let place = fd - floor();
    if (0..RANGE).contains(&place) {
        OURS[place as usize / 64].fetch_or(1 << (place % 64), Ordering::Release);
    }
}

/// Closes one that was kept.
pub fn release(fd: c_int) {
    let place = fd - FLOOR.load(Ordering::Relaxed);
    if (0..RANGE).contains(&place) {
        OURS[place as usize / 64].fetch_and(!(1 << (place % 64)), Ordering::Release);
    }
    raw::close(fd);
}

/// Closes a descriptor that [`keep`] moved up.
pub fn give_up(fd: c_int) {
    if is_kept(fd) {
        let place = fd - floor();
        OURS[place as usize / 64].fetch_and(!(1 << (place % 64)), Ordering::Release);
    }
    raw::close(fd);
}

/// Whether this number is in the range, and kept.
#[inline]
pub fn is_kept(fd: c_int) -> bool {
    let floor = FLOOR.load(Ordering::Relaxed);
    if floor == 0 || fd < floor || fd >= floor + RANGE {
        return false;
    }
    let place = fd - floor;
    OURS[place as usize / 64].load(Ordering::Acquire) & (1 << (place % 64)) != 0
}

/// The descriptors that are kept, in order.
pub fn kept() -> Vec<c_int> {
    let floor = FLOOR.load(Ordering::Relaxed);
    let range = if floor == 0 { 0..0 } else { floor..floor + RANGE };
    range.filter(|fd| is_kept(*fd)).collect()
}
