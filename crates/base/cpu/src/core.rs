//! The core of this thread, and short waits on it.

use std::time::Duration;

use rustix::time::Timespec;
use samite_types::{Clock, SystemClock};

/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 16;

/// The core that this thread runs on now, counted from 1.
#[inline]
#[must_use]
pub fn this_core() -> u32 {
    rustix::thread::sched_getcpu() as u32 + 1
}

/// Polls until `is_done`, at most for `time`. Returns whether it is.
#[inline]
pub fn poll_for(time: Duration, is_done: impl Fn() -> bool) -> bool {
    let until = SystemClock.monotonic() + time;
    loop {
        for _ in 0..POLLS_PER_LOOK {
            if is_done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if SystemClock.monotonic() >= until {
            return false;
        }
    }
}

/// A duration as the kernel takes it; one that is too long saturates.
#[inline]
#[must_use]
pub fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_ends_when_it_is_done_or_the_time_is_over() {
        assert!(poll_for(Duration::ZERO, || true));
        assert!(!poll_for(Duration::ZERO, || false));
        let left = std::cell::Cell::new(100_000);
        let is_done = || left.replace(left.get() - 1) == 0;
        assert!(poll_for(Duration::from_secs(3600), is_done));
    }

    #[test]
    fn durations_keep_their_nanoseconds_and_saturate() {
        let time = timespec(Duration::new(3, 7));
        assert_eq!((time.tv_sec, time.tv_nsec), (3, 7));
        assert_eq!(timespec(Duration::MAX).tv_sec, i64::MAX);
    }
}
