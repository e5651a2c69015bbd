//! The events of a node: what changed in the store, for administrators. Bounded; the oldest go.

mod map_events;

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use samite_backend::TargetUsage;
use samite_placement::ClusterMap;
use samite_types::{Clock, Epoch, NodeId, SystemClock, human_bytes};
use samite_wire::control::BackendSpec;
use samite_wire::events::{EVENTS_MAX, EventKind, StoreEvent};
use samite_wire::status::ClockDifference;

use crate::mutex::lock;

/// Most events that a node remembers.
const REMEMBERED_MAX: usize = 4096;
/// Percent in use from which on a target counts as full, and below which it has room again.
const FULL_PERCENT: u64 = 95;
const FREE_PERCENT: u64 = 90;
/// A clock counts as wrong from such a difference on, and as right below the second, in
/// microseconds.
const SKEWED_US: u64 = ClockDifference::LARGE_US;
const RIGHT_US: u64 = ClockDifference::LARGE_US / 2;
/// Refusals for want of space are told again after such a time without any.
const REFUSALS_APART: Duration = Duration::from_secs(60);

/// An event that is to be noted: its kind, the node that it is about, and words.
type EventWords = (EventKind, Option<NodeId>, String);

/// The events that this node has noticed since its start.
#[derive(Debug, Default)]
pub(crate) struct EventHistory {
    state: Mutex<HistoryState>,
}

#[derive(Debug, Default)]
struct HistoryState {
    events: VecDeque<StoreEvent>,
    /// Number of the last one.
    last: u64,
    /// Targets that count as full.
    full: HashSet<BackendSpec>,
    /// The clock of this node differs from another one.
    is_skewed: bool,
    /// Operations that were refused for want of space, and when the last of them was noticed.
    refusals: u64,
    refused_last: Option<Duration>,
}

impl HistoryState {
    fn add(&mut self, at: Duration, epoch: Epoch, (kind, node, words): EventWords) {
        self.last += 1;
        if self.events.len() == REMEMBERED_MAX {
            self.events.pop_front();
        }
        let at_us = at.as_micros() as u64;
        self.events.push_back(StoreEvent { number: self.last, at_us, epoch, kind, node, words });
    }
}

impl EventHistory {
    /// The map `after` has taken the place of `before`, if there was one.
    pub(crate) fn see_map(&self, before: Option<&ClusterMap>, after: &ClusterMap) {
        let (at, epoch) = (SystemClock.realtime(), after.epoch());
        let mut state = lock(&self.state);
        for event in map_events::between(before, after) {
            state.add(at, epoch, event);
        }
    }

    /// A target of this node, which serves by `epoch`, is so full.
    pub(crate) fn see_usage(
        &self,
        (node, epoch): (NodeId, Epoch),
        backend: &BackendSpec,
        usage: &TargetUsage,
    ) {
        let mut state = lock(&self.state);
        let was_full = state.full.contains(backend);
        let used = u128::from(usage.used) * 100;
        let is_at = |percent: u64| used >= u128::from(usage.capacity) * u128::from(percent);
        let limit = if was_full { FREE_PERCENT } else { FULL_PERCENT };
        let is_full = usage.capacity > 0 && is_at(limit);
        if is_full == was_full {
            return;
        }
        let (kind, how) = if is_full {
            state.full.insert(backend.clone());
            (EventKind::TargetFull, "is nearly full")
        } else {
            state.full.remove(backend);
            (EventKind::TargetFree, "has room again")
        };
        let words = format!(
            "{node}: the {} target {how}: {} of {} in use",
            backend.name,
            human_bytes(usage.used),
            human_bytes(usage.capacity)
        );
        state.add(SystemClock.realtime(), epoch, (kind, Some(node), words));
    }

    /// So many operations were refused for want of space since the start of `node`, as is known
    /// `now`, by its monotonic clock.
    pub(crate) fn see_refusals(&self, (node, epoch): (NodeId, Epoch), total: u64, now: Duration) {
        let mut state = lock(&self.state);
        let fresh = total.saturating_sub(state.refusals);
        state.refusals = total;
        if fresh == 0 {
            return;
        }
        let is_told = state.refused_last.is_some_and(|last| now < last + REFUSALS_APART);
        state.refused_last = Some(now);
        if !is_told {
            let words = format!("{node} refuses changes for want of space");
            let event = (EventKind::SpaceRefused, Some(node), words);
            state.add(SystemClock.realtime(), epoch, event);
        }
    }

