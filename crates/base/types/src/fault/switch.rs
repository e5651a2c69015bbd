//! The faults of one node: off, or as a table says; told to a log.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::plan::{DiskOp, DiskVerdict, FaultPlan, LinkVerdict};
use super::table::{FaultParty, FaultTable, TrafficClass};
use crate::{Clock, NodeId, RequestId, SystemClock};

/// A frame, as far as the log tells of it.
#[derive(Clone, Copy, Debug)]
pub struct FrameWords {
    /// Kind of the frame or write.
    pub kind: &'static str,
    /// Its request.
    pub request: RequestId,
    /// Its length, in bytes.
    pub len: usize,
    /// Traffic class.
    pub traffic: TrafficClass,
}

/// How much has gone wrong on purpose, since the table was set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InjectedCounts {
    /// Frames.
    pub frames: u64,
    /// Writes and syncs.
    pub writes: u64,
}

/// Takes the lines of the log.
pub type Sink = Box<dyn Fn(&str) + Send + Sync>;

struct SwitchState {
    plan: Option<FaultPlan>,
    injected: InjectedCounts,
}

/// Switch of the faults at one node. Shared by all threads that send, receive or write.
pub struct FaultSwitch {
    node: NodeId,
    is_active: AtomicBool,
    state: Mutex<SwitchState>,
    sink: Option<Sink>,
}

impl fmt::Debug for FaultSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faults({}, active: {})", self.node, self.is_active())
    }
}

impl FaultSwitch {
    /// No faults yet. `sink` takes a line, without its end, for each that is made:
    ///
    /// ```text
    /// 1763783084.250113 drop n1 c Reply r1025 4160
    /// 1763783084.250498 disk-torn n1 - Write - 512
    /// ```
    ///
    /// wall-clock time, fault, source, destination, kind of the frame, its request, its bytes.
    #[must_use]
    pub fn new(node: NodeId, sink: Option<Sink>) -> Arc<Self> {
        let state = SwitchState { plan: None, injected: InjectedCounts::default() };
        let is_active = AtomicBool::new(false);
        Arc::new(Self { node, is_active, state: Mutex::new(state), sink })
    }

