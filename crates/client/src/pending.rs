//! Operations under way.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use samite_types::Result;

use crate::OwnedOutcome;

/// Operations that were sent; a future of their outcomes, which a plain thread can also [`wait`](Self::wait) for.
pub struct Pending {}

#[allow(clippy::todo, clippy::missing_errors_doc)]
impl Pending {
    /// Waits for the outcomes, in the order of the operations.
    pub fn wait(self) -> Result<Vec<OwnedOutcome>> {
        todo!()
    }
}

impl Future for Pending {
    type Output = Result<Vec<OwnedOutcome>>;

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Pending
    }
}
