//! Cluster maps for unit tests, as a coordinator makes them.

use std::sync::Arc;
use std::time::Duration;

use samite_coordinator::Coordinator;
use samite_placement::ClusterMap;
use samite_types::{NodeId, Redundancy, TargetId};
use samite_wire::control::{DatasetSpec, NodeInfo, TargetInfo};
use samite_wire::membership::Heartbeat;

/// Partitions of the cluster.
pub(crate) const PARTITIONS: u32 = 4;

const SECOND: Duration = Duration::from_secs(1);

/// A node as a process of it joins, which keeps nothing durable.
fn info(node: u32, incarnation: u64) -> NodeInfo {
    let target = TargetInfo { target: TargetId(node), capacity_bytes: 1 << 30, storage: 0 };
    NodeInfo {
        node: NodeId(node),
        incarnation,
        host: format!("h{node}"),
        rack: String::new(),
        addresses: vec![format!("tcp://h:{node}")],
        targets: vec![target],
    }
}

/// A cluster of so many nodes, and the map with a dataset of which two have each record.
fn cluster(nodes: u32) -> (Coordinator, Arc<ClusterMap>) {
    let coordinator = Coordinator::new("c", nodes as usize).unwrap();
    let mut coordinator = coordinator.with_partitions(PARTITIONS).unwrap();
    for node in 0..nodes {
        coordinator.join(info(node, 1), SECOND).unwrap();
    }
    let spec = DatasetSpec { redundancy: Redundancy(2), ..DatasetSpec::new("d") };
    let map = coordinator.create_dataset(spec).unwrap();
    (coordinator, map)
}

/// Three nodes.
pub(crate) fn three_nodes() -> Arc<ClusterMap> {
    cluster(3).1
}

/// The maps of two nodes: at first, when n1 is dead, and when n0, which had everything in memory,
/// was started again.
pub(crate) fn two_deaths() -> [Arc<ClusterMap>; 3] {
    let (mut coordinator, first) = cluster(2);
    let serves = first.epoch();
    let heartbeat = Heartbeat { node: NodeId(0), incarnation: 1, serves, is_led: true };
    for quarter in 4..16 {
        coordinator.heartbeat(&heartbeat, SECOND / 4 * quarter);
        coordinator.tick(SECOND / 4 * quarter);
    }
    let dead = coordinator.map().unwrap().clone();
    let after = coordinator.join(info(0, 2), SECOND * 4).unwrap().unwrap();
    [first, dead, after]
}
