//! Decides the faults of the next frame or write: pure.

use std::collections::HashMap;
use std::time::Duration;

use super::table::{DiskAction, FaultAction, FaultParty, FaultTable, LinkAction, TrafficClass};
use crate::NodeId;

/// Pairs of ends that have their own sequence of random numbers; further ones share one.
const PAIRS_MAX: usize = 4096;
/// A frame that is to arrive behind others is delayed for at most this time.
const REORDER_HOLD_MAX_US: u64 = 5_000;

/// Faults of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkVerdict {
    /// It does not arrive, and by which fault.
    pub lost: Option<&'static str>,
    /// Its connection is reset instead.
    pub is_reset: bool,
    /// It arrives with a wrong bit; a random number to choose it by.
    pub corrupt: Option<u64>,
    /// It arrives twice.
    pub is_doubled: bool,
    /// It arrives later.
    pub delay: Duration,
    /// A part of the delay is there to let others overtake.
    pub is_reordered: bool,
}

impl LinkVerdict {
    /// Nothing happens to it.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Operations on a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOp {
    /// Bytes are added.
    Write,
    /// Makes written bytes lasting.
    Sync,
}

/// How it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// With an I/O error (`EIO`), without effect.
    Error,
    /// For lack of space (`ENOSPC`), without effect.
    Full,
    /// With an I/O error, after that many bytes were written: fewer than there were.
    Torn {
        /// Bytes from the start that are to be written.
        kept: usize,
    },
    /// Not at all: one bit of it is wrong then.
    Rot {
        /// Which bit, of those that are written.
        bit: usize,
    },
}

fn is_with_client(from: FaultParty, to: FaultParty) -> bool {
    [from, to].contains(&FaultParty::Client)
}

/// Faults of a write or sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskVerdict {
    /// It takes longer by this.
    pub delay: Duration,
    /// It fails.
    pub fault: Option<DiskFault>,
}

/// A table at work. The n-th frame of a pair, and the n-th write of a node, always meets the same fate at the same time.
#[derive(Debug)]
pub struct FaultPlan {
    table: FaultTable,
    start: Duration,
    frames: HashMap<(FaultParty, FaultParty), u64>,
    shared: u64,
    writes: u64,
}

impl FaultPlan {
    /// `now`: wall-clock time, from which windows count if the table does not say otherwise.
    #[must_use]
    pub fn new(mut table: FaultTable, now: Duration) -> Self {
        let start = *table.start.get_or_insert(now);
        Self { table, start, frames: HashMap::new(), shared: 0, writes: 0 }
    }

    /// The table; its start is set.
    #[must_use]
    pub const fn table(&self) -> &FaultTable {
        &self.table
    }

    /// Whether no rule will apply any more.
    #[must_use]
    pub fn is_over(&self, now: Duration) -> bool {
        self.table.end().is_some_and(|end| now >= self.start.saturating_add(end))
    }

