//! A clock for the ends of grants to others.

use std::time::Duration;

/// Time that was seen to pass: the time between two looks counts for a step at most.
///
/// A grant that this member *has* may end too early, so the clock itself is right for that. A grant
/// that it has *given* must not: a clock that jumps ahead would end it while the other member goes
/// by another clock. Here such a jump counts for one step; a grant that is longer by a step
/// outlives it. A member that does not look for long finds the grants that it gave still there, for
/// the rest of their time: that costs time, and nothing else.
#[derive(Debug, Default)]
pub(crate) struct SteadyTime {
    looked: Duration,
    /// Time that went by and does not count.
    skipped: Duration,
}

impl SteadyTime {
    /// The clock shows `now`.
    pub(crate) fn look(&mut self, now: Duration, step: Duration) {
        let gap = now.saturating_sub(self.looked);
        self.skipped += gap.saturating_sub(step);
        self.looked = self.looked.max(now);
    }

    /// The time of the last look.
    pub(crate) fn now(&self) -> Duration {
        self.looked - self.skipped
    }

    /// When to look, on the clock itself, for this to show `until`, or a step of the way there.
    pub(crate) fn toward(&self, until: Duration, step: Duration) -> Duration {
        self.looked + until.saturating_sub(self.now()).min(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn time_in_small_steps_is_time() {
        let mut clock = SteadyTime::default();
        (1..=100).for_each(|at| clock.look(ms(at), STEP));
        assert_eq!(clock.now(), ms(100));
    }

    #[test]
    fn a_jump_counts_for_a_step() {
        let mut clock = SteadyTime::default();
        clock.look(ms(1_000_000), STEP);
        assert_eq!(clock.now(), STEP);
        clock.look(ms(1_000_003), STEP);
        assert_eq!(clock.now(), STEP + ms(3));
        clock.look(ms(3_000_000), STEP);
        assert_eq!(clock.now(), 2 * STEP + ms(3));
    }

    #[test]
    fn looking_when_it_says_gets_there() {
        let mut clock = SteadyTime::default();
        clock.look(ms(5_000), STEP);
        let until = clock.now() + ms(25);
        let looks = std::iter::from_fn(|| {
            let at = clock.toward(until, STEP);
            clock.look(at, STEP);
            (clock.now() < until).then_some(at)
        });
        assert_eq!(looks.collect::<Vec<_>>(), [ms(5_010), ms(5_020)]);
        assert_eq!(clock.now(), until);
    }
}
