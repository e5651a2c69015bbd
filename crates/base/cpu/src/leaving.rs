//! When a thread that serves others leaves the core that it shares with one of them.
//!
//! Two threads that run in turns are not parted by the scheduler, even where a core is idle:
//! neither of them ever waits for long, and a thread that has just run is not moved. So a node's
//! thread goes elsewhere itself when it has shared a core for a while; less often, if that is in
//! vain because all cores are taken. Then the clients on them share with it in turns, so that none
//! falls far behind, and the node is soon where one is done and only waits for the others.

use std::time::Duration;

use samite_types::{Clock, SystemClock};

/// Has this thread go on elsewhere than on the core that it runs on, if it may run on others. It is not kept from coming back.
fn leave_core() {
    let Ok(all) = rustix::thread::sched_getaffinity(None) else { return };
    let mut others = all;
    others.unset(rustix::thread::sched_getcpu());
    if others.count() > 0 && rustix::thread::sched_setaffinity(None, &others).is_ok() {
        let _ = rustix::thread::sched_setaffinity(None, &all);
    }
}

/// So many turns in a row on a core that is shared are no accident.
const NEAR_TURNS: u32 = 3;
/// A time on cores of their own after which leaving has helped.
const APART: Duration = Duration::from_millis(10);
/// Shortest and longest time from one leaving to the next.
const PAUSE: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(4));
/// The same where the others go on beside the thread: the client that shares its core gets the time
/// that they leave of it meanwhile.
const STAY: Duration = Duration::from_millis(16);

/// Other clients that a thread serves, beside one that waits on its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreSharers {
    /// There are none.
    None,
    /// There may be some.
    Unknown,
    /// There are, on other cores.
    Busy,
}

impl CoreSharers {
    /// Of a thread that knows whether there are others.
    #[must_use]
    pub const fn of(are_others: bool) -> Self {
        if are_others { Self::Busy } else { Self::None }
    }
}

/// When a thread leaves the core that it shares with one that it serves.
#[derive(Debug)]
pub struct CoreLeaving {
    streak: u32,
    /// When it first and last shared its core, but for short times apart.
    near_since: Duration,
    near_at: Duration,
    left_at: Duration,
    pause: Duration,
}

impl Default for CoreLeaving {
    fn default() -> Self {
        Self::new()
    }
}

impl CoreLeaving {
    /// That of a thread that has shared no core yet.
    #[must_use]
    pub const fn new() -> Self {
        let never = Duration::ZERO;
        Self { streak: 0, near_since: never, near_at: never, left_at: never, pause: PAUSE.0 }
    }

    /// The thread has served. `is_near`: a client that it serves waits on its core.
    pub fn served(&mut self, is_near: bool) {
        match is_near {
            true => self.served_on_core(CoreSharers::Unknown),
            false => self.streak = 0,
        }
    }

    /// The thread has served one that waits on its core. It leaves the core if that may help.
    pub fn served_on_core(&mut self, sharers: CoreSharers) {
        if self.is_due(SystemClock.monotonic(), sharers) {
            leave_core();
        }
    }

    /// It has served at `now`. Returns whether to leave the core.
    fn is_due(&mut self, now: Duration, sharers: CoreSharers) -> bool {
        if now.saturating_sub(self.near_at) > APART {
            (self.streak, self.pause, self.near_since) = (0, PAUSE.0, now);
        }
        self.near_at = now;
        self.streak += 1;
        let (since, pause) = match sharers {
            CoreSharers::None => (self.left_at, PAUSE.0),
            CoreSharers::Unknown => (self.left_at, self.pause),
            CoreSharers::Busy => (self.left_at.max(self.near_since), STAY),
        };
        if self.streak < NEAR_TURNS || now.saturating_sub(since) < pause {
            return false;
        }
        self.left_at = now;
        self.streak = 0;
        self.pause = (self.pause * 2).min(PAUSE.1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::this_core;

    #[test]
    fn who_leaves_in_vain_leaves_less_often() {
        let at = Duration::from_micros;
        let after = |time: u64, sharers| {
            let mut leaving = CoreLeaving::new();
            assert!(!leaving.is_due(at(time), sharers) && !leaving.is_due(at(time + 50), sharers));
            leaving.served(false);
            let mut is_due = |after| leaving.is_due(at(time + after), sharers);
            assert!(!is_due(100) && !is_due(150));
            assert_eq!(is_due(200), sharers != CoreSharers::Busy, "three in a row");
            // Always on the same core as a waiter, ten times in a millisecond.
            let left: Vec<u64> = (3..3_000).filter(|turn| is_due(200 + turn * 100)).collect();
            // Apart for long: the next time is another matter.
            assert!(!is_due(400_000) && !is_due(400_100));
            assert_eq!(is_due(400_200), sharers != CoreSharers::Busy);
            left
        };
        let first = |left: Vec<u64>| <[u64; 7]>::try_from(&left[..7]).unwrap();
        assert_eq!(first(after(1_000_000, CoreSharers::Unknown)), [10, 30, 70, 110, 150, 190, 230]);
        assert_eq!(
            first(after(1_000_000, CoreSharers::Busy)),
            [158, 318, 478, 638, 798, 958, 1118]
        );
        assert_eq!(first(after(1_000_000, CoreSharers::None)), [5, 10, 15, 20, 25, 30, 35]);
    }

    #[test]
    fn a_thread_that_leaves_its_core_may_come_back() {
        let run = || {
            let before = rustix::thread::sched_getaffinity(None).unwrap();
            leave_core();
            let all = rustix::thread::sched_getaffinity(None).unwrap();
            assert_eq!(all, before);
            let mut one = rustix::thread::CpuSet::new();
            let core = (0..1024).find(|core| all.is_set(*core)).unwrap();
            one.set(core);
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            leave_core();
            assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), one, "no other core");
            assert_eq!(this_core(), core as u32 + 1);
        };
        std::thread::spawn(run).join().unwrap();
    }
}
