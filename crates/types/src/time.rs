//! Deadlines.

use std::time::Duration;

use crate::{Clock, SystemClock};

/// A point in time by which a call must have ended, on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Duration);

impl Deadline {
    /// The point `at` on the monotonic clock.
    #[must_use]
    pub const fn at_time(at: Duration) -> Self {
        Self(at)
    }

    /// `timeout` from now.
    #[must_use]
    pub fn after(timeout: Duration) -> Self {
        Self(SystemClock.monotonic().saturating_add(timeout))
    }

    /// Time left; `None` once it has passed.
    #[must_use]
    pub fn remaining(self) -> Option<Duration> {
        self.0.checked_sub(SystemClock.monotonic()).filter(|left| !left.is_zero())
    }

    /// The point itself, on the monotonic clock.
    #[must_use]
    pub const fn at(self) -> Duration {
        self.0
    }
}
