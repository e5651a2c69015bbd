//! Events of all nodes, each once.
//!
//! Most events follow from the cluster map, and every node has noticed them: one node is believed,
//! of those that are online the one whose history reaches back furthest. What only a node itself can
//! know comes from each.

use std::collections::{HashMap, HashSet};

use samite_client::Client;
use samite_types::{Epoch, NodeId, Result};
use samite_wire::control::NodeReachability;
use samite_wire::events::{NodeEvents, StoreEvent};

/// What was told so far.
#[derive(Debug, Default)]
pub struct EventFollower {
    /// Of each node, the process that told, and the number of its last event.
    told: HashMap<NodeId, (u64, u64)>,
    /// The node that is believed.
    source: Option<NodeId>,
    /// Epoch of the last event of the map that was told.
    epoch: Epoch,
    /// Events of the map of later epochs, by the nodes that told them and were not believed: one of
    /// them may be, before the one that is has told the same.
    waiting: HashMap<NodeId, Vec<StoreEvent>>,
}

impl EventFollower {
    /// The events since the last look, the oldest first.
    ///
    /// # Errors
    /// No node answers.
    pub fn look(&mut self, client: &Client) -> Result<Vec<StoreEvent>> {
        let map = client.refresh_map()?;
        let mut answers = Vec::new();
        let mut failed = None;
        for node in map.nodes().iter().map(|info| info.node) {
            match self.ask(client, node) {
                Ok(answer) => answers.push((node, answer)),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if answers.is_empty() => Err(error),
            _ => {
                let states = map.nodes().iter().zip(&map.data().states);
                let online = states
                    .filter(|(_, state)| state.reachability == NodeReachability::Online)
                    .map(|(info, _)| info.node);
                Ok(self.take(&online.collect(), answers))
            }
        }
    }

    /// All events of a node that were not told.
    fn ask(&self, client: &Client, node: NodeId) -> Result<NodeEvents> {
        let (told_by, mut after) = self.told.get(&node).copied().unwrap_or_default();
        let mut all = client.node_events(node, after)?;
        if all.incarnation != told_by && after > 0 {
            all = client.node_events(node, 0)?;
        }
        loop {
            let last = all.events.last().map_or(after, |event| event.number);
            if last == after {
                return Ok(all);
            }
            after = last;
            let more = client.node_events(node, after)?;
            if more.incarnation != all.incarnation {
                return Ok(all);
            }
            all.events.extend(more.events);
        }
    }

    /// Takes the answers of nodes, of which these are online: returns what is new in them.
    fn take(
        &mut self,
        online: &HashSet<NodeId>,
        answers: Vec<(NodeId, NodeEvents)>,
    ) -> Vec<StoreEvent> {
        let told_by = |node: &NodeId| self.told.get(node).map(|(told_by, _)| *told_by);
        let is_there = |source: &NodeId| {
            let mut answers = answers.iter().filter(|(node, _)| node == source);
            answers
                .any(|(node, answer)| told_by(node).is_none_or(|known| known == answer.incarnation))
        };
        let is_online = |node: &NodeId| online.contains(node);
        if !self.source.as_ref().is_some_and(|source| is_there(source) && is_online(source)) {
            // Processes that began earlier have lower incarnations.
            let oldest =
                answers.iter().min_by_key(|(node, answer)| (!is_online(node), answer.incarnation));
            self.source = oldest.map(|(node, _)| *node);
        }
        let mut events = Vec::new();
        for (node, answer) in answers {
            let waiting = self.waiting.entry(node).or_default();
            if self.told.get(&node).is_some_and(|(told_by, _)| *told_by != answer.incarnation) {
                waiting.clear();
            }
            if let Some(last) = answer.events.last() {
                self.told.insert(node, (answer.incarnation, last.number));
            }
            for event in answer.events {
                match event.kind.is_of_one_node() {
                    true => events.push(event),
                    false => waiting.push(event),
                }
            }
        }
        let known = self.epoch;
        let of_map = self.source.and_then(|source| self.waiting.remove(&source));
        for event in of_map.into_iter().flatten().filter(|event| event.epoch > known) {
            self.epoch = self.epoch.max(event.epoch);
            events.push(event);
        }
        for waiting in self.waiting.values_mut() {
            waiting.retain(|event| event.epoch > self.epoch);
        }
        events.sort_by_key(|event| event.at_us);
        events
    }
}

#[cfg(test)]
mod tests {
    use samite_wire::events::EventKind::{self, NodeJoined, NodeOffline, TargetFull};