    /// The node that this is about.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.node
    }

    fn lock(&self) -> MutexGuard<'_, SwitchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes by this table from now on, or by none.
    pub fn set(&self, table: Option<FaultTable>) {
        let mut state = self.lock();
        state.plan = table.map(|table| FaultPlan::new(table, SystemClock.realtime()));
        state.injected = InjectedCounts::default();
        self.is_active.store(state.plan.is_some(), Ordering::Relaxed);
    }

    /// The table, and what it has done.
    #[must_use]
    pub fn table(&self) -> (Option<FaultTable>, InjectedCounts) {
        let state = self.lock();
        (state.plan.as_ref().map(|plan| plan.table().clone()), state.injected)
    }

    /// Something may go wrong. Ask this first: all else takes a lock.
    #[inline]
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// The faults of a frame between this node and `peer`; `is_output`: sent by this node. A frame
    /// that another node has sent has met its faults there.
    #[must_use]
    pub fn frame(&self, peer: FaultParty, is_output: bool, frame: FrameWords) -> LinkVerdict {
        self.verdict(peer, is_output, frame, |verdict| verdict)
    }

    /// The faults of a frame of a handshake: a reset or a wrong bit, or nothing. Frames of a
    /// handshake are lost by [`Self::is_cut`] alone, as nobody says them again.
    #[must_use]
    pub fn handshake(&self, peer: FaultParty, is_output: bool, frame: FrameWords) -> LinkVerdict {
        self.verdict(peer, is_output, frame, |LinkVerdict { is_reset, corrupt, .. }| LinkVerdict {
            is_reset,
            corrupt,
            ..LinkVerdict::default()
        })
    }

    /// The plan's verdict on a frame, as far as `met` lets that happen; it is counted and told.
    fn verdict(
        &self,
        peer: FaultParty,
        is_output: bool,
        frame: FrameWords,
        met: impl FnOnce(LinkVerdict) -> LinkVerdict,
    ) -> LinkVerdict {
        let own = FaultParty::Node(self.node);
        let (from, to) = if is_output { (own, peer) } else { (peer, own) };
        if !self.is_active() || (!is_output && peer != FaultParty::Client) {
            return LinkVerdict::default();
        }
        let now = SystemClock.realtime();
        let mut state = self.lock();
        let Some(plan) = self.plan(&mut state, now) else { return LinkVerdict::default() };
        let verdict = met(plan.frame(from, to, frame.traffic, now));
        if !verdict.is_nothing() {
            state.injected.frames += 1;
            let FrameWords { kind, request, len, .. } = frame;
            let mut tell = |fault: &str| {
                self.tell(now, format_args!("{fault} {from} {to} {kind} {request} {len}"));
            };
            verdict.lost.into_iter().for_each(&mut tell);
            let named = [
                (verdict.is_reset, "reset"),
                (verdict.corrupt.is_some(), "corrupt"),
                (verdict.is_doubled, "duplicate"),
                (verdict.is_reordered, "reorder"),
                (!verdict.delay.is_zero() && !verdict.is_reordered, "delay"),
            ];
            named.iter().filter(|(is, _)| *is).for_each(|(_, name)| tell(name));
        }
        verdict
    }

    /// Whether nothing goes from this node to another one now.
    #[must_use]
    pub fn is_cut(&self, to: NodeId) -> bool {
        if !self.is_active() {
            return false;
        }
        let now = SystemClock.realtime();
        let mut state = self.lock();
        let own = FaultParty::Node(self.node);
        let to = FaultParty::Node(to);
        let is_cut = self.plan(&mut state, now).is_some_and(|plan| plan.is_cut(own, to, now));
        if is_cut {
            state.injected.frames += 1;
            self.tell(now, format_args!("cut {own} {to} Handshake - 0"));
        }
        is_cut
    }

    /// The faults of a write or sync of `len` bytes of this node's log. The caller sleeps for the
    /// delay.
    #[must_use]
    pub fn disk(&self, op: DiskOp, len: usize) -> DiskVerdict {
        if !self.is_active() {
            return DiskVerdict::default();
        }
        let now = SystemClock.realtime();
        let mut state = self.lock();
        let Some(plan) = self.plan(&mut state, now) else { return DiskVerdict::default() };
        let verdict = plan.disk(self.node, op, len, now);
        if verdict != DiskVerdict::default() {
            state.injected.writes += 1;
            let name = match verdict.fault {
                None => "disk-slow",
                Some(super::DiskFault::Error) => "disk-error",
                Some(super::DiskFault::Full) => "disk-full",
                Some(super::DiskFault::Torn { .. }) => "disk-torn",
                Some(super::DiskFault::Rot { .. }) => "disk-rot",
            };
            self.tell(now, format_args!("{name} {} - {op:?} - {len}", self.node));
        }
        verdict
    }

    /// The bit of the n-th record of this node that is wrong from now on: asked once of each, when
    /// a table was set.
    #[must_use]
    pub fn rot(&self, record: u64, len: u64) -> Option<u64> {
        let mut state = self.lock();
        let random = state.plan.as_ref()?.rot(self.node, record)?;
        state.injected.writes += 1;
        self.tell(
            SystemClock.realtime(),
            format_args!("memory-rot {} - Record - {len}", self.node),
        );
        Some(random)
    }

    /// The plan, unless it is over: then nobody needs to ask again.
    fn plan<'s>(&self, state: &'s mut SwitchState, now: Duration) -> Option<&'s mut FaultPlan> {
        let plan = state.plan.as_mut().filter(|plan| !plan.is_over(now));
        if plan.is_none() {
            self.is_active.store(false, Ordering::Relaxed);
        }
        plan
    }

    fn tell(&self, now: Duration, words: fmt::Arguments<'_>) {
        if let Some(sink) = &self.sink {
            sink(&format!("{}.{:06} {words}", now.as_secs(), now.subsec_micros()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::DiskFault;
    use super::*;

    const REPLY: FrameWords =
        FrameWords { kind: "Reply", request: RequestId(7), len: 100, traffic: TrafficClass::Other };

    fn faults() -> (Arc<FaultSwitch>, Arc<Mutex<Vec<String>>>) {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let take = move |line: &str| sink.lock().unwrap().push(line.to_owned());
        (FaultSwitch::new(NodeId(1), Some(Box::new(take))), lines)
    }

    #[test]
    fn each_fault_is_made_at_one_end_and_told() {
        let (faults, lines) = faults();
        let other = FaultParty::Node(NodeId(2));
        assert!(faults.frame(FaultParty::Client, true, REPLY).is_nothing());
        faults.set(Some("drop 100% * *\ncut 1 3\ndisk full 100% 1".parse().unwrap()));
        assert!(faults.frame(FaultParty::Client, true, REPLY).lost.is_some());
        assert!(faults.frame(FaultParty::Client, false, REPLY).lost.is_some());
        assert!(faults.frame(other, true, REPLY).lost.is_some());
        assert!(faults.frame(other, false, REPLY).is_nothing());
        assert!(faults.is_cut(NodeId(3)) && !faults.is_cut(NodeId(2)));
        assert_eq!(faults.disk(DiskOp::Write, 9).fault, Some(DiskFault::Full));
        assert_eq!(faults.table().1, InjectedCounts { frames: 4, writes: 1 });
        let lines = lines.lock().unwrap();
        let words: Vec<&str> =
            lines.iter().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
        let expected = [
            "drop n1 c Reply r7 100",
            "drop c n1 Reply r7 100",
            "drop n1 n2 Reply r7 100",
            "cut n1 n3 Handshake - 0",
            "disk-full n1 - Write - 9",
        ];
        assert_eq!(words, expected);
        faults.set(None);
        assert!(!faults.is_active());
    }

    #[test]
    fn a_table_whose_time_is_over_costs_nothing() {
        let (faults, _) = faults();
        faults.set(Some("start 5\ndrop 100% * * 0 1s".parse().unwrap()));
        assert!(faults.is_active());
        assert!(faults.frame(FaultParty::Client, true, REPLY).is_nothing());
        assert!(!faults.is_active());
        assert!(faults.table().0.is_some());
    }
}
