//! Which core each side of a pair of rings polls on.
//!
//! Two threads that share a core get nothing from polling for each other: the one that waits has to let the other run, at once. Each
//! side says in a word of the control page where it was when it last looked at its ring. That is a hint: the scheduler moves threads.
//!
//! Two threads that run in turns are not parted by that, though, even where a core is idle: neither
//! of them ever waits for long, and a thread that has just run is not moved. So the node goes
//! elsewhere itself when it has shared a core for a while; less often, if that is in vain because
//! all cores are taken. Then the clients on them share with it in turns, so that none falls far
//! behind, and the node is soon where one is done and only waits for the others.

use std::sync::atomic::Ordering;
use std::time::Duration;

use samite_types::{Clock, SystemClock};

use super::ring::{ControlWord, RingMemory};

/// The core that this thread runs on now, counted from 1.
pub(crate) fn this_core() -> u32 {
    rustix::thread::sched_getcpu() as u32 + 1
}

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
pub(crate) enum CoreSharers {
    /// There are none.
    None,
    /// There may be some.
    Unknown,
    /// There are, on other cores.
    Busy,
}

impl CoreSharers {
    pub(crate) const fn of(are_others: bool) -> Self {
        if are_others { Self::Busy } else { Self::None }
    }
}

/// When a thread leaves the core that it shares with one that it serves.
#[derive(Debug)]
pub(crate) struct CoreLeaving {
    streak: u32,
    /// When it first and last shared its core, but for short times apart.
    near_since: Duration,
    near_at: Duration,
    left_at: Duration,
    pause: Duration,
}

impl CoreLeaving {
    pub(crate) const fn new() -> Self {
        let never = Duration::ZERO;
        Self { streak: 0, near_since: never, near_at: never, left_at: never, pause: PAUSE.0 }
    }

    /// The thread has served. `is_near`: a client that it serves waits on its core.
    pub(crate) fn served(&mut self, is_near: bool) {
        match is_near {
            true => self.served_on_core(CoreSharers::Unknown),
            false => self.streak = 0,
        }
    }

    /// The thread has served one that waits on its core. It leaves the core if that may help.
    pub(crate) fn served_on_core(&mut self, sharers: CoreSharers) {
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

/// One side's knowledge of the two.
#[derive(Debug)]
pub(crate) struct CoreKnowledge {
    own: ControlWord,
    other: ControlWord,
    /// Value of the own word; 0: no core.
    told: u32,
}

impl CoreKnowledge {
    pub(crate) const fn of_client() -> Self {
        Self { own: ControlWord::ClientCore, other: ControlWord::NodeCore, told: 0 }
    }

    pub(crate) const fn of_node() -> Self {
        Self { own: ControlWord::NodeCore, other: ControlWord::ClientCore, told: 0 }
    }

    /// Says that this side polls on `core`; returns whether the other one does, too.
    pub(crate) fn meet(&mut self, memory: &RingMemory, core: u32) -> bool {
        if self.told != core {
            self.told = core;
            memory.word(self.own).store(core, Ordering::Relaxed);
        }
        memory.word(self.other).load(Ordering::Relaxed) == core
    }

    /// Says that this side polls no more: nobody knows where it will be woken.
    pub(crate) fn leave_core(&mut self, memory: &RingMemory) {
        self.told = 0;
        memory.word(self.own).store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use samite_wire::hello::RingLayout;

    use super::*;
    use crate::shm::mapping::memory_file;
    use crate::shm::ring::memory_len;

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

    #[test]
    fn each_side_knows_where_the_other_polls() {
        let layout = RingLayout { request_len: 4096, reply_len: 4096, arena_len: 0 };
        let file = memory_file("test-cores", memory_len(&layout).unwrap()).unwrap();
        let memory = RingMemory::map(&file, &layout).unwrap();
        let (mut client, mut node) = (CoreKnowledge::of_client(), CoreKnowledge::of_node());
        assert!(!client.meet(&memory, 1), "the node has said nothing");
        assert!(node.meet(&memory, 1));
        assert!(client.meet(&memory, 1));
        assert!(!node.meet(&memory, 2), "it was moved");
        assert!(!client.meet(&memory, 1));
        assert!(client.meet(&memory, 2));
        node.leave_core(&memory);
        assert!(!client.meet(&memory, 2));
        assert!(node.meet(&memory, 2));
        assert!(this_core() > 0);
    }
}
