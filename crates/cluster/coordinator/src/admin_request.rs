//! Admin requests: an operator wants a node to join, to give up its records, or to be forgotten.

use std::sync::Arc;

use samite_placement::{ClusterMap, NODES_MAX};
use samite_types::{Error, ErrorKind, NodeId, Redundancy, Result, TargetId};
use samite_wire::control::{
    ClusterMapData, DurabilityKind, GroupMember, MemberConsistency, MirrorGroup, NodeReachability,
    NodeState,
};
use samite_wire::membership::AdminRequest;

use crate::Coordinator;
use crate::group::{has_next_term, lead};
use crate::moves::used;

impl Coordinator {
    /// Follows an admin request for a node. A request that is fulfilled already changes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]: no such node. [`ErrorKind::Invalid`]: it cannot be; the words say
    /// why. [`ErrorKind::InUse`]: the node still has records that no other has.
    /// [`ErrorKind::TooLarge`]: over [`NODES_MAX`]. [`ErrorKind::Unavailable`]: there is no map
    /// yet.
    pub fn admin_request(
        &mut self,
        node: NodeId,
        request: AdminRequest,
    ) -> Result<Arc<ClusterMap>> {
        let map = self.ready_map()?.clone();
        match request {
            AdminRequest::Add if map.node(node).is_none() => self.invite(node, false, &map),
            AdminRequest::Invite if map.node(node).is_none() => self.invite(node, true, &map),
            // Again: it has joined since.
            AdminRequest::Invite => Ok(map),
            AdminRequest::Add | AdminRequest::Undrain => self.set_draining(node, false, &map),
            AdminRequest::Drain => self.set_draining(node, true, &map),
            AdminRequest::Remove { force } => self.remove(node, force, &map),
        }
    }

    fn invite(
        &mut self,
        node: NodeId,
        is_held_back: bool,
        map: &Arc<ClusterMap>,
    ) -> Result<Arc<ClusterMap>> {
        let is_known = self.invited.contains(&node);
        if !is_known && map.nodes().len() + self.invited.len() >= NODES_MAX {
            let message = format!("add {node}: a cluster has at most {NODES_MAX} nodes");
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        let is_new = self.invited.insert(node);
        let is_changed = match is_held_back {
            true => self.held_back.insert(node),
            false => self.held_back.remove(&node),
        };
        if is_new || is_changed {
            self.revision += 1;
        }
        Ok(map.clone())
    }

    fn set_draining(
        &mut self,
        node: NodeId,
        is_draining: bool,
        map: &Arc<ClusterMap>,
    ) -> Result<Arc<ClusterMap>> {
        let mut data = map.data().clone();
        let index = position(&data, node)?;
        if data.states[index].is_draining == is_draining {
            return Ok(map.clone());
        }
        data.states[index].is_draining = is_draining;
        let left = data.states.iter().filter(|state| !state.is_draining).count();
        let needed = used(&data).into_iter().max().unwrap_or(Redundancy(1));
        if is_draining && left < usize::from(needed.get()) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "drain {node}: {left} nodes would be left, and there are datasets that need {}; add a node first",
                    needed.get()
                ),
            ));
        }
        self.plan(&data);
        self.conclude(data, false)
    }

    fn remove(
        &mut self,
        node: NodeId,
        force: bool,
        map: &Arc<ClusterMap>,
    ) -> Result<Arc<ClusterMap>> {
        if self.invited.remove(&node) {
            self.held_back.remove(&node);
            self.revision += 1;
            return Ok(map.clone());
        }
        let mut data = map.data().clone();
        let index = position(&data, node)?;
        let mut others = data.nodes.iter().zip(&data.states).filter(|(info, _)| info.node != node);
        let stays = |state: &NodeState| {
            !state.is_draining && state.reachability != NodeReachability::Offline
        };
        if !others.any(|(_, state)| stays(state)) {
            let message = format!("remove {node}: no other node that stays can be reached");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        check_removal(&data, index, force)?;
        let gone: Vec<TargetId> =
            data.nodes[index].targets.iter().map(|info| info.target).collect();
        data.nodes.remove(index);
        data.states.remove(index);
        for group in data.tables.iter_mut().flat_map(|table| &mut table.groups) {
            forget(group, &gone);
        }
        self.plan(&data);
        for (table, goal) in data.tables.iter_mut().zip(&self.goals) {
            for (group, goal) in table.groups.iter_mut().zip(goal) {
                // Of a table without data: any target will do.
                if group.members.is_empty() {
                    let alone = |target: &TargetId| GroupMember {
                        target: *target,
                        consistency: MemberConsistency::Good,
                    };
                    group.members = goal.iter().map(alone).collect();
                    lead(group, 0);
                }
            }
        }
        self.presences.remove(&node);
        self.conclude(data, false)
    }
}