    use super::*;

    fn event(number: u64, epoch: u64, kind: EventKind) -> StoreEvent {
        let (at_us, epoch) = (1000 * epoch + number, Epoch(epoch));
        StoreEvent { number, at_us, epoch, kind, node: None, words: String::new() }
    }

    fn answer(node: u32, incarnation: u64, events: &[StoreEvent]) -> (NodeId, NodeEvents) {
        (NodeId(node), NodeEvents { incarnation, events: events.to_vec() })
    }

    /// Takes answers of nodes that are online.
    fn take(follower: &mut EventFollower, answers: Vec<(NodeId, NodeEvents)>) -> Vec<StoreEvent> {
        let online = answers.iter().map(|(node, _)| *node).collect();
        follower.take(&online, answers)
    }

    fn told(events: &[StoreEvent]) -> Vec<(u64, EventKind)> {
        events.iter().map(|event| (event.epoch.get(), event.kind)).collect()
    }

    #[test]
    fn each_is_told_once_whoever_tells() {
        let mut follower = EventFollower::default();
        let joined = event(1, 1, NodeJoined);
        let first = take(
            &mut follower,
            vec![
                answer(0, 20, std::slice::from_ref(&joined)),
                answer(1, 10, &[joined.clone(), event(2, 2, NodeJoined), event(3, 2, TargetFull)]),
            ],
        );
        assert_eq!(told(&first), [(1, NodeJoined), (2, NodeJoined), (2, TargetFull)]);
        // The one that was believed has ended: another has noticed it, and knows what was told.
        let died = event(3, 3, NodeOffline);
        let next =
            take(&mut follower, vec![answer(0, 20, &[event(2, 2, NodeJoined), died.clone()])]);
        assert_eq!(told(&next), [(3, NodeOffline)]);
        // It was started again, and counts anew: what the map said first to it is no news.
        let again = [event(1, 4, NodeJoined), event(2, 4, TargetFull)];
        let next = take(
            &mut follower,
            vec![answer(0, 20, &[event(4, 4, NodeJoined)]), answer(1, 30, &again)],
        );
        assert_eq!(told(&next), [(4, TargetFull), (4, NodeJoined)], "in order of time");
        assert!(take(&mut follower, vec![answer(0, 20, &[]), answer(1, 30, &[])]).is_empty());
    }

    #[test]
    fn the_only_node_is_believed_also_when_it_was_started_again() {
        let mut follower = EventFollower::default();
        assert_eq!(take(&mut follower, vec![answer(0, 1, &[event(1, 1, NodeJoined)])]).len(), 1);
        let again = take(&mut follower, vec![answer(0, 2, &[event(1, 5, NodeJoined)])]);
        assert_eq!(told(&again), [(5, NodeJoined)]);
    }

    #[test]
    fn who_is_cut_off_is_not_believed_and_what_others_told_before_is_not_lost() {
        let mut follower = EventFollower::default();
        let joined = event(1, 1, NodeJoined);
        let both = vec![
            answer(0, 10, std::slice::from_ref(&joined)),
            answer(1, 20, std::slice::from_ref(&joined)),
        ];
        assert_eq!(told(&take(&mut follower, both)), [(1, NodeJoined)]);
        // n0 has not heard of the new map yet.
        let ahead = vec![answer(0, 10, &[]), answer(1, 20, &[event(2, 2, NodeOffline)])];
        assert!(take(&mut follower, ahead).is_empty());
        // It is cut off, and still answers: the other one has told already, and has no more.
        let cut_off = vec![answer(0, 10, &[]), answer(1, 20, &[])];
        let next = follower.take(&HashSet::from([NodeId(1)]), cut_off);
        assert_eq!(told(&next), [(2, NodeOffline)]);
        // It is back, and tells the same late.
        let late = vec![answer(0, 10, &[event(2, 2, NodeOffline)]), answer(1, 20, &[])];
        assert!(take(&mut follower, late).is_empty());
    }
}
