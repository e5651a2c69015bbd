//! The coordinator decides the cluster map: which nodes belong to the cluster and live, which
//! target has which partition, which datasets there are.
//!
//! A [`Coordinator`] takes inputs and makes maps of them. It is pure: time comes in as `now`,
//! counted from any fixed time, and its driver carries maps to the others. Each change makes a new
//! map with the next epoch; an input that changes nothing leaves the map as it is, so that
//! everything can be repeated safely.
//!
//! The driver's part: after every input, look at [`Coordinator::revision`]. If it grew, save
//! [`Coordinator::export`] before any process hears of the change; a change that cannot be saved
//! was not decided, and the coordinator is thrown away for one that [takes
//! over](Coordinator::take_over) the state that was saved last. The place of that state, and which
//! of several instances decides, is the business of [`store`].

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use samite_placement::{
    ClusterMap, NODES_MAX, PARTITIONS_MAX, assign, check_node_info, partitions_for,
};
use samite_types::{
    DatasetId, Epoch, Error, ErrorKind, NodeId, PartitionId, Redundancy, Result, TargetId, Term,
};
use samite_wire::control::{
    ClusterMapData, DatasetSpec, DurabilityKind, GroupMember, MemberConsistency, MirrorGroup,
    NodeInfo, NodeReachability, NodeState, PartitionTable, TargetInfo,
};

mod admin_request;
mod age;
mod change;
mod datasets;
mod freezes;
mod group;
pub mod leader_key;
mod leader_reachability;
mod moves;
mod node_states;
mod presence;
pub mod quorum;
mod report;
mod state;
pub mod store;
mod timing;

pub use leader_reachability::LeaderReachability;
pub use timing::ClusterTiming;

use group::member_mut;
use moves::Goal;
use presence::NodePresence;

/// Decides on the cluster map of one cluster.
#[derive(Debug)]
pub struct Coordinator {
    cluster: String,
    /// Nodes that must have joined before there is a map.
    expected: usize,
    /// Partitions of the cluster, fixed with the first map.
    partitions: u32,
    timing: ClusterTiming,
    /// Nodes that have joined while there is no map.
    joined: BTreeMap<NodeId, NodeInfo>,
    /// Nodes that may join though the cluster was founded without them.
    invited: BTreeSet<NodeId>,
    /// Those of them that are to hold nothing at first.
    held_back: BTreeSet<NodeId>,
    map: Option<Arc<ClusterMap>>,
    first_epoch: Epoch,
    /// Ids count upwards and are never used again, also not after a drop.
    next_dataset: u32,
    /// Where the partitions of each of the map's tables should be in the end.
    goals: Vec<Goal>,
    /// A node was away when the goals were set.
    is_uneven_for_now: bool,
    /// There is something to do at the next tick.
    has_work: bool,
    presences: BTreeMap<NodeId, NodePresence>,
    /// Processes of nodes that others have taken the place of, the last ones of each: their
    /// messages may come late.
    former: BTreeMap<NodeId, VecDeque<u64>>,
    /// Epoch of the last change of each group; [`Self::since`] for those that are not here.
    changed: HashMap<(Redundancy, PartitionId), Epoch>,
    since: Epoch,
    /// Epoch of the last loss of each group; none of them was after [`Self::since`] that is not here.
    lost: HashMap<(Redundancy, PartitionId), Epoch>,
    /// Until when datasets stay frozen that nobody renews, as far as it is known here.
    freezes: BTreeMap<DatasetId, Duration>,
    last_tick: Option<Duration>,
    revision: u64,
}