    /// The faults of a frame.
    pub fn frame(
        &mut self,
        from: FaultParty,
        to: FaultParty,
        traffic: TrafficClass,
        now: Duration,
    ) -> LinkVerdict {
        let has_room = self.frames.len() < PAIRS_MAX;
        let number = match self.frames.get_mut(&(from, to)) {
            Some(number) => number,
            None if has_room => self.frames.entry((from, to)).or_default(),
            None => &mut self.shared,
        };
        *number += 1;
        let mut verdict = LinkVerdict::default();
        let Some(at) = now.checked_sub(self.start) else { return verdict };
        let pair = mix(code(from) << 32 ^ code(to), *number);
        for (rule, index) in self.table.rules.iter().zip(0u64..) {
            let FaultAction::Link { action, from: is_from, to: is_to } = rule.what else {
                continue;
            };
            if !is_from.takes(from) || !is_to.takes(to) || !rule.window.holds(at) {
                continue;
            }
            let random = mix(mix(self.table.seed, index), pair);
            match action {
                LinkAction::Cut => verdict.lost = Some("cut"),
                LinkAction::CutOf(of) if of == traffic && !is_with_client(from, to) => {
                    verdict.lost = verdict.lost.or(Some(of.cut()));
                }
                LinkAction::Drop(ratio) if ratio.takes(random) => {
                    verdict.lost = verdict.lost.or(Some("drop"));
                }
                LinkAction::Delay(time) => verdict.delay += time,
                LinkAction::Duplicate(ratio) => verdict.is_doubled |= ratio.takes(random),
                LinkAction::Reorder(ratio) if ratio.takes(random) => {
                    let hold = 1 + mix(random, 1) % REORDER_HOLD_MAX_US;
                    verdict.delay += Duration::from_micros(hold);
                    verdict.is_reordered = true;
                }
                LinkAction::Corrupt(ratio) if ratio.takes(random) => {
                    verdict.corrupt = Some(mix(random, 2));
                }
                LinkAction::Reset(ratio) => verdict.is_reset |= ratio.takes(random),
                LinkAction::Drop(_)
                | LinkAction::Reorder(_)
                | LinkAction::Corrupt(_)
                | LinkAction::CutOf(_) => {}
            }
        }
        if verdict.lost.is_some() {
            return LinkVerdict { lost: verdict.lost, ..LinkVerdict::default() };
        }
        if verdict.is_reset {
            return LinkVerdict { is_reset: true, ..LinkVerdict::default() };
        }
        verdict
    }

    /// The records of `node` that rot now that the table is set: for its n-th record, a random
    /// number that says which bit is wrong from then on.
    #[must_use]
    pub fn rot(&self, node: NodeId, record: u64) -> Option<u64> {
        let mut rules = self.table.rules.iter().zip(0u64..);
        rules.find_map(|(rule, index)| {
            let FaultAction::Memory { ratio, node: whose } = rule.what else { return None };
            let random = mix(mix(self.table.seed, index), mix(u64::from(node.get()), record));
            let takes = whose.takes(FaultParty::Node(node)) && ratio.takes(random);
            takes.then(|| mix(random, 5))
        })
    }

    /// Whether nothing goes from one end to the other now, not even the words that begin a connection.
    #[must_use]
    pub fn is_cut(&self, from: FaultParty, to: FaultParty, now: Duration) -> bool {
        let Some(at) = now.checked_sub(self.start) else { return false };
        self.table.rules.iter().any(|rule| match rule.what {
            FaultAction::Link { action: LinkAction::Cut, from: is_from, to: is_to } => {
                is_from.takes(from) && is_to.takes(to) && rule.window.holds(at)
            }
            _ => false,
        })
    }

    /// The faults of a write or sync of `len` bytes at `node`.
    pub fn disk(&mut self, node: NodeId, op: DiskOp, len: usize, now: Duration) -> DiskVerdict {
        self.writes += 1;
        let mut verdict = DiskVerdict::default();
        let Some(at) = now.checked_sub(self.start) else { return verdict };
        for (rule, index) in self.table.rules.iter().zip(0u64..) {
            let FaultAction::Disk { action, node: whose } = rule.what else { continue };
            if !whose.takes(FaultParty::Node(node)) || !rule.window.holds(at) {
                continue;
            }
            let random = mix(mix(self.table.seed, index), mix(u64::from(node.get()), self.writes));
            let fault = match action {
                DiskAction::Slow(time) => {
                    verdict.delay += time;
                    None
                }
                DiskAction::Error(ratio) => ratio.takes(random).then_some(DiskFault::Error),
                DiskAction::Full(ratio) => {
                    (op == DiskOp::Write && ratio.takes(random)).then_some(DiskFault::Full)
                }
                DiskAction::Torn(ratio) => (op == DiskOp::Write && len > 0 && ratio.takes(random))
                    .then(|| DiskFault::Torn { kept: mix(random, 3) as usize % len }),
                DiskAction::Rot(ratio) => (op == DiskOp::Write && len > 0 && ratio.takes(random))
                    .then(|| DiskFault::Rot { bit: mix(random, 4) as usize % (8 * len) }),
            };
            verdict.fault = verdict.fault.or(fault);
        }
        verdict
    }
}

