//! Which core each side of a pair of rings polls on.
//!
//! Two threads that share a core get nothing from polling for each other: the one that waits has to let the other run, at once. Each
//! side says in a word of the control page where it was when it last looked at its ring. That is a hint: the scheduler moves threads.
//!
//! It does not part two that run in turns, though, even where a core is idle: neither of them ever waits for long, and what has just run is not moved.
//! So the node goes elsewhere itself when it has shared a core for a while; less often, if that is in vain because all cores are taken. Then those on
//! them share with it in turns, so that none falls far behind, and the node is soon where one is done and only waits for the others.

use std::sync::atomic::Ordering;
use std::time::Duration;

use samite_types::{Clock, SystemClock};

use super::ring::{RingMemory, Word};

/// The core that this thread runs on at the moment, counted from 1.
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

/// When a thread leaves the core that it shares with one that it serves.
#[derive(Debug)]
pub(crate) struct Leaving {
    streak: u32,
    near_at: Duration,
    left_at: Duration,
    pause: Duration,
}

impl Leaving {
    pub(crate) const fn new() -> Self {
        Self { streak: 0, near_at: Duration::ZERO, left_at: Duration::ZERO, pause: PAUSE.0 }
    }

    /// The thread has served. `is_near`: one that it serves waits on its core. It leaves the core if that may help.
    pub(crate) fn served(&mut self, is_near: bool) {
        if !is_near {
            self.streak = 0;
        } else if self.is_due(SystemClock.monotonic()) {
            leave_core();
        }
    }

    /// It has served at `now`, and one that it serves waits on its core. Returns whether to leave it.
    fn is_due(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.near_at) > APART {
            (self.streak, self.pause) = (0, PAUSE.0);
        }
        self.near_at = now;
        self.streak += 1;
        if self.streak < NEAR_TURNS || now.saturating_sub(self.left_at) < self.pause {
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
pub(crate) struct Cores {
    own: Word,
    other: Word,
    /// What the own word says; 0: nothing.
    told: u32,
}

impl Cores {
    pub(crate) const fn of_client() -> Self {
        Self { own: Word::ClientCore, other: Word::NodeCore, told: 0 }
    }

    pub(crate) const fn of_node() -> Self {
        Self { own: Word::NodeCore, other: Word::ClientCore, told: 0 }
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
    pub(crate) fn leave(&mut self, memory: &RingMemory) {
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
        let mut leaving = Leaving::new();
        assert!(!leaving.is_due(at(1_000_000)) && !leaving.is_due(at(1_000_050)));
        leaving.served(false);
        assert!(!leaving.is_due(at(1_000_100)) && !leaving.is_due(at(1_000_150)));
        assert!(leaving.is_due(at(1_000_200)), "three in a row");
        // Always near somebody, ten times in a millisecond.
        let mut left = (3..30_000).filter(|turn| leaving.is_due(at(1_000_200 + turn * 100)));
        let times: Vec<u64> = left.by_ref().take(5).collect();
        assert_eq!(times, [10, 30, 70, 110, 150]);
        assert!((740..760).contains(&(left.count() + times.len())), "every 4 ms in the end");
        // Apart for long: the next time is another matter.
        assert!(!leaving.is_due(at(4_100_000)) && !leaving.is_due(at(4_100_100)));
        assert!(leaving.is_due(at(4_100_200)));
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
        let (mut client, mut node) = (Cores::of_client(), Cores::of_node());
        assert!(!client.meet(&memory, 1), "the node has said nothing");
        assert!(node.meet(&memory, 1));
        assert!(client.meet(&memory, 1));
        assert!(!node.meet(&memory, 2), "it was moved");
        assert!(!client.meet(&memory, 1));
        assert!(client.meet(&memory, 2));
        node.leave(&memory);
        assert!(!client.meet(&memory, 2));
        assert!(node.meet(&memory, 2));
        assert!(this_core() > 0);
    }
}
