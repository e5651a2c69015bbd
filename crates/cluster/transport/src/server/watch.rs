//! Periodic work of an event loop: handshakes, stalled peers, ticks.

use std::collections::VecDeque;
use std::time::Duration;

use samite_types::{Clock, SystemClock};

use super::conn_id::ConnId;

/// Time between two looks at peers that are in the middle of something.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Longest time between two looks at tickets.
const TICKET_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// First and longest time until rings that were full are tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));

/// The loop's timers. When there are none, it sleeps for good and uses no processor.
#[derive(Debug)]
pub(super) struct LoopTimer {
    handshakes: VecDeque<(ConnId, Duration)>,
    /// Some peer is in the middle of a frame or does not take its replies.
    next_check: Option<Duration>,
    next_tick: Option<Duration>,
    tick: Option<Duration>,
    next_retry: Option<Duration>,
    /// When tickets are looked at: one of them ends then.
    next_ticket_check: Option<Duration>,
    retry_interval: Duration,
}

fn now() -> Duration {
    SystemClock.monotonic()
}

impl LoopTimer {
    pub(super) fn new(tick: Option<Duration>) -> Self {
        Self {
            handshakes: VecDeque::new(),
            next_check: None,
            next_tick: tick.map(|tick| now() + tick),
            tick,
            next_retry: None,
            next_ticket_check: None,
            retry_interval: RETRY.0,
        }
    }

    fn next(&self) -> Option<Duration> {
        [self.next_check, self.next_tick, self.next_retry, self.next_ticket_check]
            .into_iter()
            .flatten()
            .min()
    }

    /// How long the loop may sleep, with a timer `other` beside its own; `None` for ever.
    pub(super) fn timeout(&self, other: Option<Duration>) -> Option<Duration> {
        let next = self.next().into_iter().chain(other).min();
        next.map(|next| next.saturating_sub(now()))
    }

    pub(super) fn is_due(&self) -> bool {
        self.next().is_some_and(|next| next <= now())
    }

    /// Look at the connections before long.
    pub(super) fn soon(&mut self) {
        if self.next_check.is_none() {
            self.next_check = Some(now() + CHECK_INTERVAL);
        }
    }

    /// A peer has that much time to prove the key.
    pub(super) fn handshake(&mut self, id: ConnId, timeout: Duration) {
        self.handshakes.push_back((id, now() + timeout));
        self.soon();
    }

    /// A peer has proved the key, or is gone.
    pub(super) fn forget_handshake(&mut self, id: ConnId) {
        self.handshakes.retain(|(waiting, _)| *waiting != id);
    }

    pub(super) fn handshakes(&self) -> usize {
        self.handshakes.len()
    }

    pub(super) fn oldest_handshake(&self) -> Option<ConnId> {
        self.handshakes.front().map(|(id, _)| *id)
    }

    /// A peer whose time for the handshake is over.
    pub(super) fn late_handshake(&self) -> Option<ConnId> {
        self.handshakes.front().filter(|(_, deadline)| *deadline <= now()).map(|(id, _)| *id)
    }

    /// Whether a tick is due; the next one is then a tick away.
    pub(super) fn take_tick(&mut self) -> bool {
        let due = self.next_tick.is_some_and(|next| next <= now());
        if due {
            self.next_tick = self.tick.map(|tick| now() + tick);
        }
        due
    }

    /// Whether the connections are to be looked at. If so, and some are still in the middle of something, call
    /// [`LoopTimer::soon`] again.
    pub(super) fn take_check(&mut self) -> bool {
        let due = self.next_check.is_some_and(|next| next <= now());
        if due {
            self.next_check = None;
            if !self.handshakes.is_empty() {
                self.soon();
            }
        }
        due
    }

    /// A connection rests on a ticket that ends then, in seconds since 1970. The clock may be set:
    /// it is looked at more often than that.
    pub(super) fn ticket(&mut self, expires_s: u64) {
        let left = Duration::from_secs(expires_s).saturating_sub(SystemClock.realtime());
        let at = now() + left.min(TICKET_CHECK_INTERVAL);
        self.next_ticket_check = Some(self.next_ticket_check.map_or(at, |next| next.min(at)));
    }

    /// Whether the tickets are to be looked at; those that have not ended are told again.
    pub(super) fn take_ticket_check(&mut self) -> bool {
        let due = self.next_ticket_check.is_some_and(|next| next <= now());
        if due {
            self.next_ticket_check = None;
        }
        due
    }

    /// Some ring is full: try again soon.
    pub(super) fn retry(&mut self) {
        if self.next_retry.is_none() {
            self.retry_interval = RETRY.0;
            self.next_retry = Some(now() + self.retry_interval);
        }
    }

    pub(super) fn take_retry(&mut self) -> bool {
        let due = self.next_retry.is_some_and(|next| next <= now());
        if due {
            self.next_retry = None;
        }
        due
    }

    /// Rings are still full: try again, later each time.
    pub(super) fn retry_later(&mut self) {
        self.retry_interval = (self.retry_interval * 2).min(RETRY.1);
        self.next_retry = Some(now() + self.retry_interval);
    }
}
