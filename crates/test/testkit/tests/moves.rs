//! Partitions that move while clients work with them.
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

use std::time::{Duration, Instant};

use samite_client::{Client, ClientOperation, Dataset};
use samite_testkit::{LocalCluster, LocalOptions};
use samite_types::{NodeId, PartitionId, Redundancy, TargetId};
use samite_wire::control::DatasetSpec;
use samite_wire::membership::AdminRequest;
use samite_wire::op::Operation;

const WAIT: Duration = Duration::from_secs(30);

fn start() -> (LocalCluster, Client, Dataset) {
    let cluster = LocalCluster::start(3, LocalOptions::default()).unwrap();
    let client = cluster.client(samite_client::ClientOptions::default()).unwrap();
    let dataset = client.create_dataset(&DatasetSpec::new("d")).unwrap();
    (cluster, client, dataset)
}

/// A partition that node 1 holds.
fn at_the_second(client: &Client) -> PartitionId {
    let map = client.refresh_map().unwrap();
    let groups = &map.table(Redundancy(1)).unwrap().groups;
    let at = groups.iter().position(|group| group.members[0].target == TargetId(1));
    PartitionId(at.unwrap() as u32)
}

/// Moves everything away from node 1.
fn drain(client: &Client) {
    client.admin_request(NodeId(1), AdminRequest::Drain).unwrap();
    let start = Instant::now();
    loop {
        let map = client.refresh_map().unwrap();
        let groups = || map.data().tables.iter().flat_map(|table| &table.groups);
        if groups().all(|group| group.members.iter().all(|one| one.target != TargetId(1))) {
            return;
        }
        assert!(start.elapsed() < WAIT, "it does not move");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_is_not_mirrored_moves_off_a_node_that_is_drained() {
    let (_cluster, client, dataset) = start();
    let p = at_the_second(&client);
    let value = vec![7; 300_000];
    dataset.execute_one(ClientOperation::new(Operation::put(p, b"k", &value))).unwrap();
    let before = dataset.execute_one(ClientOperation::new(Operation::get(p, b"k"))).unwrap();
    drain(&client);
    assert_ne!(dataset.node_of(p).unwrap(), NodeId(1));
    assert_eq!(dataset.execute_one(ClientOperation::new(Operation::get(p, b"k"))).unwrap(), before);
}
