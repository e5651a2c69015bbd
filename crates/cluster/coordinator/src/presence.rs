//! Presence of nodes: heartbeats, leases, and the consequences of their end.
//!
//! The coordinator counts a lease from when it *received* the heartbeat, the node from when it sent it, and the coordinator waits a tenth longer for a
//! clock that runs behind its own. So when a node is called offline, it has stopped serving.
//!
//! Where more than half of all nodes are silent, they may be dead, or this instance cut off from
//! them. Then it takes nothing from any of them until no other instance can be coming any more to
//! take its place ([`Timing::doubt`](crate::ClusterTiming::doubt)): without the roles that it took
//! they could not go on alone.

use std::collections::BTreeMap;
use std::time::Duration;

use samite_types::{Epoch, NodeId};
use samite_wire::control::{ClusterMapData, NodeReachability};
use samite_wire::membership::{Heartbeat, NodeLease, NodeStanding};

use crate::Coordinator;

/// The state of a node beside the cluster map, known to this instance alone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NodePresence {
    /// When the node was last heard; no lease was given to it after that.
    pub heard: Duration,
    /// Whether this instance itself heard it. Until then it is no candidate for anything.
    pub is_confirmed: bool,
    /// Newest epoch by which it said that it serves.
    pub knows: Epoch,
    /// Epoch of the last map that took something from it: no lease before it knows that one.
    pub must_know: Epoch,
    /// Epoch of the last map that made another the primary of one of its groups.
    pub deposed: Epoch,
}

impl NodePresence {
    /// A node that has just been heard.
    pub(crate) fn heard_at(now: Duration) -> Self {
        Self { heard: now, is_confirmed: true, ..Self::default() }
    }

    /// Whether it knows of every group that it does not lead any more.
    pub(crate) fn knows_its_place(&self) -> bool {
        self.knows >= self.deposed
    }
}

impl Coordinator {
    /// A node lives. Its rights, and for how long.
    ///
    /// A lease may go out only while this instance leads; a driver that cannot be sure throws the answer away.
    pub fn heartbeat(&mut self, heartbeat: &Heartbeat, now: Duration) -> NodeLease {
        let epoch = self.map.as_ref().map_or(Epoch(0), |map| map.epoch());
        let refuse = |standing| NodeLease { term_us: 0, epoch, standing };
        let Some(map) = &self.map else {
            let joined = self.joined.get(&heartbeat.node);
            let is_known = joined.is_some_and(|info| info.incarnation == heartbeat.incarnation);
            return refuse(if is_known { NodeStanding::Member } else { NodeStanding::Stranger });
        };
        let info =
            map.node(heartbeat.node).filter(|info| info.incarnation == heartbeat.incarnation);
        let Some(presence) = info.and(self.presences.get_mut(&heartbeat.node)) else {
            return refuse(NodeStanding::Stranger);
        };
        presence.heard = presence.heard.max(now);
        presence.knows = presence.knows.max(heartbeat.serves.min(epoch));
        self.appear(heartbeat.node);
        let epoch = self.map.as_ref().map_or(epoch, |map| map.epoch());
        let is_behind = self
            .presences
            .get(&heartbeat.node)
            .is_none_or(|presence| presence.knows < presence.must_know);
        if is_behind {
            return NodeLease { term_us: 0, epoch, standing: NodeStanding::Behind };
        }
        let term_us = u64::try_from(self.timing.lease.as_micros()).unwrap_or(u64::MAX);
        NodeLease { term_us, epoch, standing: NodeStanding::Member }
    }

    /// This instance has heard the node.
    fn appear(&mut self, node: NodeId) {
        let Some(map) = &self.map else { return };
        let is_online =
            map.state(node).is_some_and(|state| state.reachability == NodeReachability::Online);
        let Some(presence) = self.presences.get_mut(&node) else { return };
        if is_online && presence.is_confirmed {
            return;
        }
        presence.is_confirmed = true;
        let mut data = map.data().clone();
        set_reachability(&mut data, node, NodeReachability::Online);
        // The map does not grow by this.
        let _ = self.conclude(data, false);
    }

    /// Time passes: nodes that are silent become late, then offline, with the consequences of it.
    /// To be called at least every [`Timing::heartbeat`](crate::ClusterTiming); more often makes
    /// failover faster.
    pub fn tick(&mut self, now: Duration) {
        let slept = self.last_tick.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        self.last_tick = Some(self.last_tick.map_or(now, |last| last.max(now)));
        if slept > self.timing.late {
            // It was this instance that was silent; heartbeats may be waiting to be read.
            for presence in self.presences.values_mut() {
                presence.heard += slept;
            }
        }
        let Some(map) = &self.map else { return };
        let lease_end = match self.is_in_doubt(self.timing.late, now) {
            true => self.timing.doubt(),
            false => self.timing.lease_end(), // I4
        };
        let mut late: BTreeMap<NodeId, NodeReachability> = BTreeMap::new();
        for (info, state) in map.nodes().iter().zip(&map.data().states) {
            let Some(presence) = self.presences.get(&info.node) else { continue };
            let silent = now.saturating_sub(presence.heard);
            let seen = if silent >= lease_end {
                NodeReachability::Offline
            } else if silent >= self.timing.late {
                NodeReachability::ProbablyOffline
            } else {
                NodeReachability::Online
            };
            if severity(seen) > severity(state.reachability) {
                late.insert(info.node, seen);
            }
        }
        let has_frozen = self.has_frozen();
        if late.is_empty() && !self.has_work && !has_frozen {
            return;
        }
        let mut data = map.data().clone();
        let has_thawed = has_frozen && self.thaw_overdue(&mut data, now);
        if late.is_empty() && !self.has_work && !has_thawed {
            return;
        }
        for (node, seen) in late {
            set_reachability(&mut data, node, seen);
        }
        // The map does not grow by this, or the change that would let it grow waits.
        let _ = self.conclude(data, false);
    }

    /// Whether more than half of all nodes are silent for at least `silence`, and not all of them known to be dead.
    pub(crate) fn is_in_doubt(&self, silence: Duration, now: Duration) -> bool {
        let Some(map) = &self.map else { return false };
        let (mut silent, mut is_new) = (0, false);
        for (info, state) in map.nodes().iter().zip(&map.data().states) {
            let Some(presence) = self.presences.get(&info.node) else { continue };
            if now.saturating_sub(presence.heard) >= silence {
                silent += 1;
                is_new |= state.reachability != NodeReachability::Offline;
            }
        }
        is_new && silent * 2 > map.nodes().len()
    }
}

const fn severity(reachability: NodeReachability) -> u8 {
    match reachability {
        NodeReachability::Online => 0,
        NodeReachability::ProbablyOffline => 1,
        NodeReachability::Offline => 2,
    }
}

fn set_reachability(data: &mut ClusterMapData, node: NodeId, reachability: NodeReachability) {
    if let Ok(index) = data.nodes.binary_search_by_key(&node, |info| info.node) {
        data.states[index].reachability = reachability;
    }
}
