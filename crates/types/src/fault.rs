//! Faults on purpose: what is to go wrong, between whom, and when.
//!
//! A [`Table`] is text that all nodes may share. A [`Plan`] decides from it, from a seed, and from the time, what happens to a frame or
//! a write: pure, so that a run can be repeated. [`Faults`] is the switch that each node has: off it costs one load of
//! an atomic per frame.
//!
//! Each fault is made once, although every node may have the same table: what a node sends is harmed by that node, and what a client sends by
//! the node that receives it.

mod plan;
mod switch;
mod table;

pub use plan::{DiskFault, DiskOp, DiskVerdict, LinkVerdict, Plan};
pub use switch::{Faults, FrameWords, Injected, Sink};
pub use table::{
    DiskAction, End, LinkAction, Party, Ratio, Rule, Table, TableError, Traffic, What, Window,
    parse_time,
};
