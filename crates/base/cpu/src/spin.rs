//! How long to poll before sleeping.
//!
//! Polling finds a message that comes soon without the cost of a wake-up on either side; but it
//! takes a core that another thread may need. So it starts with pauses and goes on with pauses and
//! yields; its time shrinks when it was fruitless, and grows when a message came soon after. Yields
//! from which this thread comes back late have shown that the machine is crowded: another thread
//! works on this core, and takes milliseconds for each yield. Then sleeping soon is better, for a
//! sleeper that is woken runs before threads that have run for long, and a node that has served
//! some clients goes on with the others. One late yield alone is no proof: a passing interrupt, or
//! the host of a virtual machine, makes one too.
//!
//! Where there are more threads than cores, the two ends of a connection share one. A thread is
//! told so by the other, or notices by a yield in which another thread ran; then pausing helps no
//! one, and it yields at once whenever it waits, and after it has served. The node sleeps instead
//! when its yields are in vain.

use std::time::Duration;

use samite_types::{Clock, SystemClock};

/// Polling without offering the core to others, at most.
const PAUSE: Duration = Duration::from_micros(2);
/// The same in a crowd for a node, if no thread is known to wait for its core: a client that was
/// served asks for more about so soon.
const SERVED_PAUSE: Duration = Duration::from_micros(20);
/// Cheap polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 16;
/// A yield that takes longer than this has given the core to a thread that works.
const CROWDED: Duration = Duration::from_millis(1);
/// A yield that takes longer than this has let another thread run: this core is shared.
const SWITCHED: Duration = Duration::from_nanos(900);
/// Turns in a row that found something, after which a thread that has its core to itself looks whether that is still so.
const FOUND_PER_YIELD: u32 = 16;
/// The same where a client that was served waits on this core. While it was served, another client,
/// which has a core, may have asked for more.
const NEAR_PER_YIELD: u32 = 2;
/// So many yields in a row that gave the core to no other thread are no accident.
const VAIN_MAX: u32 = 2;
/// Two late yields within this time are no accident.
const LATE_AGAIN: Duration = Duration::from_millis(20);
/// First and longest time for which not to yield again.
const CROWDED_FOR: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Cost of one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollCost {
    /// A few loads.
    Memory,
    /// A system call.
    Kernel,
}

/// The time that polling may take, learned from how it went.
#[derive(Debug)]
pub struct SpinTime {
    max: Duration,
    /// Polling in a crowd, where nobody is known to wait for this core.
    crowded_pause: Duration,
    budget: Duration,
    /// When polling began without finding anything.
    idle_since: Option<Duration>,
    spent: Duration,
    /// When polling has taken this long, the core is offered to others.
    yields_at: Duration,
    polls: u32,
    slept_at: Duration,
    late_at: Duration,
    is_crowded: bool,
    crowded_until: Duration,
    crowded_for: Duration,
    /// The last yield let another thread run on this core.
    is_shared: bool,
    /// Turns that found something since the last yield.
    streak: u32,
    /// Yields in a row that let no other thread run.
    vain: u32,
}

impl SpinTime {
    /// For a thread that waits for a reply.
    pub const fn new(max: Duration) -> Self {
        Self::of(max, PAUSE)
    }

    /// For a thread that serves many clients.
    pub const fn serving(max: Duration) -> Self {
        Self::of(max, SERVED_PAUSE)
    }

    const fn of(max: Duration, crowded_pause: Duration) -> Self {
        Self {
            max,
            crowded_pause,
            budget: max,
            idle_since: None,
            spent: Duration::ZERO,
            yields_at: PAUSE,
            polls: 0,
            slept_at: Duration::ZERO,
            late_at: Duration::ZERO,
            is_crowded: false,
            crowded_until: Duration::ZERO,
            crowded_for: CROWDED_FOR.0,
            is_shared: false,
            streak: 0,
            vain: 0,
        }
    }

    /// For a thread that serves others, after it has served: lets threads on its core go on with
    /// their replies. `is_near`: there are such waiters on the same core.
    #[inline]
    pub fn share(&mut self, is_near: bool) {
        self.streak += 1;
        let most = match (is_near, self.is_shared) {
            (true, _) => NEAR_PER_YIELD,
            (false, true) => 1,
            (false, false) => FOUND_PER_YIELD,
        };
        if self.streak < most {
            return;
        }
        self.hand_over();
    }

