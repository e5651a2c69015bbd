//! Retry decisions: the next step of a call when its answer does not come, or is none. No clock, no
//! link and no cluster map in here, so that the simulator makes the same ones.
//!
//! The caller tells what happened and carries out each [`RetryStep`], until the answer is there:
//!
//! ```text
//!        ┌──────────────────────────── Send ◄─────────────────────────────┐
//!        ▼                                                                │
//!   send, sent() ── wait until wait_until() ── answer: over               │
//!                        │                                                │
//!                 happened(Event) ── Look ── looked(worth it?) ── Pause ──┤
//!                        ▲                        │                       │
//!                        └──────── Wait ◄─────────┘        Fail: over     │
//!                        happened(Event) ─────────────────────── Send ────┘
//! ```
//!
//! A request that is sent again keeps its sequence numbers, and goes to the primary that the newest
//! known map names. Before that the old one is given up: a later reply to it counts for nothing.
//!
//! Data in one place alone is on no other node: a node that cannot be reached is an error at once,
//! and one that is silent is asked again and waited for. With mirrors, another member takes over:
//! then a node that is gone is a pause.
//!
//! A connection that ends is a lost message, and no answer: with or without mirrors the request goes out again, by a new connection, with
//! pauses in between, until the deadline. Whether the node is gone shows when a connection cannot be made.
//!
//! All times are since one fixed time, whichever.

use std::time::Duration;

/// How patient a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryTiming {
    /// Silence after which a newer cluster map is looked for, again and again.
    pub patience: Duration,
    /// Silence after which the shortest request is sent again although nobody knows a newer map. Doubles with every other time, but not before the
    /// fourth: where one in ten is lost, a call of ten requests loses several, and few of them more than that in a row.
    pub resend_min: Duration,
    /// The same for a long one, which makes a crowd worse when it comes again. In between, each byte of request and reply counts for a microsecond.
    pub resend: Duration,
    /// Longest such silence, and the first where there is only one place to ask.
    pub resend_max: Duration,
    /// First pause before a node that was busy, or could not be reached, is asked again. Doubles with each.
    pub pause_min: Duration,
    /// Longest pause before a busy node is asked again.
    pub busy_pause_max: Duration,
    /// Longest pause before a node that could not be reached is tried again.
    pub down_pause_max: Duration,
}

impl Default for RetryTiming {
    fn default() -> Self {
        Self {
            patience: Duration::from_millis(300),
            resend_min: Duration::from_millis(300),
            resend: Duration::from_secs(1),
            resend_max: Duration::from_secs(4),
            pause_min: Duration::from_micros(50),
            busy_pause_max: Duration::from_millis(20),
            down_pause_max: Duration::from_millis(100),
        }
    }
}

/// An event of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetryEvent {
    /// Nothing, until [`RetryState::wait_until`].
    Silent,
    /// The node knows a newer cluster map.
    Stale,
    /// The node could not take all of it now.
    Busy,
    /// The connection broke under it.
    Broken,
    /// No connection could be made.
    Unreachable,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryStep {
    /// Go on waiting for the same request, until [`RetryState::wait_until`].
    Wait,
    /// Ask nodes for a newer cluster map, also others than the one that is silent, then say [`RetryState::looked`].
    Look,
    /// Sleep for so long, then send.
    Pause(Duration),
    /// Send it, or send it again.
    Send,
    /// The call ends with an error.
    Fail(GiveUp),
}

/// Why a call ends without its answer. Whether it took effect is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GiveUp {
    /// The deadline has passed; this was in the way last.
    Timeout(RetryEvent),
    /// The node cannot be reached, and nobody takes its place.
    Unreachable,
}

/// The decisions of one call.
#[derive(Clone, Debug)]
pub struct RetryState {
    timing: RetryTiming,
    is_mirrored: bool,
    deadline: Duration,
    pause: Duration,
    /// A connection has broken under it.
    has_broken: bool,
    /// Bytes of the request and its reply, as far as known.
    len: usize,
    /// When the request under way was sent.
    sent_at: Duration,
    /// How often it was sent again since there was a newer map.
    resent: u32,
    /// Until when to wait for the answer to it before a newer map is looked for.
    silent_at: Duration,
    /// Nodes that answer without taking the request are taken at their word until then.
    doubt_at: Option<Duration>,
    /// The purpose of the look under way.
    reason: RetryEvent,
}

impl RetryState {
    /// For a call on data with or without mirrors, to be over by `deadline`.
    #[must_use]
    pub const fn new(timing: RetryTiming, is_mirrored: bool, deadline: Duration) -> Self {
        Self {
            timing,
            is_mirrored,
            deadline,
            pause: timing.pause_min,
            has_broken: false,
            len: 0,
            sent_at: Duration::ZERO,
            resent: 0,
            silent_at: Duration::ZERO,
            doubt_at: None,
            reason: RetryEvent::Silent,
        }
    }

