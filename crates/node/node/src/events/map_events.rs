//! The events that two cluster maps, one after the other, tell of.

use std::collections::BTreeMap;

use samite_placement::ClusterMap;
use samite_types::{NodeId, TargetId};
use samite_wire::control::{MemberConsistency, MirrorGroup, NodeReachability};
use samite_wire::events::EventKind;

use super::EventWords;
use crate::map_diff::lost;

/// The events between `before` (`None`: there was no map) and `after`.
pub(super) fn between(before: Option<&ClusterMap>, after: &ClusterMap) -> Vec<EventWords> {
    let mut events = Vec::new();
    nodes(before, after, &mut events);
    let Some(before) = before else { return events };
    GroupEvents::between(before, after).add_to(&mut events);
    events.extend(lost(before, after).map(|words| (EventKind::Loss, None, words)));
    events
}

/// Nodes that came, went, or are seen otherwise.
fn nodes(before: Option<&ClusterMap>, after: &ClusterMap, events: &mut Vec<EventWords>) {
    let mut add = |kind, node: NodeId, how: &str| {
        events.push((kind, Some(node), format!("{node} {how}")));
    };
    for info in before.into_iter().flat_map(|before| before.nodes()) {
        if after.node(info.node).is_none() {
            add(EventKind::NodeRemoved, info.node, "was removed");
        }
    }
    for (info, state) in after.nodes().iter().zip(&after.data().states) {
        let node = info.node;
        let was = before.and_then(|before| before.node(node));
        let was_state = before.and_then(|before| before.state(node));
        match was {
            None => add(EventKind::NodeJoined, node, "has joined"),
            Some(was) if was.incarnation != info.incarnation => {
                add(EventKind::NodeJoined, node, "was started again, and has joined");
            }
            Some(_) => {}
        }
        let Some(was_state) = was_state else { continue };
        if was_state.reachability != state.reachability {
            let (kind, how) = match state.reachability {
                NodeReachability::Online => (EventKind::NodeOnline, "is online"),
                NodeReachability::ProbablyOffline => (EventKind::NodeAway, "does not answer"),
                NodeReachability::Offline => (EventKind::NodeOffline, "is offline"),
            };
            add(kind, node, how);
        }
        if state.is_draining && !was_state.is_draining {
            add(EventKind::NodeDrains, node, "is to hold nothing any more");
        }
    }
}

/// Changes of mirror groups, counted.
#[derive(Default)]
struct GroupEvents {
    /// Partitions that one node led and another leads.
    failovers: BTreeMap<(NodeId, NodeId), usize>,
    /// Members on a node that are as they were not before.
    members: BTreeMap<(NodeId, MemberEvent), usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MemberEvent {
    Lacks,
    IsGood,
    IsBad,
}

impl GroupEvents {
    fn between(before: &ClusterMap, after: &ClusterMap) -> Self {
        let mut found = Self::default();
        for table in &after.data().tables {
            let Some(known) = before.table(table.redundancy) else { continue };
            for (was, is) in known.groups.iter().zip(&table.groups).filter(|(was, is)| was != is) {
                found.failover((before, was), (after, is));
                found.members((before, was), (after, is));
            }
        }
        found
    }

    /// A new primary counts when the one before is away or has ended, and not when it was moved.
    fn failover(
        &mut self,
        (before, was): (&ClusterMap, &MirrorGroup),
        (after, is): (&ClusterMap, &MirrorGroup),
    ) {
        let (from, to) = (was.members[0].target, is.members[0].target);
        let (Some(old), Some(new)) = (before.node_of_target(from), after.node_of_target(to)) else {
            return;
        };
        let is_online =
            after.state(old).is_some_and(|state| state.reachability == NodeReachability::Online);
        let is_same = before.incarnation_of(from) == after.incarnation_of(from);
        if old != new && !(is_online && is_same) {
            *self.failovers.entry((old, new)).or_default() += 1;
        }
    }

    fn members(
        &mut self,
        (_, was): (&ClusterMap, &MirrorGroup),
        (after, is): (&ClusterMap, &MirrorGroup),
    ) {
        use MemberConsistency::{Bad, Good, NeedsResync, Restarted};
        let consistency = |group: &MirrorGroup, target: TargetId| {
            group.members.iter().find(|one| one.target == target).map(|one| one.consistency)
        };
        for member in &is.members {
            let Some(node) = after.node_of_target(member.target) else { continue };
            let event = match (consistency(was, member.target), member.consistency) {
                (Some(was), is) if was == is => continue,
                (Some(NeedsResync | Restarted), NeedsResync | Restarted) => continue,
                // It begins empty, with a group that is made or moved.
                (None, Good) => continue,
                (_, NeedsResync | Restarted) => MemberEvent::Lacks,
                (_, Good) => MemberEvent::IsGood,
                (_, Bad) => MemberEvent::IsBad,
            };
            *self.members.entry((node, event)).or_default() += 1;
        }
    }

    fn add_to(self, events: &mut Vec<EventWords>) {
        for ((from, to), partitions) in self.failovers {
            let words = format!("{to} leads {partitions} partitions that {from} led");
            events.push((EventKind::Failover, Some(to), words));
        }
        for ((node, event), partitions) in self.members {
            let (kind, words) = match event {
                MemberEvent::Lacks => (
                    EventKind::ResyncNeeded,
                    format!("{node} has to be brought up to date in {partitions} partitions"),
                ),
                MemberEvent::IsGood => (
                    EventKind::ResyncDone,
                    format!("{node} has everything again in {partitions} partitions"),
                ),
                MemberEvent::IsBad => (
                    EventKind::MemberBad,
                    format!("{node} cannot be brought up to date in {partitions} partitions"),
                ),
            };
            events.push((kind, Some(node), words));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_map;

    /// Events without their words.
    fn kinds(events: &[EventWords]) -> Vec<(EventKind, Option<u32>)> {
        events.iter().map(|(kind, node, _)| (*kind, node.map(NodeId::get))).collect()
    }

    #[test]
    fn a_life_with_two_deaths_is_told() {
        use EventKind::{Failover, Loss, NodeJoined, NodeOffline, ResyncNeeded};
        let [first, dead, after] = test_map::two_deaths();
        let begun = between(None, &first);
        assert_eq!(kinds(&begun), [(NodeJoined, Some(0)), (NodeJoined, Some(1))]);
        assert!(between(Some(&first), &first).is_empty());
        let told = between(Some(&first), &dead);
        let expected = [(NodeOffline, Some(1)), (Failover, Some(0)), (ResyncNeeded, Some(1))];
        assert_eq!(kinds(&told), expected, "{told:?}");
        assert!(told[1].2.starts_with("n0 leads ") && told[1].2.ends_with("that n1 led"));
        assert_eq!(told[2].2, "n1 has to be brought up to date in 4 partitions");
        // The node that has everything is started again, too.
        let told = between(Some(&dead), &after);
        assert_eq!(told.first().map(|event| event.0), Some(NodeJoined), "{told:?}");
        let (kind, node, words) = told.last().unwrap();
        assert_eq!((*kind, *node), (Loss, None));
        assert!(words.ends_with(": 4 of 4 partitions of `d`"), "{words}");
    }
}
