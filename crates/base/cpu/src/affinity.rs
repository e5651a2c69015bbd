//! Affinity following: a worker moves to the core of the program that asks.
//!
//! A program that asks for one thing after the other waits each time, and its core would have
//! nothing to do: to be woken there takes longer than what it asks for. Where that is seen, the
//! worker that serves it goes to its core. Then neither of them is ever woken from a sleep, and the
//! other cores are left to programs with more to do.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// A program whose answer came on its own core asks again sooner, unless it computes.
const LATE: Duration = Duration::from_micros(12);
/// So many late requests in a row are no accident.
const LATE_MAX: u32 = 8;
/// Shortest and longest time from one look for the program's core to the next.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(32));
/// So many requests in a row that were not late show that it has helped.
const SOON_MIN: u32 = 64;

/// Bytes of `/proc/…/stat`, at most: 52 numbers and a short name.
const STAT_LEN_MAX: usize = 2048;

thread_local! {
    /// The cores that this thread may run on when it has not gone to one of them.
    static ELSEWHERE: Cell<Option<CpuSet>> = const { Cell::new(None) };
}

/// How soon one program asks again.
#[derive(Debug)]
pub struct AffinityFollower {
    /// The thread that has asked last; 0: nobody.
    who: u32,
    late: u32,
    soon: u32,
    /// When its core may be looked for again.
    from: Option<Instant>,
    pause: Duration,
}

impl Default for AffinityFollower {
    fn default() -> Self {
        Self::new()
    }
}

impl AffinityFollower {
    /// That of a worker that has answered nobody yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { who: 0, late: 0, soon: 0, from: None, pause: PAUSE.0 }
    }

    /// This worker has answered `who`; 0: the kernel itself. With several who ask there is no core to go to.
    pub fn answered(&mut self, who: u32) {
        if self.who != who && who != 0 {
            (self.who, self.late, self.soon, self.pause) = (who, 0, 0, PAUSE.0);
            leave();
        }
    }

    /// The next request has come so long after the last answer: goes to the core of the program
    /// that was answered if that may help, and away if it has not.
    pub fn asked_again(&mut self, after: Duration, now: Instant) {
        if self.is_late(after)
            && !leave()
            && self.may_look(now)
            && let Some(core) = core_of(self.who)
        {
            go_to(core);
        }
    }

    /// Whether requests come late.
    fn is_late(&mut self, after: Duration) -> bool {
        if after <= LATE {
            self.late = self.late.saturating_sub(1);
            self.soon = self.soon.saturating_add(1);
            if self.soon >= SOON_MIN {
                self.pause = PAUSE.0;
            }
            return false;
        }
        (self.late, self.soon) = (self.late + 1, 0);
        let is_late = self.late >= LATE_MAX;
        if is_late {
            self.late = 0;
        }
        is_late
    }

    /// Whether it is time to look for the core: less and less often while that is in vain.
    fn may_look(&mut self, now: Instant) -> bool {
        let may = self.who != 0 && self.from.is_none_or(|from| now >= from);
        if may {
            self.from = Some(now + self.pause);
            self.pause = (self.pause * 2).min(PAUSE.1);
        }
        may
    }
}

/// Lets this thread run wherever it may; `false`: it has not gone anywhere.
pub fn leave() -> bool {
    let all = ELSEWHERE.take();
    all.is_some_and(|all| sched_setaffinity(None, &all).is_ok())
}

/// Has this thread run on one core, if it may run there and on others.
fn go_to(core: usize) {
    let Ok(all) = sched_getaffinity(None) else { return };
    if core == sched_getcpu() || core >= CpuSet::MAX_CPU || !all.is_set(core) {
        return;
    }
    let mut one = CpuSet::new();
    one.set(core);
    if sched_setaffinity(None, &one).is_ok() {
        ELSEWHERE.set(Some(all));
    }
}

/// The core on which a thread of this host last ran, as the kernel tells; `None`: it is gone, or cannot be seen from here.
fn core_of(thread: u32) -> Option<usize> {
    let path = format!("/proc/{thread}/stat");
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut stat = [0; STAT_LEN_MAX];
    let len = rustix::io::read(&file, &mut stat).ok()?;
    processor(&String::from_utf8_lossy(&stat[..len]))
}

/// Its field of that name, of `proc_pid_stat(5)`: the 39th, counted from 1. The second, a name, may
/// contain anything.
fn processor(stat: &str) -> Option<usize> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(6);
    const LONG: Duration = Duration::from_micros(30);

    #[test]
    fn requests_that_mostly_come_late_are_no_accident() {
        let mut near = AffinityFollower::new();
        let late = |near: &mut AffinityFollower, after: &[Duration]| {
            (0..100).any(|_| after.iter().any(|after| near.is_late(*after)))
        };
        assert!(!late(&mut near, &[SOON]));
        assert!(!late(&mut near, &[SOON, LONG, SOON]), "a program that computes now and then");
        assert!(late(&mut near, &[LONG]));
        assert!(late(&mut near, &[LONG, LONG, SOON]), "the kernel itself waits for nothing");
    }

    #[test]
    fn who_looks_in_vain_looks_less_often() {
        let (mut near, start) = (AffinityFollower::new(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert!(!near.may_look(start), "nobody has asked");
        near.answered(7);
        let looks = |near: &mut AffinityFollower, from: u64| {
            (from..from + 200).filter(|ms| near.may_look(at(*ms))).map(|ms| ms - from).collect()
        };
        let all: Vec<u64> = looks(&mut near, 0);
        assert_eq!(all[..6], [0, 1, 3, 7, 15, 31]);
        assert_eq!(all[6] - all[5], 32, "and never less");
        for _ in 0..SOON_MIN {
            assert!(!near.is_late(SOON));
        }
        let all: Vec<u64> = looks(&mut near, 1000);
        assert_eq!(all[..3], [0, 1, 3], "it had helped");
        near.answered(0);
        assert_eq!(near.who, 7, "the kernel does not count");
    }

    #[test]
    fn a_thread_goes_to_one_core_and_leaves_it() {
        let run = || {
            let all = sched_getaffinity(None).unwrap();
            assert!(!leave(), "it is nowhere in particular");
            let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|at| all.is_set(*at)).collect();
            let mut gone = 0;
            for core in cores.iter().cycle().take(100) {
                go_to(*core);
                let (at, has_gone) = (sched_getcpu(), leave());
                assert!(!has_gone || at == *core);
                gone += u32::from(has_gone);
                assert_eq!(sched_getaffinity(None).unwrap(), all);
            }
            assert!(gone > 0 || cores.len() == 1);
            go_to(CpuSet::MAX_CPU);
            assert_eq!(sched_getaffinity(None).unwrap(), all, "there is no such core");
        };
        std::thread::spawn(run).join().unwrap();
    }

    #[test]
    fn the_core_of_a_thread_is_what_the_kernel_says() {
        let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert!(core_of(own).unwrap() < CpuSet::MAX_CPU);
        assert_eq!(core_of(u32::MAX), None);
        let fields = (3..=52).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(processor(&format!("1 (a) b) (c) {fields}")), Some(39));
        for broken in ["", "1 (a", "1 (a) R 1 2", "1 (a) R x y"] {
            assert_eq!(processor(broken), None);
        }
    }
}