fn code(party: FaultParty) -> u64 {
    match party {
        FaultParty::Node(node) => u64::from(node.get()),
        FaultParty::Client => u64::from(u32::MAX) + 1,
    }
}

/// Two numbers to one that looks random (the finalizer of SplitMix64; Steele, Lea, Flood 2014).
const fn mix(a: u64, b: u64) -> u64 {
    let mut z =
        a.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(b).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: FaultParty = FaultParty::Node(NodeId(1));
    const TWO: FaultParty = FaultParty::Node(NodeId(2));

    fn plan(text: &str) -> FaultPlan {
        FaultPlan::new(text.parse().unwrap(), Duration::from_secs(1000))
    }

    fn at(ms: u64) -> Duration {
        Duration::from_secs(1000) + Duration::from_millis(ms)
    }

    #[test]
    fn ratios_come_out_and_runs_repeat() {
        let text = "seed 7\ndrop 15% 1 2\nduplicate 5% 1 *\nreorder 10% * 2\ncorrupt 1% * *";
        let fates: Vec<LinkVerdict> = {
            let mut plan = plan(text);
            (0..100_000).map(|_| plan.frame(ONE, TWO, TrafficClass::Other, at(1))).collect()
        };
        let share = |is: fn(&LinkVerdict) -> bool| {
            fates.iter().filter(|fate| is(fate)).count() as f64 / fates.len() as f64
        };
        assert!((share(|fate| fate.lost == Some("drop")) - 0.15).abs() < 0.005);
        assert!((share(|fate| fate.is_doubled) - 0.05 * 0.85).abs() < 0.005);
        assert!((share(|fate| fate.is_reordered) - 0.1 * 0.85).abs() < 0.005);
        assert!((share(|fate| fate.corrupt.is_some()) - 0.01 * 0.85).abs() < 0.005);
        let mut again = plan(text);
        // Other pairs in between change nothing.
        for fate in &fates {
            again.frame(TWO, ONE, TrafficClass::Other, at(1));
            assert_eq!(again.frame(ONE, TWO, TrafficClass::Other, at(1)), *fate);
        }
        let mut other = plan(&text.replace("seed 7", "seed 8"));
        assert!(
            fates.iter().any(|fate| other.frame(ONE, TWO, TrafficClass::Other, at(1)) != *fate)
        );
    }

    #[test]
    fn what_resets_its_connection_meets_nothing_else() {
        let mut plan = plan("reset 100% 1 2\ncorrupt 100% * *\nduplicate 100% * *");
        let reset = LinkVerdict { is_reset: true, ..LinkVerdict::default() };
        assert_eq!(plan.frame(ONE, TWO, TrafficClass::Other, at(1)), reset);
        assert!(!plan.frame(TWO, ONE, TrafficClass::Other, at(1)).is_reset);
    }

    #[test]
    fn windows_and_ends_hold() {
        let mut plan = plan("cut 1 2 1s 3s\ndelay 120us 1 c 0 200ms\ndelay 1ms * c");
        assert!(plan.frame(ONE, TWO, TrafficClass::Other, at(999)).is_nothing());
        assert_eq!(plan.frame(ONE, TWO, TrafficClass::Other, at(1000)).lost, Some("cut"));
        assert!(plan.is_cut(ONE, TWO, at(2999)) && !plan.is_cut(TWO, ONE, at(2999)));
        assert!(plan.frame(ONE, TWO, TrafficClass::Other, at(3000)).is_nothing());
        assert!(plan.frame(TWO, ONE, TrafficClass::Other, at(2000)).is_nothing());
        assert_eq!(
            plan.frame(ONE, FaultParty::Client, TrafficClass::Other, at(0)).delay,
            Duration::from_micros(1120)
        );
        assert_eq!(
            plan.frame(ONE, FaultParty::Client, TrafficClass::Other, at(200)).delay,
            Duration::from_millis(1)
        );
        // Before the start that a table names, nothing happens.
        assert!(
            plan.frame(ONE, FaultParty::Client, TrafficClass::Other, Duration::from_secs(1))
                .is_nothing()
        );
        assert!(!plan.is_over(at(1 << 30)));
        assert!(FaultPlan::new("cut * * 0 1s".parse().unwrap(), at(0)).is_over(at(1000)));
    }

    #[test]
    fn one_purpose_is_cut_off_and_no_other() {
        let mut plan = plan("cut-peer 1 2\ncut-coordinator * 1");
        assert!(!plan.is_cut(ONE, TWO, at(0)) && !plan.is_cut(TWO, ONE, at(0)));
        let mut lost = |from, to, traffic| plan.frame(from, to, traffic, at(0)).lost;
        assert_eq!(lost(ONE, TWO, TrafficClass::Peer), Some("cut-peer"));
        assert_eq!(lost(ONE, TWO, TrafficClass::Coordinator), None);
        assert_eq!(lost(TWO, ONE, TrafficClass::Coordinator), Some("cut-coordinator"));
        assert_eq!(lost(TWO, ONE, TrafficClass::Peer), None);
        // A client's requests to a node are not for its coordinator.
        assert_eq!(lost(FaultParty::Client, ONE, TrafficClass::Coordinator), None);
        assert_eq!(lost(TWO, ONE, TrafficClass::Other), None);
    }

    #[test]
    fn many_pairs_take_no_more_room() {
        let mut plan = plan("drop 50% * *");
        for node in 0..PAIRS_MAX as u32 + 100 {
            plan.frame(FaultParty::Node(NodeId(node)), ONE, TrafficClass::Other, at(0));
        }
        assert_eq!(plan.frames.len(), PAIRS_MAX);
    }

    #[test]
    fn memory_rots_as_told() {
        let plan = plan("memory rot 10% 2");
        let rotten = |node: u32| (0..10_000).filter_map(|n| plan.rot(NodeId(node), n)).count();
        assert!((900..1100).contains(&rotten(2)));
        assert_eq!(rotten(1), 0);
        assert_eq!(plan.table().to_string().parse::<FaultTable>().as_ref(), Ok(plan.table()));
        assert!("memory rot 10% 2 1s".parse::<FaultTable>().is_err());
        assert!("memory rot 10% c".parse::<FaultTable>().is_err());
    }

    #[test]
    fn disks_fail_as_told() {
        let node = NodeId(2);
        let mut plan = plan("disk slow 5ms 2\ndisk torn 50% 2 1s\ndisk full 100% 3");
        let quiet = plan.disk(node, DiskOp::Write, 100, at(0));
        assert_eq!(quiet, DiskVerdict { delay: Duration::from_millis(5), fault: None });
        let torn: Vec<usize> = (0..1000)
            .filter_map(|_| match plan.disk(node, DiskOp::Write, 100, at(1000)).fault {
                Some(DiskFault::Torn { kept }) => Some(kept),
                _ => None,
            })
            .collect();
        assert!((400..600).contains(&torn.len()) && torn.iter().all(|kept| *kept < 100));
        assert_eq!(plan.disk(node, DiskOp::Sync, 0, at(1000)).fault, None);
        assert_eq!(plan.disk(NodeId(3), DiskOp::Write, 1, at(0)).fault, Some(DiskFault::Full));
        assert_eq!(plan.disk(NodeId(0), DiskOp::Write, 1, at(0)), DiskVerdict::default());
    }
}
