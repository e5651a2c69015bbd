//! Many nodes: the map stays small enough to travel, and a death is dealt with in one decision.

use std::time::Duration;

use samite_placement::ClusterMap;
use samite_types::{NodeId, PartitionId, Redundancy, TargetId};
use samite_wire::control::{self, DatasetSpec, MemberConsistency};
use samite_wire::limits::BODY_LEN_MAX;
use samite_wire::membership::{Heartbeat, MemberChanges, MemberReport};

use super::node;
use crate::{ClusterTiming, Coordinator};

const NODES: u32 = 512;

#[test]
fn five_hundred_nodes_are_kept_by_one_coordinator() {
    let mut coordinator = Coordinator::new("c", NODES as usize).unwrap();
    let mut now = Duration::from_secs(10);
    for id in 0..NODES {
        let mut info = node(id, "tcp://node-with-a-long-name.cluster.example.org:40000");
        info.host = format!("{id:036}");
        info.addresses.push("unix:///run/user/1000/samite/c/some-directory/node.sock".into());
        coordinator.join(info, now).unwrap();
    }
    for redundancy in 1..=3 {
        let redundancy = Redundancy(redundancy);
        let spec = DatasetSpec { redundancy, ..DatasetSpec::new(format!("{redundancy}")) };
        coordinator.create_dataset(spec).unwrap();
    }
    let before = coordinator.map().unwrap().clone();
    assert_eq!(before.partitions(), 16 * NODES);
    let len = control::encode(before.data()).len();
    assert!(len < BODY_LEN_MAX / 2, "a map of {len} bytes");
    assert!(coordinator.export().len() < BODY_LEN_MAX);

    // All but one go on; when its lease is over, one map says everything.
    let dead = 77;
    while now < Duration::from_secs(12) {
        now += ClusterTiming::DEFAULT.heartbeat;
        for id in (0..NODES).filter(|id| *id != dead) {
            let serves = coordinator.map().unwrap().epoch();
            let heartbeat = Heartbeat { node: NodeId(id), incarnation: 1, serves, is_led: true };
            assert!(coordinator.heartbeat(&heartbeat, now).term_us > 0);
        }
        coordinator.tick(now);
    }
    let after = coordinator.map().unwrap().clone();
    assert_eq!(after.epoch().get(), before.epoch().get() + 2, "late, then offline");
    let mut successors = vec![0u32; NODES as usize];
    for (partition, old) in (0..).zip(&before.table(Redundancy(2)).unwrap().groups) {
        let new = after.group(Redundancy(2), PartitionId(partition)).unwrap();
        assert_eq!(new.members.len(), 2);
        if old.members[0].target == TargetId(dead) {
            successors[new.members[0].target.get() as usize] += 1;
        }
    }
    assert_eq!(successors.iter().sum::<u32>(), 16);
    assert_eq!(successors.iter().max(), Some(&1), "its load falls on as many others");

    // It comes back, and is brought up to date.
    let mut info = after.node(NodeId(dead)).unwrap().clone();
    info.incarnation = 2;
    let back = coordinator.join(info, now).unwrap().unwrap();
    let reports = synced(&back, TargetId(dead));
    assert_eq!(reports.len(), 32 + 48);
    for (primary, report) in reports {
        coordinator.report(primary, &[report]).unwrap();
    }
    let rest = coordinator.map().unwrap();
    let good = rest
        .data()
        .tables
        .iter()
        .flat_map(|table| &table.groups)
        .flat_map(|group| &group.members)
        .filter(|member| member.consistency == MemberConsistency::Good)
        .count();
    assert_eq!(good as u32, 6 * 16 * NODES);
}

/// Reports of primaries when all members that lack something, which are on `target`, lack nothing
/// any more.
fn synced(back: &ClusterMap, target: TargetId) -> Vec<(NodeId, MemberReport)> {
    let mut reports = Vec::new();
    for redundancy in 2..=3 {
        let groups = &back.table(Redundancy(redundancy)).unwrap().groups;
        for (partition, group) in (0..).map(PartitionId).zip(groups) {
            for member in &group.members {
                if member.consistency == MemberConsistency::NeedsResync {
                    assert_eq!(member.target, target);
                    let primary = back.node_of_target(group.members[0].target).unwrap();
                    reports.push((
                        primary,
                        MemberReport {
                            redundancy: Redundancy(redundancy),
                            partition,
                            term: group.term,
                            epoch: back.epoch(),
                            target: member.target,
                            change: MemberChanges::Synced,
                        },
                    ));
                }
            }
        }
    }
    reports
}
