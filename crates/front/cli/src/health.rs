//! How a cluster is: its mirror groups, what is lost, and all of it in a word.

use samite_launch::node_life;
use samite_placement::{ClusterMap, PartitionLoss};
use samite_types::Redundancy;
use samite_wire::control::{MemberConsistency, NodeReachability, NodeState};
use serde::Serialize;

use crate::cluster::ClusterTarget;

/// How the groups of a table are.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct GroupHealth {
    /// All members have everything.
    pub healthy: usize,
    /// Some member lacks something, and some has everything.
    pub degraded: usize,
    /// No living member has everything: they wait for one.
    pub waiting: usize,
    /// They have more members than they need, on the way to another node.
    pub moving: usize,
    /// Members that have to be brought up to date.
    pub resyncing: usize,
}

/// Counts the groups of the table of `redundancy`.
pub fn health(map: &ClusterMap, redundancy: Redundancy) -> GroupHealth {
    let mut health = GroupHealth::default();
    let wanted = usize::from(redundancy.get());
    let groups = map.table(redundancy).map_or(&[][..], |table| &table.groups);
    for group in groups {
        let is_living = |target| {
            let node = map.node_of_target(target);
            let state = node.and_then(|node| map.state(node));
            state.is_some_and(|state| state.reachability != NodeReachability::Offline)
        };
        let good = group.members.iter().filter(|member| {
            member.consistency == MemberConsistency::Good && is_living(member.target)
        });
        match good.count() {
            0 => health.waiting += 1,
            good if good >= wanted => health.healthy += 1,
            _ => health.degraded += 1,
        }
        health.moving += usize::from(group.members.len() > wanted);
        let lacking = |consistency| {
            matches!(consistency, MemberConsistency::NeedsResync | MemberConsistency::Restarted)
        };
        health.resyncing +=
            group.members.iter().filter(|member| lacking(member.consistency)).count();
    }
    health
}

/// How a cluster is, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthWord {
    /// Nothing is missing.
    Ok,
    /// A node, a mirror or a whole copy of a record is missing.
    Degraded,
    /// Records are gone, and nobody has acknowledged that.
    Lost,
}

impl HealthWord {
    /// That of a cluster by its map; nobody knows one while no node answers.
    pub fn of(map: Option<&ClusterMap>) -> Self {
        let Some(map) = map else { return Self::Degraded };
        if !map.data().losses.is_empty() {
            return Self::Lost;
        }
        let tables = map.data().tables.iter();
        let is_whole = |health: GroupHealth| health.degraded + health.waiting == 0;
        let is_online = |state: &NodeState| state.reachability == NodeReachability::Online;
        let are_whole = tables.map(|table| health(map, table.redundancy)).all(is_whole);
        match are_whole && map.data().states.iter().all(is_online) {
            true => Self::Ok,
            false => Self::Degraded,
        }
    }

    /// As it is written.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Degraded => "DEGRADED",
            Self::Lost => "LOST",
        }
    }
}

/// Says what is lost, dataset by dataset.
pub fn loss_words(losses: &[PartitionLoss]) -> String {
    let words = losses.iter().map(|loss| {
        let PartitionLoss { dataset, partitions, of } = loss;
        format!("all records in {partitions} of {of} partitions of `{dataset}`")
    });
    words.collect::<Vec<String>>().join(", ")
}

/// The same for programs.
pub fn losses_as_json(losses: &[PartitionLoss]) -> serde_json::Value {
    let each = losses.iter().map(|loss| {
        serde_json::json!({ "dataset": loss.dataset, "partitions": loss.partitions, "of": loss.of })
    });
    each.collect()
}

/// Nodes whose processes have ended, each with the way back, for a user who could not reach the
/// store.
pub fn ended_nodes(target: &ClusterTarget) -> Vec<String> {
    let Ok(file) = target.dir.read_cluster_file() else { return Vec::new() };
    let is_empty = file.setup.durable.is_none() && file.setup.redundancy == Redundancy(1);
    let how_back = if is_empty { ", empty: what it held is gone" } else { "" };
    let own = file.nodes.iter().filter(|entry| !entry.is_foreign());
    let ended = own.filter_map(|entry| {
        let (node, pid) = (entry.node, entry.pid);
        let how = node_life::ended(&target.dir, entry)?;
        let number = node.get();
        Some(format!(
            "{node} is down: its process (pid {pid}) {how}; `samite node restart {number}` starts it again{how_back}"
        ))
    });
    ended.collect()
}
