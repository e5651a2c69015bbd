//! Telling a node to stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use samite_transport::server::LoopWaker;

use crate::mutex::lock;

/// Handle that stops the node it was given to. Clones mean the same node.
#[derive(Clone, Debug, Default)]
pub struct StopHandle {
    asked: Arc<AtomicBool>,
    wakers: Arc<Mutex<Vec<LoopWaker>>>,
}

impl StopHandle {
    /// A handle for one node.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the node to stop: it sends the replies under way, takes nothing new, and [`crate::run`]
    /// returns. Not for signal handlers: let a thread wait for the signal.
    pub fn stop(&self) {
        self.asked.store(true, Ordering::Release);
        for waker in lock(&self.wakers).iter() {
            waker.wake();
        }
    }

    /// Whether it was asked to.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.asked
    }

    /// The loops to wake; a loop that starts after [`StopHandle::stop`] looks at the flag first.
    pub(crate) fn watch(&self, wakers: Vec<LoopWaker>) {
        *lock(&self.wakers) = wakers;
    }
}
