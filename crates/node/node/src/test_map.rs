//! A cluster map for unit tests, as a coordinator makes it.

use std::sync::Arc;
use std::time::Duration;

use samite_coordinator::Coordinator;
use samite_placement::ClusterMap;
use samite_types::{NodeId, Redundancy, TargetId};
use samite_wire::control::{DatasetSpec, NodeInfo, TargetInfo};

/// Partitions of the cluster.
pub(crate) const PARTITIONS: u32 = 4;

/// Three nodes, and a dataset of which two have each record.
pub(crate) fn three_nodes() -> Arc<ClusterMap> {
    let mut coordinator = Coordinator::new("c", 3).unwrap().with_partitions(PARTITIONS).unwrap();
    for node in 0..3 {
        let target = TargetInfo { target: TargetId(node), capacity_bytes: 1 << 30, storage: 0 };
        let info = NodeInfo {
            node: NodeId(node),
            incarnation: 1,
            host: format!("h{node}"),
            rack: String::new(),
            addresses: vec![format!("tcp://h:{node}")],
            targets: vec![target],
        };
        coordinator.join(info, Duration::from_secs(1)).unwrap();
    }
    let spec = DatasetSpec { redundancy: Redundancy(2), ..DatasetSpec::new("d") };
    coordinator.create_dataset(spec).unwrap()
}
