//! Leader-reachability detector: another instance hears from nodes whether the instance that leads
//! reaches them.
//!
//! A leader that is cut off from the nodes, and not from the store, would lead for ever: it renews its key, and no node has a lease. It cannot tell
//! whether the nodes are dead or it is alone. The other instances can: nodes send their heartbeats to all of them, and say whether a leader
//! answers. So an instance that hears from more than half of all nodes of the cluster that none does, takes the leader's place.
//!
//! Nodes that died say nothing, and do not count, so a leader of a cluster that has shrunk is left alone. Nor do two parts of a
//! divided cluster take the leadership from each other in turn: only one of them has more than half of the nodes. An instance that hears nodes and is not
//! heard by them may come to lead; then its place is taken in the same way, and it waits longer each time before it tries again.

use std::collections::BTreeMap;
use std::time::Duration;

use samite_placement::{ClusterMap, NODES_MAX};
use samite_types::NodeId;
use samite_wire::membership::Heartbeat;

use crate::ClusterTiming;

/// So many times longer does an instance wait that has led, and did not reach the nodes either; more with each time.
const BACK_OFF: u32 = 4;
/// At most.
const BACK_OFF_MAX: u32 = 16;

/// The state of the detector of one instance.
#[derive(Clone, Debug)]
pub struct LeaderReachability {
    timing: ClusterTiming,
    own: NodeId,
    /// When each node was heard last, and whether a leader answers it.
    heard: BTreeMap<NodeId, (Duration, bool)>,
    /// The leader, as of the last look.
    leader: Option<NodeId>,
    /// Since when most nodes have been as they are, under this leader, and whether they are without
    /// an answer. An instance that comes to lead may have to wait before it begins, so that is not
    /// counted.
    since: Option<(Duration, bool)>,
    looked: Duration,
    back_off: u32,
}

impl LeaderReachability {
    /// That of the instance in the node `own`, which has heard nothing yet.
    #[must_use]
    pub const fn new(own: NodeId, timing: ClusterTiming) -> Self {
        Self {
            timing,
            own,
            heard: BTreeMap::new(),
            leader: None,
            since: None,
            looked: Duration::ZERO,
            back_off: 1,
        }
    }

    /// A heartbeat has come.
    pub fn heard(&mut self, heartbeat: &Heartbeat, now: Duration) {
        if self.heard.len() < NODES_MAX || self.heard.contains_key(&heartbeat.node) {
            self.heard.insert(heartbeat.node, (now, heartbeat.is_led));
        }
    }