    /// The wall clock of `node` differs from those of coordinators' nodes by so much at most.
    pub(crate) fn see_clock(
        &self,
        (node, epoch): (NodeId, Epoch),
        largest: Option<&ClockDifference>,
    ) {
        let Some(largest) = largest else { return };
        let mut state = lock(&self.state);
        let limit = if state.is_skewed { RIGHT_US } else { SKEWED_US };
        let is_skewed = largest.certain_us() >= limit;
        if is_skewed == state.is_skewed {
            return;
        }
        state.is_skewed = is_skewed;
        let event = if is_skewed {
            (EventKind::ClockSkew, Some(node), largest.words(node))
        } else {
            let words = format!("{node}: its clock is right again");
            (EventKind::ClockRight, Some(node), words)
        };
        state.add(SystemClock.realtime(), epoch, event);
    }

    /// Those of higher numbers than `after`, the oldest first, as many as one answer has.
    pub(crate) fn since(&self, after: u64) -> Vec<StoreEvent> {
        let state = lock(&self.state);
        let events = state.events.iter().filter(|event| event.number > after);
        events.take(EVENTS_MAX).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_map;

    fn kinds(history: &EventHistory, after: u64) -> Vec<EventKind> {
        history.since(after).iter().map(|event| event.kind).collect()
    }

    #[test]
    fn a_target_is_full_and_free_once_each_time() {
        let history = EventHistory::default();
        let place = (NodeId(1), Epoch(7));
        let backend = BackendSpec::default();
        for used in [10, 94, 95, 99, 92, 90, 89, 94, 96] {
            let usage = TargetUsage { capacity: 100, used, ..TargetUsage::default() };
            history.see_usage(place, &backend, &usage);
        }
        use EventKind::{TargetFree, TargetFull};
        assert_eq!(kinds(&history, 0), [TargetFull, TargetFree, TargetFull]);
        assert_eq!(kinds(&history, 2), [TargetFull]);
        let first = &history.since(0)[0];
        assert_eq!((first.number, first.epoch, first.node), (1, Epoch(7), Some(NodeId(1))));
        assert_eq!(first.words, "n1: the memory target is nearly full: 95 B of 100 B in use");
    }

    #[test]
    fn a_clock_is_wrong_and_right_once_each_time() {
        let history = EventHistory::default();
        let place = (NodeId(2), Epoch(7));
        history.see_clock(place, None);
        for (ahead_us, error_us) in
            [(0, 10), (1_400_000, 500_000), (-1_400_000, 300), (900_000, 0), (400_000, 0)]
        {
            let found = ClockDifference { from: NodeId(0), ahead_us, error_us };
            history.see_clock(place, Some(&found));
        }
        assert_eq!(kinds(&history, 0), [EventKind::ClockSkew, EventKind::ClockRight]);
        let first = &history.since(0)[0];
        assert_eq!(first.words, "n2: its clock is 1.4 s behind that of n0");
    }

    #[test]
    fn refusals_are_told_once_until_a_minute_has_none() {
        let history = EventHistory::default();
        let place = (NodeId(1), Epoch(7));
        for (total, second) in [(0, 1), (3, 2), (5, 50), (5, 109), (6, 109), (6, 200), (7, 201)] {
            history.see_refusals(place, total, Duration::from_secs(second));
        }
        assert_eq!(kinds(&history, 0), [EventKind::SpaceRefused; 2]);
    }

    #[test]
    fn the_oldest_go_and_an_answer_is_bounded() {
        let history = EventHistory::default();
        let map = test_map::three_nodes();
        for _ in 0..REMEMBERED_MAX {
            history.see_map(None, &map);
        }
        let (told, rest) = (history.since(0), history.since(3 * REMEMBERED_MAX as u64 - 3));
        assert_eq!((told.len(), rest.len()), (EVENTS_MAX, 3));
        assert_eq!(told[0].number, 2 * REMEMBERED_MAX as u64 + 1);
    }
}
