//! How the mirror groups of a cluster are.

use samite_placement::ClusterMap;
use samite_types::Redundancy;
use samite_wire::control::{Consistency, Reachability};
use serde::Serialize;

/// How the groups of a table are.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Health {
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
pub fn health(map: &ClusterMap, redundancy: Redundancy) -> Health {
    let mut health = Health::default();
    let wanted = usize::from(redundancy.get());
    let groups = map.table(redundancy).map_or(&[][..], |table| &table.groups);
    for group in groups {
        let is_living = |target| {
            let node = map.node_of_target(target);
            let state = node.and_then(|node| map.state(node));
            state.is_some_and(|state| state.reachability != Reachability::Offline)
        };
        let good = group
            .members
            .iter()
            .filter(|member| member.consistency == Consistency::Good && is_living(member.target));
        match good.count() {
            0 => health.waiting += 1,
            good if good >= wanted => health.healthy += 1,
            _ => health.degraded += 1,
        }
        health.moving += usize::from(group.members.len() > wanted);
        let lacking =
            |consistency| matches!(consistency, Consistency::NeedsResync | Consistency::Restarted);
        health.resyncing +=
            group.members.iter().filter(|member| lacking(member.consistency)).count();
    }
    health
}
