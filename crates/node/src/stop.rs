//! Telling a node to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Handle that stops the node it was given to. Clones mean the same node.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    asked: Arc<AtomicBool>,
}

impl Stop {
    /// A handle for one node.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the node to stop: it finishes what it has accepted, takes nothing new, and [`crate::run`] returns.
    pub fn stop(&self) {
        self.asked.store(true, Ordering::Release);
    }

    /// Whether it was asked to.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}
