//! The nodes of a cluster map as this instance of the coordinator sees them now.

use std::collections::{BTreeMap, HashMap};

use samite_types::{Epoch, NodeId, TargetId};
use samite_wire::control::{ClusterMapData, NodeReachability};

use crate::presence::NodePresence;

/// Which node serves each target, and how it is to be seen now.
pub(crate) struct NodeStates<'a> {
    seen: HashMap<TargetId, (NodeId, NodeReachability)>,
    presences: &'a BTreeMap<NodeId, NodePresence>,
}

impl<'a> NodeStates<'a> {
    pub(crate) fn new(
        data: &ClusterMapData,
        presences: &'a BTreeMap<NodeId, NodePresence>,
    ) -> Self {
        let mut seen = HashMap::new();
        for (info, state) in data.nodes.iter().zip(&data.states) {
            let is_confirmed =
                presences.get(&info.node).is_some_and(|presence| presence.is_confirmed);
            let reachability = match state.reachability {
                // The former leader heard it; whether it lives now is to be seen.
                NodeReachability::Online if !is_confirmed => NodeReachability::ProbablyOffline,
                reachability => reachability,
            };
            seen.extend(
                info.targets.iter().map(|info_of| (info_of.target, (info.node, reachability))),
            );
        }
        Self { seen, presences }
    }

    pub(crate) fn node_of(&self, target: TargetId) -> Option<NodeId> {
        self.seen.get(&target).map(|(node, _)| *node)
    }

    pub(crate) fn reach(&self, target: TargetId) -> NodeReachability {
        self.seen.get(&target).map_or(NodeReachability::Offline, |(_, reachability)| *reachability)
    }

    /// Whether the node of `target` has said that it serves by a map of `epoch` or a newer one.
    pub(crate) fn serves_by(&self, target: TargetId, epoch: Epoch) -> bool {
        let presence = self.node_of(target).and_then(|node| self.presences.get(&node));
        presence.is_some_and(|presence| presence.knows >= epoch)
    }

    /// Whether the node of `target` serves nothing that it should not: it knows every group that it
    /// leads no more, or its lease is over.
    pub(crate) fn knows_its_place(&self, target: TargetId) -> bool {
        self.reach(target) == NodeReachability::Offline
            || self
                .node_of(target)
                .and_then(|node| self.presences.get(&node))
                .is_none_or(NodePresence::knows_its_place)
    }
}
