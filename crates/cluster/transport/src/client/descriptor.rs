//! The descriptors of a link.

use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// An open descriptor that a forked child can close without a lock.
#[derive(Debug)]
pub(super) struct LinkDescriptor(AtomicI32);

impl LinkDescriptor {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self(AtomicI32::new(fd.into_raw_fd()))
    }

    pub(super) fn raw(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Relaxed)).filter(|raw| *raw >= 0)
    }

    pub(super) fn get(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor is open until `close`, which runs when `self` is dropped, or in a forked child that has no
        // other thread.
        self.raw().map(|raw| unsafe { BorrowedFd::borrow_raw(raw) })
    }

    pub(super) fn close(&self) {
        let raw = self.0.swap(-1, Ordering::Relaxed);
        if raw >= 0 {
            // SAFETY: `raw` came from an `OwnedFd`, and the swap has taken it from everybody else.
            drop(unsafe { OwnedFd::from_raw_fd(raw) });
        }
    }
}

impl Drop for LinkDescriptor {
    fn drop(&mut self) {
        self.close();
    }
}
