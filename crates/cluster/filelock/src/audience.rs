//! Which nodes have to do with a lock, by the cluster map: the one that grants it, and those that
//! note it, so that the lock outlives the primary.

use samite_placement::{ClusterMap, hash};
use samite_types::{NodeId, PartitionId, Redundancy};
use samite_wire::control::{DatasetData, MemberConsistency, MirrorGroup, NodeReachability};
use samite_wire::lock::LockRequest;

/// How many nodes beside the group are tried.
const WITNESSES_MAX: usize = 3;

/// The nodes that are to know of a lock beside its primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockAudience {
    /// The members that may take its place: all of them.
    pub members: Vec<NodeId>,
    /// Nodes beside the group, best first: one of them, for members that come later.
    pub witnesses: Vec<NodeId>,
}

impl LockAudience {
    /// By `map`; `None`: the group is in another term by now, or there is no such dataset.
    #[must_use]
    pub fn of(map: &ClusterMap, request: &LockRequest) -> Option<Self> {
        let (dataset, group) = dataset_and_group(map, request)?;
        if group.term != request.term {
            return None;
        }
        let good = group.members.iter().skip(1);
        let good = good.filter(|member| member.consistency == MemberConsistency::Good);
        let node_of = |target| map.node_of_target(target);
        let members = good.filter_map(|member| node_of(member.target)).collect();
        let mut witnesses: Vec<NodeId> = Vec::new();
        if dataset.spec.redundancy.get() > 1 {
            let is_member =
                |node| group.members.iter().any(|member| node_of(member.target) == Some(node));
            let nodes = map.nodes().iter().map(|info| info.node);
            witnesses.extend(nodes.filter(|node| !is_member(*node) && is_online(map, *node)));
            // The same for all clients that lock there, as long as they live.
            let partition = request.partition.get().to_le_bytes();
            witnesses
                .sort_by_cached_key(|node| hash(&[node.get().to_le_bytes(), partition].concat()));
            witnesses.truncate(WITNESSES_MAX);
        }
        Some(Self { members, witnesses })
    }
}

/// The node that grants a lock, and the request as it is to be put there: with the group's term and
/// the map's epoch. `None`: the map has no such dataset or partition.
#[must_use]
pub fn granter(map: &ClusterMap, request: &LockRequest) -> Option<(NodeId, LockRequest)> {
    let (dataset, group) = dataset_and_group(map, request)?;
    let asked = LockRequest { term: group.term, epoch: map.epoch(), ..*request };
    Some((map.node_of(dataset.spec.redundancy, request.partition)?, asked))
}

/// Whether other nodes may take the place of the one that grants such a lock.
#[must_use]
pub fn is_mirrored(map: &ClusterMap, request: &LockRequest) -> bool {
    let dataset = map.dataset_by_id(request.dataset);
    dataset.is_some_and(|dataset| dataset.spec.redundancy.get() > 1)
}

/// Whether the node is there.
#[must_use]
pub fn is_online(map: &ClusterMap, node: NodeId) -> bool {
    map.state(node).is_some_and(|state| state.reachability == NodeReachability::Online)
}

/// Whether the node may live: it is not known to be gone.
#[must_use]
pub fn may_live(map: &ClusterMap, node: NodeId) -> bool {
    map.state(node).is_some_and(|state| state.reachability != NodeReachability::Offline)
}

/// Whether the node is a good member of the group.
pub(crate) fn is_good(map: &ClusterMap, place: (Redundancy, PartitionId), node: NodeId) -> bool {
    let group = map.group(place.0, place.1);
    group.into_iter().flat_map(|group| &group.members).any(|member| {
        map.node_of_target(member.target) == Some(node)
            && member.consistency == MemberConsistency::Good
    })
}

/// Nodes that may know locks of a partition that `me` has become the primary of: the members of
/// before, and where there are mirrors all others, too.
pub(crate) fn may_know(
    before: Option<&ClusterMap>,
    map: &ClusterMap,
    (redundancy, partition): (Redundancy, PartitionId),
    me: NodeId,
) -> Vec<NodeId> {
    let members = before.and_then(|before| before.group(redundancy, partition));
    let members = members.into_iter().flat_map(|group| &group.members);
    let mut others: Vec<NodeId> = if redundancy == Redundancy(1) {
        members.filter_map(|member| map.node_of_target(member.target)).collect()
    } else {
        map.nodes().iter().map(|info| info.node).collect()
    };
    others.retain(|node| *node != me && may_live(map, *node));
    others
}

fn dataset_and_group<'m>(
    map: &'m ClusterMap,
    request: &LockRequest,
) -> Option<(&'m DatasetData, &'m MirrorGroup)> {
    let dataset = map.dataset_by_id(request.dataset)?;
    Some((dataset, map.group(dataset.spec.redundancy, request.partition)?))
}
