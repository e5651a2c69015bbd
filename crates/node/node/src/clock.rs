//! The wall clocks of nodes, compared by those who send heartbeats: each with the clocks of the
//! coordinators' nodes. Leases and the order of changes do not rest on them; times of files, the
//! lives of tickets and the times of events do.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use samite_transport::client::NodeLink;
use samite_types::{Clock, Deadline, NodeId, Result, SystemClock};
use samite_wire::control::{ControlReply, ControlRequest};
use samite_wire::status::ClockDifference;

use crate::control_reply::refusal;
use crate::mutex::lock;
use crate::node_calls::call;

/// Between two comparisons with one node.
pub(crate) const COMPARED_APART: Duration = Duration::from_secs(5);
/// How long an answer may take: the longer, the less it says.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Most nodes whose differences are remembered: the last ones with a coordinator.
const REMEMBERED_MAX: usize = 64;

/// The differences that this node has found.
#[derive(Debug, Default)]
pub(crate) struct ClockComparisons {
    /// Added to the wall clock, in microseconds.
    ahead_us: i64,
    found: Mutex<BTreeMap<NodeId, ClockDifference>>,
}

impl ClockComparisons {
    /// None yet. The wall clock of this node counts as so many microseconds ahead of what the
    /// machine has.
    pub(crate) fn new(ahead_us: i64) -> Self {
        Self { ahead_us, found: Mutex::default() }
    }

    /// This node's wall clock, in microseconds since 1970-01-01 UTC.
    pub(crate) fn wall_us(&self) -> u64 {
        let now = SystemClock.realtime().as_micros() as u64;
        now.saturating_add_signed(self.ahead_us)
    }

    /// Notes one.
    fn note(&self, difference: ClockDifference) {
        let mut found = lock(&self.found);
        found.insert(difference.from, difference);
        if found.len() > REMEMBERED_MAX {
            found.pop_first();
        }
    }

    /// The one that is certainly the largest.
    pub(crate) fn largest(&self) -> Option<ClockDifference> {
        lock(&self.found).values().max_by_key(|difference| difference.certain_us()).copied()
    }

    /// Forgets those from nodes that are not `known`.
    pub(crate) fn retain(&self, known: impl Fn(NodeId) -> bool) {
        lock(&self.found).retain(|node, _| known(*node));
    }
}

/// By how much a clock is ahead that said `sent_us` when it was asked to read another one, which
/// said `read_us` then; the answer came `round_trip` later.
fn difference(
    from: NodeId,
    (sent_us, round_trip): (u64, Duration),
    read_us: u64,
) -> ClockDifference {
    let round_trip_us = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
    // It was read at some moment in between.
    let middle_us = i128::from(sent_us) + i128::from(round_trip_us / 2);
    let ahead_us = middle_us - i128::from(read_us);
    let ahead_us = ahead_us.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
    ClockDifference { from, ahead_us, error_us: round_trip_us.div_ceil(2) }
}

/// Compares this node's clock with that of the node at the other end of `link`.
///
/// # Errors
/// No answer in time, or a refusal.
pub(crate) fn compare(clocks: &ClockComparisons, link: &NodeLink) -> Result<()> {
    let (sent, sent_us) = (SystemClock.monotonic(), clocks.wall_us());
    match call(link, &ControlRequest::Clock, Deadline::after(ANSWER_TIMEOUT))? {
        ControlReply::Clock { wall_us } => {
            let round_trip = SystemClock.monotonic().saturating_sub(sent);
            let found = difference(link.node(), (sent_us, round_trip), wall_us);
            clocks.note(found);
            Ok(())
        }
        reply => Err(refusal(&reply)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_true_difference_lies_within_the_error(
            own in 1_u64 << 40..1 << 50,
            ahead in -(1_i64 << 39)..1 << 39,
            there_us in 0_u64..5_000_000,
            back_us in 0_u64..5_000_000,
        ) {
            // The other clock is read `there_us` after the question.
            let read = (own + there_us).saturating_add_signed(-ahead);
            let round_trip = Duration::from_micros(there_us + back_us);
            let found = difference(NodeId(1), (own, round_trip), read);
            prop_assert!(found.ahead_us.abs_diff(ahead) <= found.error_us);
            prop_assert!(found.certain_us() <= ahead.unsigned_abs());
        }

        #[test]
        fn no_reading_is_too_far(sent in any::<u64>(), read in any::<u64>(), trip in any::<u64>()) {
            let found = difference(NodeId(1), (sent, Duration::from_micros(trip)), read);
            prop_assert!(found.certain_us() <= found.ahead_us.unsigned_abs());
        }
    }

    #[test]
    fn the_largest_counts_and_former_coordinators_do_not() {
        let clocks = ClockComparisons::new(-5_000_000);
        assert!(clocks.wall_us() < SystemClock.realtime().as_micros() as u64 - 4_000_000);
        assert_eq!(clocks.largest(), None);
        for (node, ahead_us, error_us) in [(1, 30, 0), (2, -50, 5), (3, 900, 890)] {
            clocks.note(ClockDifference { from: NodeId(node), ahead_us, error_us });
        }
        assert_eq!(clocks.largest().map(|found| found.ahead_us), Some(-50));
        clocks.retain(|node| node != NodeId(2));
        assert_eq!(clocks.largest().map(|found| found.ahead_us), Some(30));
    }
}