    /// The same, for a request and a reply of so many bytes together, as far as known.
    #[must_use]
    pub const fn of_len(self, len: usize) -> Self {
        Self { len, ..self }
    }

    /// Somebody else can take over from the node that is asked.
    #[must_use]
    pub const fn is_mirrored(&self) -> bool {
        self.is_mirrored
    }

    /// The request leaves, at `now`.
    #[inline]
    pub fn sent(&mut self, now: Duration) {
        self.sent_at = now;
        self.silent_at = self.next_look(now);
    }

    /// Until when to wait for the answer before [`RetryEvent::Silent`] is told.
    #[inline]
    #[must_use]
    pub fn wait_until(&self) -> Duration {
        let until = if self.is_mirrored { self.silent_at } else { self.resend_at() };
        until.min(self.deadline)
    }

    /// By when an answer that has begun to come must be here. A call without mirrors waits for all of it.
    #[must_use]
    pub fn answer_until(&self) -> Duration {
        if self.is_mirrored {
            let whole_at = self.sent_at.saturating_add(self.timing.resend);
            whole_at.max(self.resend_at()).max(self.silent_at).min(self.deadline)
        } else {
            self.deadline
        }
    }

    /// Something else than the answer came, or nothing.
    #[must_use]
    pub fn happened(&mut self, event: RetryEvent, now: Duration) -> RetryStep {
        self.reason = event;
        if !self.is_mirrored && event == RetryEvent::Unreachable {
            return RetryStep::Fail(GiveUp::Unreachable);
        }
        if now >= self.deadline {
            return RetryStep::Fail(self.give_up());
        }
        match event {
            RetryEvent::Stale => RetryStep::Look,
            RetryEvent::Silent if self.is_mirrored => RetryStep::Look,
            RetryEvent::Silent => self.ask_again(now),
            // It may be cut off from the others, and one of them takes its place already.
            RetryEvent::Busy if self.is_mirrored && self.is_in_doubt(now) => RetryStep::Look,
            RetryEvent::Busy => self.pause(now, self.timing.busy_pause_max),
            RetryEvent::Broken | RetryEvent::Unreachable => {
                let is_first = !std::mem::replace(&mut self.has_broken, true);
                match event {
                    RetryEvent::Broken if is_first => RetryStep::Send,
                    _ if self.is_mirrored => RetryStep::Look,
                    _ => self.pause(now, self.timing.down_pause_max),
                }
            }
        }
    }

    /// A look is over. `is_worth`: after [`RetryEvent::Stale`] that there is a newer map; after others that it names another primary
    /// than the one that was asked.
    #[must_use]
    pub fn looked(&mut self, is_worth: bool, now: Duration) -> RetryStep {
        if now >= self.deadline {
            return RetryStep::Fail(self.give_up());
        }
        if is_worth {
            self.pause = self.timing.pause_min;
            self.resent = 0;
            return RetryStep::Send;
        }
        self.silent_at = self.next_look(now);
        self.doubt_at = Some(now.saturating_add(self.timing.patience));
        match self.reason {
            RetryEvent::Silent => self.ask_again(now),
            RetryEvent::Stale | RetryEvent::Busy => self.pause(now, self.timing.busy_pause_max),
            RetryEvent::Broken | RetryEvent::Unreachable => {
                self.pause(now, self.timing.down_pause_max)
            }
        }
    }

    /// The request or its reply may be lost: it is sent again from time to time.
    fn ask_again(&mut self, now: Duration) -> RetryStep {
        if now < self.resend_at() {
            return RetryStep::Wait;
        }
        self.resent += 1;
        RetryStep::Send
    }

    /// When the request under way is sent again.
    fn resend_at(&self) -> Duration {
        let RetryTiming { resend_min, resend, resend_max, .. } = self.timing;
        if !self.is_mirrored {
            return self.sent_at.saturating_add(resend_max);
        }
        let for_bytes = Duration::from_micros(self.len as u64);
        let first = resend_min.saturating_add(for_bytes).min(resend);
        let doubled = (self.resent / 2).saturating_sub(1);
        let silence = first.saturating_mul(2u32.saturating_pow(doubled)).min(resend_max);
        self.sent_at.saturating_add(silence)
    }

    /// Until when to wait before the next look: not just before the request is sent again.
    fn next_look(&self, now: Duration) -> Duration {
        let RetryTiming { patience, .. } = self.timing;
        match self.resend_at().checked_sub(now) {
            Some(left) if !left.is_zero() && left < patience * 2 => now.saturating_add(left),
            _ => now.saturating_add(patience),
        }
    }