impl Coordinator {
    /// A coordinator for a cluster that is complete when `expected` nodes have joined.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: no nodes expected, or over [`NODES_MAX`].
    pub fn new(cluster: impl Into<String>, expected: usize) -> Result<Self> {
        let cluster = cluster.into();
        if !(1..=NODES_MAX).contains(&expected) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("cluster {cluster}: {expected} nodes; 1 to {NODES_MAX} are possible"),
            ));
        }
        Ok(Self {
            cluster,
            expected,
            partitions: partitions_for(expected),
            timing: ClusterTiming::DEFAULT,
            joined: BTreeMap::new(),
            invited: BTreeSet::new(),
            held_back: BTreeSet::new(),
            map: None,
            first_epoch: Epoch(1),
            next_dataset: 1,
            goals: Vec::new(),
            is_uneven_for_now: false,
            has_work: false,
            presences: BTreeMap::new(),
            former: BTreeMap::new(),
            changed: HashMap::new(),
            since: Epoch(0),
            lost: HashMap::new(),
            freezes: BTreeMap::new(),
            last_tick: None,
            revision: 0,
        })
    }

    /// The same, with other times.
    #[must_use]
    pub fn with_timing(self, timing: ClusterTiming) -> Self {
        Self { timing, ..self }
    }

    /// The same, with epochs and dataset ids that begin at `start` in place of 1.
    ///
    /// This coordinator remembers nothing of one that went before it, while nodes and clients may. With a start above all that the
    /// other gave out (seconds since 1970 serve), its map replaces the old one everywhere, and no dataset of it is taken for an old one.
    #[must_use]
    pub fn starting_at(self, start: u32) -> Self {
        let start = start.max(1);
        Self { first_epoch: Epoch(start.into()), next_dataset: start, ..self }
    }

    /// The same, for a cluster of `partitions` partitions in place of [`partitions_for`] its nodes.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: none, or over [`PARTITIONS_MAX`].
    pub fn with_partitions(self, partitions: u32) -> Result<Self> {
        if !(1..=PARTITIONS_MAX).contains(&(partitions as usize)) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "cluster {}: {partitions} partitions; 1 to {PARTITIONS_MAX} are possible",
                    self.cluster
                ),
            ));
        }
        Ok(Self { partitions, ..self })
    }

    /// The map; none until all expected nodes have joined.
    #[must_use]
    pub const fn map(&self) -> Option<&Arc<ClusterMap>> {
        self.map.as_ref()
    }

    /// Grows with every change of the state that [`Self::export`] gives.
    #[must_use]
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// The map, or words that say which node is missing.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`]: not all nodes have joined yet.
    pub fn ready_map(&self) -> Result<&Arc<ClusterMap>> {
        self.map.as_ref().ok_or_else(|| {
            let (cluster, joined) = (&self.cluster, self.joined.len());
            let mut words =
                format!("cluster {cluster}: {joined} of {} nodes have joined", self.expected);
            let founders = u32::try_from(self.expected).unwrap_or(u32::MAX);
            let absent = (0..founders).map(NodeId).filter(|node| !self.joined.contains_key(node));
            let absent: Vec<String> =
                absent.take(ABSENT_NAMED_MAX).map(|node| node.to_string()).collect();
            // Where founders have other numbers than the first, they cannot be named.
            if self.joined.keys().all(|node| node.get() < founders) {
                words.push_str(&format!(", not {}", absent.join(", ")));
            }
            Error::new(ErrorKind::Unavailable, words)
        })
    }

    /// A node joins, or says where it can be reached now. Once all are there, the map.
    ///
    /// With another incarnation than before, the node was started again: the records that it had in
    /// memory are gone.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: the node's description is unlawful, one of its targets belongs to another node, it brings
    /// other targets than before, or not the storage with the only good copy of something. [`ErrorKind::Exists`]: the cluster is complete without
    /// this node. [`ErrorKind::Unavailable`]: another process has taken its place. [`ErrorKind::TooLarge`]: the map would be.
    pub fn join(&mut self, info: NodeInfo, now: Duration) -> Result<Option<Arc<ClusterMap>>> {
        self.join_again(info, 0, now)
    }

    /// The same, of a node whose durable data say by which storage it joined last: `before`, unless it is 0.
    ///
    /// # Errors
    /// As above; [`ErrorKind::Invalid`]: that is not how the node joined last.
    pub fn join_again(
        &mut self,
        info: NodeInfo,
        before: u64,
        now: Duration,
    ) -> Result<Option<Arc<ClusterMap>>> {
        check_node_info(&info)?;
        self.check_targets(&info)?;
        let Some(map) = self.map.clone() else { return self.join_founders(info, now) };
        let mut data = map.data().clone();
        match data.nodes.binary_search_by_key(&info.node, |known| known.node) {
            Ok(index) => {
                if data.nodes[index].incarnation == info.incarnation {
                    let presence = self.presences.entry(info.node).or_default();
                    presence.heard = presence.heard.max(now);
                    presence.is_confirmed = true;
                } else {
                    self.check_is_new(&info, &data.nodes[index], now)?;
                    age::check(&info, before, &data.nodes[index])?;
                    restart(&mut data, (&info, before))?;
                    let former = self.former.entry(info.node).or_default();
                    former.truncate(FORMER_MAX - 1);
                    former.push_front(data.nodes[index].incarnation);
                    self.presences.insert(info.node, NodePresence::heard_at(now));
                }
                data.states[index].reachability = NodeReachability::Online;
                let is_resized = capacities(&data.nodes[index]) != capacities(&info);
                data.nodes[index] = info;
                if is_resized {
                    self.plan(&data);
                }
            }
            Err(index) => self.add_node(&mut data, index, info, now)?,
        }
        self.conclude(data, false).map(Some)
    }

    /// A process that started before the one in its place, or whose place another one has taken, is not new while that is heard: this was said
    /// before. Not for ever, as it may have been the other that was heard late, or a clock may have been set back.
    fn check_is_new(&self, info: &NodeInfo, known: &NodeInfo, now: Duration) -> Result<()> {
        let other = self.presences.get(&info.node);
        let lease_end = self.timing.lease_end();
        let is_heard = other.is_some_and(|other| now < other.heard + lease_end);
        // Two that were given the same number, or one that has moved: then the other falls silent.
        if is_heard && info.host != known.host {
            let words = format!("node {}: it lives on another host", info.node);
            return Err(Error::new(ErrorKind::Unavailable, words));
        }
        let former = self.former.get(&info.node);
        let is_former = info.incarnation < known.incarnation
            || former.is_some_and(|former| former.contains(&info.incarnation));
        if is_former && is_heard {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("node {}: another process has taken this one's place", info.node),
            ));
        }
        Ok(())
    }

    /// A node joins while there is no map.
    fn join_founders(&mut self, info: NodeInfo, now: Duration) -> Result<Option<Arc<ClusterMap>>> {
        let node = info.node;
        let known = self.joined.get(&node);
        if known == Some(&info) {
            return Ok(None);
        }
        let before = self.joined.insert(node, info);
        if self.joined.len() == self.expected
            && let Err(error) = self.found(now)
        {
            // A refused node leaves no trace.
            match before {
                Some(before) => self.joined.insert(node, before),
                None => self.joined.remove(&node),
            };
            return Err(error);
        }
        self.revision += 1;
        Ok(self.map.clone())
    }

    /// A node that the cluster was not founded with.
    fn add_node(
        &mut self,
        data: &mut ClusterMapData,
        index: usize,
        info: NodeInfo,
        now: Duration,
    ) -> Result<()> {
        let node = info.node;
        if !self.invited.contains(&node) {
            return Err(Error::new(
                ErrorKind::Exists,
                format!(
                    "join of {node}: cluster {} has its {} nodes",
                    self.cluster,
                    data.nodes.len()
                ),
            ));
        }
        let is_logged = |spec: &DatasetSpec| spec.durability == DurabilityKind::Logged;
        let logged = data.datasets.iter().find(|dataset| is_logged(&dataset.spec));
        if let Some(dataset) = logged
            && let Some(target) = info.targets.iter().find(|target| target.storage == 0)
        {
            let cause = format!(
                "join of {node}: target {} has no durable storage, and dataset {} needs it",
                target.target, dataset.spec.name
            );
            return Err(Error::new(ErrorKind::Invalid, cause));
        }
        data.nodes.insert(index, info);
        let is_draining = self.held_back.contains(&node);
        data.states.insert(index, NodeState { is_draining, ..ONLINE });
        Self::check_len(data, &self.goals)?;
        self.invited.remove(&node);
        self.held_back.remove(&node);
        self.presences.insert(node, NodePresence::heard_at(now));
        self.plan(data);
        Ok(())
    }

    /// A target belongs to one node for good: partitions are placed on it.
    fn check_targets(&self, info: &NodeInfo) -> Result<()> {
        let invalid = |cause: String| {
            Err(Error::new(ErrorKind::Invalid, format!("join of {}: {cause}", info.node)))
        };
        let ids = |targets: &[TargetInfo]| -> Vec<TargetId> {
            let mut ids: Vec<_> = targets.iter().map(|target| target.target).collect();
            ids.sort_unstable();
            ids
        };
        let own = ids(&info.targets);
        if own.windows(2).any(|pair| pair[0] == pair[1]) {
            return invalid("a target is named twice".into());
        }
        let known: Vec<&NodeInfo> = match &self.map {
            Some(map) => map.nodes().iter().collect(),
            None => self.joined.values().collect(),
        };
        for other in known.iter().filter(|other| other.node != info.node) {
            if let Some(taken) = other.targets.iter().find(|target| own.contains(&target.target)) {
                return invalid(format!("target {} belongs to {}", taken.target, other.node));
            }
        }
        match known.iter().find(|before| before.node == info.node) {
            Some(before) if self.map.is_some() && ids(&before.targets) != own => {
                invalid("its targets are not those it joined with".into())
            }
            _ => Ok(()),
        }
    }

    /// Makes the first map: every node is there.
    fn found(&mut self, now: Duration) -> Result<()> {
        let targets: Vec<(TargetId, u64)> = self
            .joined
            .values()
            .flat_map(|info| &info.targets)
            .map(|target| (target.target, target.capacity_bytes))
            .collect();
        let placed = assign(self.partitions, &targets)?;
        let goals: Vec<Goal> = vec![placed.iter().map(|target| vec![*target]).collect()];
        let data = ClusterMapData {
            cluster: self.cluster.clone(),
            epoch: self.first_epoch,
            nodes: self.joined.values().cloned().collect(),
            states: vec![ONLINE; self.joined.len()],
            tables: vec![PartitionTable {
                redundancy: Redundancy(1),
                groups: placed.into_iter().map(alone).collect(),
            }],
            datasets: Vec::new(),
            losses: Vec::new(),
        };
        Self::check_len(&data, &goals)?;
        self.goals = goals;
        let heard = NodePresence::heard_at(now);
        self.presences = self.joined.keys().map(|node| (*node, heard)).collect();
        self.since = self.first_epoch;
        self.publish(data)?;
        self.joined.clear();
        Ok(())
    }
}

