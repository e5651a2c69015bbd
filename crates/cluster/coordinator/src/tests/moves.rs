//! How partitions move when nodes come, drain and go, case by case.

use samite_placement::MEMBERS_MAX;
use samite_types::{ErrorKind, NodeId, Redundancy, TargetId};
use samite_wire::control::{MemberConsistency, MirrorGroup};
use samite_wire::membership::{AdminRequest, MemberChanges, NodeStanding};

use super::cluster::{Cluster, TWICE, states};
use super::node;

#[test]
fn nodes_are_added_drained_and_removed_under_way() {
    let mut cluster = Cluster::mirrored(3);
    let uninvited = cluster.coordinator.join(node(3, "tcp://h:1"), cluster.now).unwrap_err();
    assert_eq!(uninvited.kind(), ErrorKind::Exists);
    cluster.coordinator.admin_request(NodeId(3), AdminRequest::Add).unwrap();
    cluster.join(3);
    cluster.alive.push(3);
    let before = cluster.groups();
    let is_as_it_was = before.iter().all(|group| group.members.len() == 2);
    assert!(is_as_it_was, "no primary has said yet that it knows its group");
    // Said in one heartbeat, begun with the next map.
    cluster.pass(100);
    let growing = cluster.groups();
    assert!(growing.iter().all(|group| group.members.len() <= 3));
    let under_way = growing.iter().filter(|group| group.members.len() == 3).count();
    assert!((1..=4).contains(&under_way), "few at a time: {under_way}");
    cluster.sync();
    cluster.check_even(4);

    let busy = cluster
        .coordinator
        .admin_request(NodeId(0), AdminRequest::Remove { force: false })
        .unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::InUse);
    cluster.coordinator.admin_request(NodeId(0), AdminRequest::Drain).unwrap();
    cluster.sync();
    cluster.check_even(3);
    let holds =
        |group: &MirrorGroup| group.members.iter().any(|member| member.target == TargetId(0));
    assert!(!cluster.groups().iter().any(holds));
    cluster.coordinator.admin_request(NodeId(0), AdminRequest::Remove { force: false }).unwrap();
    assert_eq!(cluster.map().nodes().len(), 3);
    assert_eq!(cluster.heartbeat(0), NodeStanding::Stranger);
}

#[test]
fn a_node_that_is_held_back_gets_nothing_until_it_is_used() {
    let mut cluster = Cluster::mirrored(3);
    cluster.coordinator.admin_request(NodeId(3), AdminRequest::Invite).unwrap();
    let revision = cluster.coordinator.revision();
    cluster.coordinator.admin_request(NodeId(3), AdminRequest::Invite).unwrap();
    assert_eq!(cluster.coordinator.revision(), revision, "it is known");
    // Also by the instance that leads next.
    let (state, timing) = (cluster.coordinator.export(), crate::ClusterTiming::DEFAULT);
    let mut next = crate::Coordinator::take_over(&state, timing, cluster.now).unwrap();
    let map = next.join(node(3, "tcp://h:1"), cluster.now).unwrap().unwrap();
    assert!(map.state(NodeId(3)).unwrap().is_draining);
    cluster.join(3);
    cluster.alive.push(3);
    cluster.sync();
    cluster.check_even(3);
    cluster.coordinator.admin_request(NodeId(3), AdminRequest::Invite).unwrap();
    cluster.sync();
    cluster.check_even(3);
    cluster.coordinator.admin_request(NodeId(3), AdminRequest::Undrain).unwrap();
    cluster.sync();
    cluster.check_even(4);
    // One that never came, and one that is wanted at once after all.
    for (node, then) in [(4, AdminRequest::Remove { force: false }), (5, AdminRequest::Add)] {
        cluster.coordinator.admin_request(NodeId(node), AdminRequest::Invite).unwrap();
        cluster.coordinator.admin_request(NodeId(node), then).unwrap();
    }
    assert_eq!(
        cluster.coordinator.join(node(4, "tcp://h:1"), cluster.now).unwrap_err().kind(),
        ErrorKind::Exists
    );
    cluster.join(5);
    assert!(!cluster.map().state(NodeId(5)).unwrap().is_draining);
}

#[test]
fn two_hosts_with_one_number_do_not_take_it_from_each_other() {
    let mut cluster = Cluster::mirrored(3);
    let there = samite_wire::control::NodeInfo {
        host: "elsewhere".into(),
        incarnation: u64::MAX,
        ..node(2, "tcp://h:1")
    };
    let refused = cluster.coordinator.join(there.clone(), cluster.now).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.message().contains("lives on another host"), "{refused}");
    cluster.alive.retain(|node| *node != 2);
    cluster.pass(3000);
    cluster.coordinator.join(there, cluster.now).unwrap();
    assert_eq!(cluster.map().node(NodeId(2)).unwrap().host, "elsewhere", "it has moved");
}

