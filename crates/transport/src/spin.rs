//! How long to poll before sleeping.
//!
//! Polling finds what comes soon without the cost of a wake-up on either side; but it takes a core that somebody else may need.
//! So it starts with pauses, goes on with yields, and its time shrinks when it was fruitless and grows when what came,
//! came soon after.

use std::time::Duration;

use samite_types::{Clock, SystemClock};

/// Polling without yielding the core, at most.
const PAUSE: Duration = Duration::from_micros(2);
/// Pauses between two looks at the clock.
const PAUSES_PER_LOOK: u32 = 16;

/// The time that polling may take, learned from how it went.
#[derive(Debug)]
pub(crate) struct Spin {
    max: Duration,
    budget: Duration,
    /// When polling began without finding anything.
    idle_since: Option<Duration>,
    spent: Duration,
    pauses: u32,
    slept_at: Duration,
}

impl Spin {
    pub(crate) const fn new(max: Duration) -> Self {
        Self {
            max,
            budget: max,
            idle_since: None,
            spent: Duration::ZERO,
            pauses: 0,
            slept_at: Duration::ZERO,
        }
    }

    /// Polling has found something.
    #[inline]
    pub(crate) fn found(&mut self) {
        if self.idle_since.take().is_some() && self.spent >= PAUSE {
            // Polling on beyond the short pause was right.
            self.budget = (self.budget * 2).min(self.max);
        }
        self.start_over();
    }

    fn start_over(&mut self) {
        self.idle_since = None;
        self.spent = Duration::ZERO;
        self.pauses = 0;
    }

    /// Passes a little time before the next poll. `false`: the time is over, sleep instead.
    pub(crate) fn pass(&mut self) -> bool {
        if self.spent < PAUSE {
            std::hint::spin_loop();
            self.pauses += 1;
            if !self.pauses.is_multiple_of(PAUSES_PER_LOOK) {
                return true;
            }
        } else {
            rustix::thread::sched_yield();
        }
        let now = SystemClock.monotonic();
        self.spent = now.saturating_sub(*self.idle_since.get_or_insert(now));
        self.spent < self.budget
    }

    /// The caller goes to sleep now: polling was in vain.
    pub(crate) fn sleeps(&mut self) {
        self.start_over();
        self.slept_at = SystemClock.monotonic();
        self.budget = (self.budget / 2).max(PAUSE.min(self.max));
    }

    /// The caller was woken. If the sleep was so short that polling would have covered it, it was a mistake.
    pub(crate) fn woke(&mut self) {
        if SystemClock.monotonic().saturating_sub(self.slept_at) < self.max {
            self.budget = (self.budget * 4).min(self.max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_out(spin: &mut Spin) {
        while spin.pass() {}
        spin.sleeps();
    }

    #[test]
    fn fruitless_polling_shrinks_and_short_sleeps_grow_it() {
        let max = Duration::from_millis(4);
        let mut spin = Spin::new(max);
        run_out(&mut spin);
        assert_eq!(spin.budget, max / 2);
        run_out(&mut spin);
        assert_eq!(spin.budget, max / 4);
        spin.woke();
        assert_eq!(spin.budget, max);
        for _ in 0..20 {
            run_out(&mut spin);
        }
        assert_eq!(spin.budget, PAUSE);
        let _ = rustix::thread::nanosleep(&crate::socket::timespec(2 * max));
        spin.woke();
        assert_eq!(spin.budget, PAUSE);
    }
}