/// What the targets of a node can hold, each.
fn capacities(info: &NodeInfo) -> Vec<u64> {
    info.targets.iter().map(|target| target.capacity_bytes).collect()
}

/// Notes in `data` that the node was started again, and is `info` now.
fn restart(data: &mut ClusterMapData, (info, before): (&NodeInfo, u64)) -> Result<()> {
    let known = data.nodes.iter().find(|known| known.node == info.node);
    let is_lost =
        |target: &&TargetInfo| !known.is_some_and(|known| age::is_continued(target, before, known));
    let lost: Vec<TargetId> =
        info.targets.iter().filter(is_lost).map(|target| target.target).collect();
    for table in &mut data.tables {
        let mut of_table =
            data.datasets.iter().filter(|dataset| dataset.spec.redundancy == table.redundancy);
        let logged = of_table.find(|dataset| dataset.spec.durability == DurabilityKind::Logged);
        for group in &mut table.groups {
            for target in &info.targets {
                let has_other = group.members.iter().any(|member| {
                    member.target != target.target
                        && matches!(
                            member.consistency,
                            MemberConsistency::Good | MemberConsistency::Restarted
                        )
                });
                let Some(member) = member_mut(group, target.target) else { continue };
                let is_lost = lost.contains(&target.target);
                member.consistency = match (member.consistency, logged) {
                    (MemberConsistency::Good | MemberConsistency::Restarted, Some(dataset))
                        if is_lost && !has_other =>
                    {
                        return Err(Error::new(
                            ErrorKind::Invalid,
                            format!(
                                "join of {}: target {} has another storage, and the former has the only good copy of a part of dataset {}",
                                info.node, target.target, dataset.spec.name
                            ),
                        ));
                    }
                    (MemberConsistency::Good | MemberConsistency::Restarted, _)
                        if is_lost && has_other =>
                    {
                        MemberConsistency::NeedsResync
                    }
                    (MemberConsistency::Good | MemberConsistency::Restarted, _) => {
                        MemberConsistency::Restarted
                    }
                    // Tried again.
                    (MemberConsistency::NeedsResync | MemberConsistency::Bad, _) => {
                        MemberConsistency::NeedsResync
                    }
                };
            }
        }
    }
    Ok(())
}

/// Most nodes that have not joined and are named in a message.
const ABSENT_NAMED_MAX: usize = 8;

/// Former processes of a node that are remembered.
const FORMER_MAX: usize = 8;

const ONLINE: NodeState = NodeState { reachability: NodeReachability::Online, is_draining: false };

/// The group of a partition that is not mirrored.
fn alone(target: TargetId) -> MirrorGroup {
    let members = vec![GroupMember { target, consistency: MemberConsistency::Good }];
    MirrorGroup { term: Term(0), members }
}

/// The primary's target of each partition.
fn primaries(data: &ClusterMapData, redundancy: Redundancy) -> Vec<TargetId> {
    let table = data.tables.iter().find(|table| table.redundancy == redundancy);
    let groups = table.into_iter().flat_map(|table| &table.groups);
    groups.filter_map(|group| Some(group.members.first()?.target)).collect()
}

#[cfg(test)]
mod tests;
