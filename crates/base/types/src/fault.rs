//! Fault injection: which faults, between which parties, and when.
//!
//! A [`FaultTable`] is text that all nodes may share. A [`FaultPlan`] decides from it, from a seed,
//! and from the time, which faults a frame or a write meets: pure, so that a run can be repeated.
//! [`FaultSwitch`] is the switch that each node has: off it costs one load of an atomic per frame.
//!
//! Each fault is made once, although every node may have the same table: a node injects faults into
//! the frames that it sends, and into those that a client sends to it.

mod plan;
mod switch;
mod table;

pub use plan::{DiskFault, DiskOp, DiskVerdict, FaultPlan, LinkVerdict};
pub use switch::{FaultSwitch, FrameWords, InjectedCounts, Sink};
pub use table::{
    DiskAction, FaultAction, FaultParty, FaultRatio, FaultRule, FaultTable, FaultWindow,
    LinkAction, PartyEnd, TableError, TrafficClass, parse_time,
};
