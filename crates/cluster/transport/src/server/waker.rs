//! Waking an event loop from other threads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::EventfdFlags;
use rustix::io::Errno;

use crate::doorbell::ring_doorbell;

#[derive(Debug)]
struct WakerState {
    /// Watched edge-triggered, so that nobody needs to read it.
    doorbell: OwnedFd,
    rung: AtomicBool,
    sleeps: AtomicBool,
}

/// Wakes an [`EventLoop`](super::EventLoop) from another thread; see [`Service::wakeup`](super::NodeService::wakeup).
#[derive(Clone, Debug)]
pub struct LoopWaker(Arc<WakerState>);

impl LoopWaker {
    pub(super) fn new() -> Result<Self, Errno> {
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(WakerState {
            doorbell,
            rung: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
        })))
    }

    /// Makes the loop call [`Service::wakeup`](super::NodeService::wakeup) soon. No system call when the loop is awake.
    pub fn wake(&self) {
        // The thread that was first rings, or the loop looks before it sleeps.
        if !self.0.rung.swap(true, Ordering::SeqCst) && self.0.sleeps.load(Ordering::SeqCst) {
            ring_doorbell(self.0.doorbell.as_fd());
        }
    }

    pub(super) fn wake_descriptor(&self) -> BorrowedFd<'_> {
        self.0.doorbell.as_fd()
    }

    /// The loop is about to wait in the kernel. `false`: it must not, the waker was used.
    pub(super) fn may_sleep(&self) -> bool {
        self.0.sleeps.store(true, Ordering::SeqCst);
        !self.0.rung.load(Ordering::SeqCst)
    }

    pub(super) fn awake(&self) {
        self.0.sleeps.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_rung(&self) -> bool {
        self.0.rung.load(Ordering::Relaxed)
    }

    /// Whether the waker was used since the last call.
    pub(super) fn take(&self) -> bool {
        self.is_rung() && self.0.rung.swap(false, Ordering::SeqCst)
    }
}