fn position(data: &ClusterMapData, node: NodeId) -> Result<usize> {
    data.nodes
        .binary_search_by_key(&node, |info| info.node)
        .map_err(|_| Error::new(ErrorKind::NotFound, format!("{node}: no such node")))
}

/// Whether nothing is lost with the node at `index`.
fn check_removal(data: &ClusterMapData, index: usize, force: bool) -> Result<()> {
    let info = &data.nodes[index];
    let node = info.node;
    if force && data.states[index].reachability != NodeReachability::Offline {
        let message = format!("remove {node}: it is alive; drain it, or stop it first");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let is_here = |member: &GroupMember| info.targets.iter().any(|own| own.target == member.target);
    let mut groups = data.tables.iter().flat_map(|table| &table.groups);
    if groups.any(|group| is_here(&group.members[0]) && !has_next_term(group)) {
        let message = format!("remove {node}: it leads a group that has used up its terms");
        return Err(Error::new(ErrorKind::InUse, message));
    }
    let used = used(data);
    for table in data.tables.iter().filter(|table| used.contains(&table.redundancy)) {
        let held = table.groups.iter().filter(|group| group.members.iter().any(is_here)).count();
        if held > 0 && !force {
            let message = format!(
                "remove {node}: it holds {held} partitions of datasets of redundancy {}; drain it first, or, if it is dead, remove it by force",
                table.redundancy.get()
            );
            return Err(Error::new(ErrorKind::InUse, message));
        }
        let of_table =
            || data.datasets.iter().filter(|one| one.spec.redundancy == table.redundancy);
        let is_logged = of_table().all(|one| one.spec.durability == DurabilityKind::Logged);
        let has_it = |member: &GroupMember| match member.consistency {
            MemberConsistency::Good => true,
            MemberConsistency::Restarted => is_logged,
            MemberConsistency::NeedsResync | MemberConsistency::Bad => false,
        };
        let only = table.groups.iter().filter(|group| {
            group.members.iter().any(is_here)
                && !group.members.iter().any(|member| !is_here(member) && has_it(member))
        });
        let only = only.count();
        if only > 0 {
            let names: Vec<&str> = of_table().take(3).map(|one| one.spec.name.as_str()).collect();
            let message = format!(
                "remove {node}: it has the only good copy of {only} partitions of {}; start it again, or drop the datasets of redundancy {} first",
                names.join(", "),
                table.redundancy.get()
            );
            return Err(Error::new(ErrorKind::InUse, message));
        }
    }
    Ok(())
}

/// Takes the targets that are gone out of a group. If one was the primary, another is, in a new term.
fn forget(group: &mut MirrorGroup, gone: &[TargetId]) {
    let was_first = group.members[0].target;
    group.members.retain(|member| !gone.contains(&member.target));
    if gone.contains(&was_first) && !group.members.is_empty() {
        let good = |member: &GroupMember| member.consistency == MemberConsistency::Good;
        let next = group.members.iter().position(good).unwrap_or(0);
        lead(group, next);
    }
}