#[test]
fn a_group_that_is_full_of_former_goals_makes_room_for_the_next() {
    let mut cluster = Cluster::mirrored(9);
    let members = |cluster: &Cluster| cluster.groups()[0].members.clone();
    // A new member is to go again before it is up to date.
    for count in 2..=MEMBERS_MAX {
        for _ in 0..100 {
            if members(&cluster).len() == count {
                break;
            }
            for (partition, group) in (1..).zip(cluster.groups().into_iter().skip(1)) {
                for member in group.members {
                    if member.consistency == MemberConsistency::NeedsResync {
                        cluster.report(partition, member.target.get(), MemberChanges::Synced);
                    }
                }
            }
            cluster.pass(100);
        }
        assert_eq!(members(&cluster).len(), count);
        let last = NodeId(members(&cluster)[count - 1].target.get());
        cluster.coordinator.admin_request(last, AdminRequest::Drain).unwrap();
    }
    cluster.sync();
    let group = cluster.groups().remove(0);
    assert_eq!(states(&group).len(), 2, "{group:?}");
    let is_draining = |target: TargetId| {
        cluster.map().state(NodeId(target.get())).is_some_and(|state| state.is_draining)
    };
    assert!(!group.members.iter().any(|member| is_draining(member.target)), "{group:?}");
}

#[test]
fn a_dead_node_is_removed_and_its_partitions_are_copied() {
    let mut cluster = Cluster::mirrored(4);
    let alive = cluster
        .coordinator
        .admin_request(NodeId(2), AdminRequest::Remove { force: true })
        .unwrap_err();
    assert_eq!(alive.kind(), ErrorKind::Invalid);
    cluster.die(2);
    cluster.pass(1500);
    cluster.coordinator.admin_request(NodeId(2), AdminRequest::Remove { force: true }).unwrap();
    cluster.sync();
    cluster.check_even(3);
}

#[test]
fn the_only_copy_is_never_removed() {
    let mut cluster = Cluster::new(3);
    cluster.create(1);
    cluster.die(2);
    cluster.pass(1500);
    let remove = AdminRequest::Remove { force: true };
    let error = cluster.coordinator.admin_request(NodeId(2), remove).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.message().contains("only good copy"), "{error}");
    cluster.coordinator.drop_dataset("x1").unwrap();
    let map = cluster.coordinator.admin_request(NodeId(2), remove).unwrap();
    let groups = &map.table(Redundancy(1)).unwrap().groups;
    assert!(groups.iter().all(|group| group.members.len() == 1));
}

#[test]
fn a_broken_member_is_replaced() {
    let mut cluster = Cluster::mirrored(3);
    let group = cluster.groups()[0].clone();
    let broken = group.members[1].target;
    cluster.report(0, broken.get(), MemberChanges::Broken);
    cluster.sync();
    let now = cluster.groups()[0].clone();
    assert_eq!(now.members.len(), 2);
    assert!(now.members.iter().all(|member| member.target != broken));
    assert!(now.members.iter().all(|member| member.consistency == MemberConsistency::Good));
}

#[test]
fn a_former_primary_is_not_left_behind_before_it_knows() {
    let mut cluster = Cluster::mirrored(3);
    cluster.die(1);
    cluster.pass(1500);
    cluster.restart(1);
    // All nodes know every map but the newest; then roles turn back to node 1.
    for _ in 0..100 {
        let turned =
            cluster.groups().iter().position(|group| group.members[0].target == TargetId(1));
        if let Some(partition) = turned {
            let former = cluster.groups()[partition].members[1].target;
            let before = cluster.groups()[partition].clone();
            cluster.report(partition as u32, former.get(), MemberChanges::Missed);
            assert_eq!(cluster.groups()[partition], before);
            cluster.heartbeat(former.get());
            cluster.report(partition as u32, former.get(), MemberChanges::Missed);
            let members = &cluster.groups()[partition].members;
            assert_eq!(members[1].consistency, MemberConsistency::NeedsResync);
            return;
        }
        let map = cluster.coordinator.map().unwrap().clone();
        for (partition, group) in (0..).zip(&map.table(TWICE).unwrap().groups) {
            if group.members.iter().any(|one| one.consistency == MemberConsistency::NeedsResync) {
                cluster.report(partition, 1, MemberChanges::Synced);
                break;
            }
        }
    }
    panic!("no role turned");
}