    /// Whether to take the place of `leader`, the instance that leads as far as this one knows;
    /// never if that is this one. `map` is the newest that this instance has, if it has one; else
    /// the cluster has `expected` nodes. To be asked several times a second, also while this
    /// instance leads.
    pub fn deposes(
        &mut self,
        leader: Option<NodeId>,
        map: Option<&ClusterMap>,
        expected: usize,
        now: Duration,
    ) -> bool {
        let slept = now.saturating_sub(self.looked) > self.timing.late;
        self.looked = now;
        self.heard.retain(|_, (at, _)| now < *at + self.timing.late);
        let is_known = |node: &NodeId| map.is_none_or(|map| map.node(*node).is_some());
        let forlorn = self.heard.iter().filter(|(node, (_, is_led))| !is_led && is_known(node));
        let nodes = map.map_or(expected, |map| map.nodes().len());
        let is_forlorn = forlorn.count() * 2 > nodes;
        if leader != self.leader {
            let was_forlorn = self.since.is_some_and(|(_, was)| was);
            if was_forlorn && self.leader == Some(self.own) {
                self.back_off = (self.back_off * BACK_OFF).min(BACK_OFF_MAX);
            }
            self.leader = leader;
            self.since = Some((now + self.timing.takeover, is_forlorn));
        }
        // An instance that slept has old heartbeats to read.
        if slept || self.since.is_none_or(|(_, was)| was != is_forlorn) {
            self.since = Some((now, is_forlorn));
        }
        let lasts = self.since.map_or(Duration::ZERO, |(since, _)| now.saturating_sub(since));
        if lasts < self.timing.forlorn * self.back_off {
            return false;
        }
        if !is_forlorn {
            self.back_off = 1;
            return false;
        }
        if leader.is_none_or(|leader| leader == self.own) {
            return false;
        }
        self.since = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use samite_types::Epoch;

    use super::*;

    const STEP: Duration = Duration::from_millis(50);
    const OWN: NodeId = NodeId(99);

    struct Scene {
        reachability: LeaderReachability,
        now: Duration,
        nodes: usize,
        leader: NodeId,
    }

    impl Scene {
        fn new(nodes: usize) -> Self {
            let reachability = LeaderReachability::new(OWN, ClusterTiming::DEFAULT);
            Self { reachability, now: Duration::from_secs(100), nodes, leader: NodeId(0) }
        }

        /// So many nodes say that they have no leader, so many others that they have one. When the leader is deposed, if it is within `seconds`.
        fn passes(&mut self, seconds: u64, forlorn: u32, led: u32) -> Option<Duration> {
            let start = self.now;
            while self.now < start + Duration::from_secs(seconds) {
                self.now += STEP;
                for node in 0..forlorn + led {
                    let heartbeat = Heartbeat {
                        node: NodeId(node),
                        incarnation: 1,
                        serves: Epoch(1),
                        is_led: node >= forlorn,
                    };
                    self.reachability.heard(&heartbeat, self.now);
                }
                if self.reachability.deposes(Some(self.leader), None, self.nodes, self.now) {
                    return Some(self.now - start);
                }
            }
            None
        }
    }

    #[test]
    fn more_than_half_of_all_nodes_must_be_without_a_leader() {
        for (nodes, enough) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)] {
            assert_eq!(Scene::new(nodes).passes(60, enough - 1, nodes as u32 - enough), None);
            let took = Scene::new(nodes).passes(60, enough, 0).unwrap();
            assert!((2000..2200).contains(&took.as_millis()), "{took:?}");
        }
        // Nodes that died are not without a leader.
        assert_eq!(Scene::new(5).passes(60, 0, 1), None);
        assert_eq!(Scene::new(5).passes(60, 2, 0), None);
    }

    #[test]
    fn a_moment_without_a_leader_is_nothing() {
        let mut scene = Scene::new(3);
        for _ in 0..20 {
            assert_eq!(scene.passes(1, 3, 0), None);
            assert_eq!(scene.passes(1, 1, 2), None);
        }
        // Nor is a leader that has just come.
        for leader in 1..20 {
            scene.leader = NodeId(leader);
            assert_eq!(scene.passes(1, 3, 0), None);
        }
        // Nor is time in which this instance slept.
        for _ in 0..20 {
            assert_eq!(scene.passes(1, 3, 0), None);
            scene.now += Duration::from_secs(10);
        }
    }

    #[test]
    fn who_leads_in_vain_waits_longer_each_time() {
        let mut scene = Scene::new(3);
        let other = scene.leader;
        let mut waits = Vec::new();
        for _ in 0..4 {
            waits.push(scene.passes(60, 3, 0).unwrap().as_secs());
            // It leads, and deposes nobody, until another one takes its place.
            scene.leader = OWN;
            assert_eq!(scene.passes(60, 3, 0), None);
            scene.leader = other;
        }
        assert_eq!(waits, [2, 9, 33, 33]);
        // Once all has been well for a while, the next time is a first time.
        assert_eq!(scene.passes(40, 0, 3), None);
        assert_eq!(scene.passes(60, 3, 0).unwrap().as_secs(), 2);
        // That it was taken from for another reason does not count.
        scene.leader = OWN;
        assert_eq!(scene.passes(60, 0, 3), None);
        scene.leader = other;
        assert_eq!(scene.passes(60, 3, 0).unwrap().as_secs(), 3);
    }
}
