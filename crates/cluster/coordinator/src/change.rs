//! From one map to the next: the consequences of a change are drawn here, and becomes a map with
//! the next epoch.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use samite_placement::{ClusterMap, LOSSES_LEN_MAX};
use samite_types::{Epoch, Error, ErrorKind, NodeId, PartitionId, Result, TargetId};
use samite_wire::control::{self, ClusterMapData, MemberConsistency, MirrorGroup};
use samite_wire::limits::BODY_LEN_MAX;

use crate::Coordinator;
use crate::group::{consistency, settle};
use crate::moves::{Goal, step};
use crate::node_states::NodeStates;

/// Longest cluster map, together with the goals, in bytes as encoded, that a node or a dataset may
/// lead to: it travels in one frame's body, and is one value in etcd. The rest is for members that
/// come and go while partitions move, and for losses.
const STATE_LEN_MAX: usize = BODY_LEN_MAX - (64 << 10) - LOSSES_LEN_MAX;

impl Coordinator {
    /// Draws the consequences of the changes in `data`, a copy of the map, and makes it the map if
    /// it is another one (or if `is_fence` asks for a new epoch all the same).
    pub(crate) fn conclude(
        &mut self,
        mut data: ClusterMapData,
        is_fence: bool,
    ) -> Result<Arc<ClusterMap>> {
        if self.is_uneven_for_now && self.has_all_nodes(&data) {
            self.plan(&data);
        }
        let nodes = NodeStates::new(&data, &self.presences);
        for group in data.tables.iter_mut().flat_map(|table| &mut table.groups) {
            settle(group, |target| nodes.reach(target));
        }
        // One step for each map: the next one may need that nodes know this one.
        let changed = |place| self.changed.get(&place).copied().unwrap_or(self.since);
        let stepped = step(&self.goals, &mut data, &nodes, &changed);
        self.has_work = stepped.has_changed || stepped.waits;
        let present = self.ready_map()?;
        data.epoch = present.epoch();
        if !is_fence && data == *present.data() {
            return Ok(present.clone());
        }
        data.epoch = Epoch(present.epoch().get() + 1);
        self.publish(data)
    }

    /// Whether there is room for this map, and for the additions of moves.
    pub(crate) fn check_len(data: &ClusterMapData, goals: &[Goal]) -> Result<()> {
        let len = control::encode(data).len() + control::encode(&goals).len();
        if len <= STATE_LEN_MAX {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::TooLarge,
            format!("cluster map of {len} bytes; {STATE_LEN_MAX} are possible"),
        ))
    }

    /// Makes `data` the map, which names its losses, too.
    pub(crate) fn publish(&mut self, data: ClusterMapData) -> Result<Arc<ClusterMap>> {
        let map = match &self.map {
            Some(before) => before.with_losses_of(data)?,
            None => ClusterMap::new(data)?,
        };
        let map = Arc::new(map);
        if let Some(before) = self.map.take() {
            self.note_changes(before.data(), map.data());
            self.lost.extend(before.lost_groups(&map).map(|place| (place, map.epoch())));
        }
        self.map = Some(map.clone());
        self.revision += 1;
        Ok(map)
    }

    /// Notes which groups are others now, and which nodes have to know it.
    fn note_changes(&mut self, before: &ClusterMapData, after: &ClusterMapData) {
        let targets: HashMap<TargetId, NodeId> = after
            .nodes
            .iter()
            .flat_map(|info| info.targets.iter().map(|target| (target.target, info.node)))
            .collect();
        // The former process of a node that was started again was told of earlier changes, this one
        // was not.
        let renewed: BTreeSet<TargetId> = after
            .nodes
            .iter()
            .filter(|info| {
                let known = before.nodes.binary_search_by_key(&info.node, |known| known.node);
                known.is_ok_and(|index| before.nodes[index].incarnation != info.incarnation)
            })
            .flat_map(|info| info.targets.iter().map(|target| target.target))
            .collect();
        for table in &before.tables {
            let Some(new) = after.tables.iter().find(|new| new.redundancy == table.redundancy)
            else {
                continue;
            };
            for (partition, (old, new)) in
                (0..).map(PartitionId).zip(table.groups.iter().zip(&new.groups))
            {
                if old == new && !new.members.iter().any(|one| renewed.contains(&one.target)) {
                    continue;
                }
                self.changed.insert((table.redundancy, partition), after.epoch);
                for target in losers(old, new) {
                    let presence =
                        targets.get(&target).and_then(|node| self.presences.get_mut(node));
                    let Some(presence) = presence else { continue };
                    presence.must_know = after.epoch;
                    if target == old.members[0].target && target != new.members[0].target {
                        presence.deposed = after.epoch;
                    }
                }
            }
        }
    }
}

/// Members of `old` that are less in `new`: no primary, or not good any more.
fn losers<'a>(old: &'a MirrorGroup, new: &'a MirrorGroup) -> impl Iterator<Item = TargetId> + 'a {
    let was_first = old.members[0].target;
    let is_first = new.members[0].target;
    old.members
        .iter()
        .filter(move |member| {
            let was_good = member.consistency == MemberConsistency::Good;
            let is_good = consistency(new, member.target) == Some(MemberConsistency::Good);
            (was_good && !is_good) || (member.target == was_first && was_first != is_first)
        })
        .map(|member| member.target)
}