    fn is_in_doubt(&mut self, now: Duration) -> bool {
        now >= *self.doubt_at.get_or_insert(now.saturating_add(self.timing.patience))
    }

    fn give_up(&self) -> GiveUp {
        match self.reason {
            RetryEvent::Broken | RetryEvent::Unreachable => GiveUp::Unreachable,
            reason => GiveUp::Timeout(reason),
        }
    }

    fn pause(&mut self, now: Duration, max: Duration) -> RetryStep {
        let pause = self.pause.min(max).min(self.deadline.saturating_sub(now));
        self.pause = self.pause.saturating_mul(2).min(self.timing.down_pause_max);
        RetryStep::Pause(pause)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMING: RetryTiming = RetryTiming {
        patience: ms(300),
        resend_min: ms(300),
        resend: ms(1000),
        resend_max: ms(4000),
        pause_min: Duration::from_micros(50),
        busy_pause_max: ms(20),
        down_pause_max: ms(100),
    };

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn mirrored(deadline: Duration) -> RetryState {
        RetryState::new(TIMING, true, deadline)
    }

    #[test]
    fn silence_is_looked_into_and_ends_with_another_primary_or_a_second_sending() {
        let mut retry = mirrored(ms(30_000)).of_len(1 << 20);
        retry.sent(ms(0));
        for now in [300, 600] {
            assert_eq!(retry.wait_until(), ms(now));
            assert_eq!(retry.happened(RetryEvent::Silent, ms(now)), RetryStep::Look);
            assert_eq!(retry.looked(false, ms(now)), RetryStep::Wait);
        }
        assert_eq!(retry.wait_until(), ms(1000));
        assert_eq!(retry.happened(RetryEvent::Silent, ms(1000)), RetryStep::Look);
        assert_eq!(retry.looked(false, ms(1000)), RetryStep::Send);
        retry.sent(ms(1000));
        assert_eq!(retry.wait_until(), ms(1300));
        assert_eq!(retry.happened(RetryEvent::Silent, ms(1300)), RetryStep::Look);
        assert_eq!(retry.looked(true, ms(1310)), RetryStep::Send);
    }

    /// When a request of `len` bytes is sent again, if no answer ever comes and each look takes no time.
    fn sendings(len: usize, count: usize) -> Vec<Duration> {
        let mut retry = mirrored(ms(30_000)).of_len(len);
        let (mut now, mut sent) = (ms(0), Vec::new());
        retry.sent(now);
        while sent.len() < count {
            now = retry.wait_until();
            assert_eq!(retry.happened(RetryEvent::Silent, now), RetryStep::Look);
            if retry.looked(false, now) == RetryStep::Send {
                retry.sent(now);
                sent.push(now);
            }
        }
        sent
    }

    #[test]
    fn short_requests_come_again_soon_long_ones_later_and_all_of_them_less_often_in_the_end() {
        let short = [300, 600, 900, 1200, 1800, 2400, 3600, 4800, 7200];
        assert_eq!(sendings(0, 9), short.map(ms));
        assert_eq!(sendings(100_000, 3), [400, 800, 1200].map(ms));
        assert_eq!(sendings(1 << 20, 7), [1000, 2000, 3000, 4000, 6000, 8000, 12_000].map(ms));
    }

    #[test]
    fn an_answer_that_has_begun_to_come_has_a_second() {
        let mut retry = mirrored(ms(30_000));
        retry.sent(ms(0));
        assert_eq!((retry.wait_until(), retry.answer_until()), (ms(300), ms(1000)));
    }

    #[test]
    fn nobody_takes_the_place_of_a_node_without_mirrors() {
        let mut retry = RetryState::new(TIMING, false, ms(5000));
        retry.sent(ms(0));
        assert_eq!((retry.wait_until(), retry.answer_until()), (ms(4000), ms(5000)));
        assert_eq!(retry.clone().happened(RetryEvent::Silent, ms(4000)), RetryStep::Send);
        // Also after a newer map.
        let mut stale = retry.clone();
        assert_eq!(stale.happened(RetryEvent::Stale, ms(10)), RetryStep::Look);
        assert_eq!(stale.looked(true, ms(10)), RetryStep::Send);
        stale.sent(ms(10));
        assert_eq!(stale.wait_until(), ms(4010));
        let unreachable = RetryStep::Fail(GiveUp::Unreachable);
        assert_eq!(retry.clone().happened(RetryEvent::Unreachable, ms(1)), unreachable);
        assert_eq!(retry.happened(RetryEvent::Broken, ms(1)), RetryStep::Send);
        let timeout = RetryStep::Fail(GiveUp::Timeout(RetryEvent::Silent));
        assert_eq!(retry.happened(RetryEvent::Silent, ms(5000)), timeout);
    }

    #[test]
    fn connections_may_break_until_the_deadline_also_without_mirrors() {
        let mut retry = RetryState::new(TIMING, false, ms(5000));
        retry.sent(ms(0));
        assert_eq!(retry.happened(RetryEvent::Broken, ms(1)), RetryStep::Send);
        let (mut now, mut tries) = (ms(1), 0);
        while let RetryStep::Pause(pause) = retry.happened(RetryEvent::Broken, now) {
            assert!(!pause.is_zero() && pause <= ms(100));
            now += pause;
            tries += 1;
        }
        assert_eq!(now, ms(5000));
        assert!((50..70).contains(&tries), "{tries}");
        let unreachable = RetryStep::Fail(GiveUp::Unreachable);
        assert_eq!(retry.happened(RetryEvent::Broken, now), unreachable);
    }

    #[test]
    fn a_mirrored_node_that_is_gone_is_a_pause_until_the_deadline() {
        let mut retry = mirrored(ms(4000));
        let mut now = ms(0);
        let mut tries = 0;
        let end = loop {
            retry.sent(now);
            tries += 1;
            match retry.happened(RetryEvent::Unreachable, now) {
                RetryStep::Look => match retry.looked(false, now) {
                    RetryStep::Pause(pause) => now += pause,
                    next => break next,
                },
                next => break next,
            }
        };
        assert_eq!((end, now), (RetryStep::Fail(GiveUp::Unreachable), ms(4000)));
        assert!(tries < 60, "{tries}");
    }

    #[test]
    fn a_busy_node_that_may_be_cut_off_is_doubted_from_time_to_time() {
        let mut retry = mirrored(ms(2000));
        let (mut now, mut looks) = (ms(0), 0);
        let end = loop {
            retry.sent(now);
            match retry.happened(RetryEvent::Busy, now) {
                RetryStep::Pause(pause) => now += pause,
                RetryStep::Look => {
                    looks += 1;
                    let RetryStep::Pause(pause) = retry.looked(false, now) else { panic!() };
                    now += pause;
                }
                next => break next,
            }
        };
        assert_eq!((end, now), (RetryStep::Fail(GiveUp::Timeout(RetryEvent::Busy)), ms(2000)));
        assert!((5..=6).contains(&looks), "{looks}");
    }

    fn event() -> impl Strategy<Value = RetryEvent> {
        use RetryEvent::{Broken, Busy, Silent, Stale, Unreachable};
        prop::sample::select(vec![Silent, Stale, Busy, Broken, Unreachable])
    }

    proptest! {
        /// In all cases: no call goes on past its deadline, none ends before it while another
        /// member may take over, time always passes, and nothing is sent at once again and again.
        #[test]
        fn calls_end_by_their_deadline_and_not_before(
            events in prop::collection::vec((event(), any::<bool>(), 0u64..50), 1..200),
            is_mirrored: bool,
        ) {
            let deadline = ms(3000);
            let mut retry = RetryState::new(TIMING, is_mirrored, deadline);
            let (mut now, mut at_once) = (ms(0), 0);
            retry.sent(now);
            for (event, is_worth, delay) in events {
                now += if event == RetryEvent::Silent {
                    retry.wait_until().saturating_sub(now)
                } else {
                    Duration::from_micros(delay).min(deadline - now)
                };
                prop_assert!(now <= deadline);
                let mut next = retry.happened(event, now);
                if next == RetryStep::Look {
                    now = (now + ms(delay)).min(deadline);
                    next = retry.looked(is_worth, now);
                    prop_assert!(next != RetryStep::Look);
                }
                let is_over = now >= deadline;
                match next {
                    RetryStep::Fail(GiveUp::Unreachable) => prop_assert!(is_over || !is_mirrored),
                    RetryStep::Fail(GiveUp::Timeout(_)) => prop_assert!(is_over),
                    RetryStep::Wait => prop_assert!(event == RetryEvent::Silent && !is_over),
                    RetryStep::Pause(pause) => now += pause,
                    RetryStep::Send | RetryStep::Look => {}
                }
                at_once = match next {
                    RetryStep::Send if event != RetryEvent::Silent && !is_worth => at_once + 1,
                    RetryStep::Fail(_) => return Ok(()),
                    _ => at_once,
                };
                prop_assert!(at_once <= 1);
                if next != RetryStep::Wait {
                    retry.sent(now);
                }
            }
        }
    }
}