    /// A waiter on the same core can go on, and is let.
    pub fn hand_over(&mut self) {
        // In a crowd a yield costs the clients that are served next milliseconds.
        if self.is_crowded {
            self.is_crowded = SystemClock.monotonic() < self.crowded_until;
        }
        if !self.is_crowded {
            self.give_way();
        }
    }

    /// Yields. Returns when it ended, and whether it has shown a crowd.
    fn give_way(&mut self) -> (Duration, bool) {
        let before = SystemClock.monotonic();
        rustix::thread::sched_yield();
        let now = SystemClock.monotonic();
        self.gave_way(before, now);
        (now, now.saturating_sub(before) > CROWDED && self.late(now))
    }

    /// A yield has begun and ended.
    const fn gave_way(&mut self, before: Duration, now: Duration) {
        self.is_shared = now.saturating_sub(before).as_nanos() > SWITCHED.as_nanos();
        self.vain = if self.is_shared { 0 } else { self.vain.saturating_add(1) };
        self.streak = 0;
    }

    /// Polling has found something.
    #[inline]
    pub fn found(&mut self) {
        if self.spent >= PAUSE {
            // Polling on beyond the short pause was right.
            self.budget = (self.budget * 2).min(self.max);
        }
        self.start_over();
    }

    fn start_over(&mut self) {
        self.idle_since = None;
        self.spent = Duration::ZERO;
        self.yields_at = PAUSE;
        self.polls = 0;
    }

    /// Passes a little time before the next poll. `is_near`: the awaited work is done on this core.
    /// `false`: the time is over, sleep instead.
    pub fn pass(&mut self, poll: PollCost, is_near: bool) -> bool {
        // A look into the kernel takes as long as a yield.
        let yields_at = if poll == PollCost::Kernel { PAUSE } else { self.yields_at };
        if (self.spent >= yields_at || self.is_shared || is_near) && !self.is_crowded {
            return self.pass_on();
        }
        std::hint::spin_loop();
        self.polls += 1;
        if poll == PollCost::Memory && !self.polls.is_multiple_of(POLLS_PER_LOOK) {
            return true;
        }
        let now = SystemClock.monotonic();
        self.spent = now.saturating_sub(*self.idle_since.get_or_insert(now));
        self.is_crowded = now < self.crowded_until;
        let limit = match (self.is_crowded, poll) {
            (false, _) => self.max,
            (true, PollCost::Memory) if is_near => PAUSE,
            (true, PollCost::Memory) => self.crowded_pause,
            (true, PollCost::Kernel) => Duration::ZERO,
        };
        self.spent < self.budget.min(limit)
    }

    /// Whether the last yields gave the core to no other thread. If a thread on it has work to do,
    /// only sleep lets that go on: the scheduler counts polling for work, and a thread that has had
    /// more than that waits until the poller has caught up.
    pub const fn yields_in_vain(&self) -> bool {
        self.vain >= VAIN_MAX
    }

    /// Whether the last yield let another thread run on this core.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Passes time by giving the core away.
    fn pass_on(&mut self) -> bool {
        let (now, has_shown_crowd) = self.give_way();
        if has_shown_crowd {
            return false;
        }
        self.spent = now.saturating_sub(*self.idle_since.get_or_insert(now));
        self.yields_at = self.spent + PAUSE;
        self.spent < self.budget
    }

    /// A yield that ended at `now` took long. Returns whether the machine counts as crowded from now on.
    fn late(&mut self, now: Duration) -> bool {
        let again = now.saturating_sub(self.late_at) < LATE_AGAIN;
        self.late_at = now;
        if again {
            // Not crowded for longer than it was given up for: that crowd has gone, this is another
            // one.
            let is_new = now.saturating_sub(self.crowded_until) > self.crowded_for;
            self.crowded_for =
                if is_new { CROWDED_FOR.0 } else { (self.crowded_for * 2).min(CROWDED_FOR.1) };
            self.crowded_until = now + self.crowded_for;
            self.is_crowded = true;
        }
        again
    }

    /// The caller goes to sleep now: polling was in vain.
    pub fn sleeps(&mut self) {
        self.start_over();
        self.vain = 0;
        self.slept_at = SystemClock.monotonic();
        self.budget = (self.budget / 2).max(PAUSE.min(self.max));
    }

    /// The caller was woken. If the sleep was so short that polling would have covered it, it was a mistake.
    pub fn woke(&mut self) {
        if SystemClock.monotonic().saturating_sub(self.slept_at) < self.max {
            self.budget = (self.budget * 4).min(self.max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_out(spin: &mut SpinTime) {
        while spin.pass(PollCost::Memory, false) {}
        spin.sleeps();
    }

    #[test]
    fn fruitless_polling_shrinks_and_short_sleeps_grow_it() {
        let max = Duration::from_millis(40);
        let mut spin = SpinTime::new(max);
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
        let _ = rustix::thread::nanosleep(&crate::timespec(2 * max));
        spin.woke();
        assert_eq!(spin.budget, PAUSE);
    }

    #[test]
    fn yields_that_let_nobody_run_are_in_vain_until_one_does() {
        let mut spin = SpinTime::new(Duration::from_secs(1));
        let yields = |spin: &mut SpinTime, took| spin.gave_way(Duration::ZERO, took);
        let (quick, slow) = (SWITCHED / 2, SWITCHED * 2);
        yields(&mut spin, quick);
        assert!(!spin.yields_in_vain(), "once is an accident");
        yields(&mut spin, slow);
        yields(&mut spin, quick);
        assert!(!spin.yields_in_vain(), "somebody ran in between");
        yields(&mut spin, quick);
        assert!(spin.yields_in_vain());
        spin.sleeps();
        assert!(!spin.yields_in_vain(), "they have had their turn");
    }

    #[test]
    fn whoever_serves_goes_on_in_a_crowd() {
        let mut spin = SpinTime::serving(Duration::from_secs(1));
        let yields = |spin: &mut SpinTime| {
            spin.share(true);
            spin.streak == 0
        };
        assert!(!yields(&mut spin), "others may have asked for more meanwhile");
        assert!(yields(&mut spin));
        spin.is_crowded = true;
        spin.crowded_until = SystemClock.monotonic() + Duration::from_secs(3600);
        assert!(!yields(&mut spin) && !yields(&mut spin) && !yields(&mut spin));
        // Polls on a while without a yield, the longer if nobody is known to wait for this core.
        let polls = |spin: &mut SpinTime, is_near| {
            spin.start_over();
            let mut count = 0;
            while spin.pass(PollCost::Memory, is_near) {
                count += 1;
            }
            (count, spin.spent)
        };
        let (near, near_for) = polls(&mut spin, true);
        let (alone, alone_for) = polls(&mut spin, false);
        assert!(near > 0 && near_for >= PAUSE, "{near} {near_for:?}");
        assert!(alone > 0 && alone_for >= SERVED_PAUSE, "{alone} {alone_for:?}");
        assert!(spin.streak == 3, "no yield");
        spin.crowded_until = Duration::ZERO;
        assert!(yields(&mut spin), "it has gone");
    }

    #[test]
    fn pauses_and_yields_take_turns() {
        let mut spin = SpinTime::new(Duration::from_secs(3600));
        let mut yields = 0;
        let mut polls = 0;
        while yields < 3 {
            spin.streak = 1;
            // No crowd, however late this thread comes back.
            spin.late_at = Duration::ZERO;
            assert!(spin.pass(PollCost::Memory, false));
            // A yield in which another thread ran has others follow at once.
            spin.is_shared = false;
            polls += 1;
            yields += u32::from(spin.streak == 0);
        }
        assert!(polls >= 3 * POLLS_PER_LOOK, "{polls}");
        assert!(spin.spent >= 3 * PAUSE, "{:?}", spin.spent);
    }

    #[test]
    fn only_repeated_late_yields_are_a_crowd_and_calm_is_remembered() {
        let at = Duration::from_millis;
        let mut spin = SpinTime::new(at(1));
        assert!(!spin.late(at(1000)));
        assert!(!spin.late(at(1100)));
        assert!(spin.late(at(1110)));
        assert_eq!(spin.crowded_until, at(1120));
        assert!(spin.late(at(1125)));
        assert_eq!(spin.crowded_until, at(1145));
        assert!(!spin.late(at(1500)));
        assert!(spin.late(at(1510)));
        assert_eq!(spin.crowded_until, at(1520));
    }
}
