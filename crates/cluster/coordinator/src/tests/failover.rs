//! Decisions of the coordinator when nodes fail and come back, case by case.

use std::time::Duration;

use samite_types::{Epoch, ErrorKind, NodeId, PartitionId, Redundancy, TargetId, Term};
use samite_wire::control::{
    DatasetSpec, DurabilityKind, LostRecords, MemberConsistency, MirrorGroup, NodeReachability,
};
use samite_wire::membership::{Heartbeat, MemberChanges, MemberReport, NodeStanding};

use super::cluster::{Cluster, START, TWICE, states};
use super::node;
use crate::{ClusterTiming, Coordinator};

#[test]
fn a_mirrored_dataset_gets_even_groups() {
    Cluster::mirrored(5).check_even(5);
    let mut two = Cluster::new(2);
    let spec = DatasetSpec { redundancy: Redundancy(3), ..DatasetSpec::new("d") };
    let error = two.coordinator.create_dataset(spec).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("redundancy 3 needs as many nodes; the cluster has 2"));
}

#[test]
fn a_logged_dataset_needs_durable_storage() {
    let mut coordinator = super::complete(2);
    let spec = DatasetSpec { durability: DurabilityKind::Logged, ..DatasetSpec::new("d") };
    assert_eq!(coordinator.create_dataset(spec).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn a_silent_node_is_late_then_offline_and_its_groups_go_on() {
    let mut cluster = Cluster::mirrored(3);
    cluster.pass(1000);
    let before = cluster.groups();
    cluster.die(1);
    cluster.pass(700);
    let state = |cluster: &Cluster| cluster.map().state(NodeId(1)).unwrap().reachability;
    assert_eq!(state(&cluster), NodeReachability::Online);
    cluster.pass(100);
    assert_eq!(state(&cluster), NodeReachability::ProbablyOffline);
    assert_eq!(cluster.groups(), before);
    cluster.pass(300);
    assert_eq!(cluster.groups(), before, "its lease still runs");
    cluster.pass(200);
    assert_eq!(cluster.groups(), before, "it still runs by a slower clock");
    cluster.pass(100);
    assert_eq!(state(&cluster), NodeReachability::Offline);
    for (old, new) in before.iter().zip(cluster.groups()) {
        let was_primary = old.members[0].target == TargetId(1);
        assert_eq!(new.term.get(), old.term.get() + u32::from(was_primary));
        for member in &new.members {
            let is_good = member.consistency == MemberConsistency::Good;
            assert_eq!(is_good, member.target != TargetId(1));
        }
        assert_ne!(new.members[0].target, TargetId(1));
    }
}

#[test]
fn an_instance_that_hears_from_few_takes_nothing_until_another_could_have_taken_its_place() {
    let mut cluster = Cluster::mirrored(3);
    cluster.pass(1000);
    let before = cluster.groups();
    cluster.die(1);
    cluster.die(2);
    cluster.pass(600);
    let leads = |group: &MirrorGroup| group.members[0].target == TargetId(0);
    let partition = before.iter().position(leads).unwrap();
    let other = before[partition].members[1].target;
    let report = MemberReport {
        redundancy: TWICE,
        partition: PartitionId(partition as u32),
        term: before[partition].term,
        epoch: cluster.map().epoch(),
        target: other,
        change: MemberChanges::Missed,
    };
    let refused = cluster.coordinator.report(NodeId(0), &[report]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    cluster.pass(4000);
    assert_eq!(cluster.groups(), before, "they may be alive, and this instance cut off");
    let state = |cluster: &Cluster, node| cluster.map().state(node).unwrap().reachability;
    assert_eq!(state(&cluster, NodeId(1)), NodeReachability::ProbablyOffline);
    // One of them is heard again: now the other is missing.
    cluster.alive.push(2);
    cluster.pass(100);
    assert_eq!(state(&cluster, NodeId(1)), NodeReachability::Offline);
    assert_eq!(state(&cluster, NodeId(2)), NodeReachability::Online);
    // No node has come: they are dead.
    let mut cluster = Cluster::mirrored(3);
    cluster.die(1);
    cluster.die(2);
    cluster.pass(5000);
    assert_eq!(state(&cluster, NodeId(1)), NodeReachability::Offline);
    assert_eq!(state(&cluster, NodeId(2)), NodeReachability::Offline);
    // A node that has died before is no reason to wait while more than half live.
    let mut cluster = Cluster::mirrored(5);
    cluster.die(1);
    cluster.pass(2000);
    cluster.die(2);
    cluster.pass(1500);
    assert_eq!(state(&cluster, NodeId(2)), NodeReachability::Offline);
}

#[test]
fn a_node_that_comes_back_needs_resync_and_gets_its_place_again() {
    let mut cluster = Cluster::mirrored(3);
    let before = cluster.groups();
    cluster.die(1);
    cluster.pass(1500);
    cluster.restart(1);
    assert_eq!(cluster.heartbeat(1), NodeStanding::Member);
    cluster.sync();
    cluster.check_even(3);
    for (old, new) in before.iter().zip(cluster.groups()) {
        assert_eq!(states(old), states(&new));
    }
}

#[test]
fn what_a_former_process_says_late_does_not_count() {
    let mut cluster = Cluster::mirrored(3);
    cluster.die(1);
    cluster.pass(1500);
    cluster.restart(1);
    cluster.sync();
    let before = cluster.map().epoch();
    let late = node(1, "tcp://h:1");
    assert_ne!(late.incarnation, cluster.incarnations[1]);
    let refuses = |cluster: &mut Cluster| {
        let refused = cluster.coordinator.join(late.clone(), cluster.now).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert_eq!(cluster.map().epoch(), before);
        assert_eq!(cluster.heartbeat(1), NodeStanding::Member);
    };
    refuses(&mut cluster);
    // However late it comes, while the other is heard.
    cluster.pass(5000);
    refuses(&mut cluster);
    // Of the two this one lives, then.
    cluster.die(1);
    cluster.pass(2000);
    assert!(cluster.coordinator.join(late, cluster.now).unwrap().is_some());
}

#[test]
fn what_a_process_says_late_that_nobody_had_heard_of_does_not_count() {
    let mut cluster = Cluster::mirrored(3);
    cluster.die(1);
    cluster.pass(1500);
    // One in between has died before it was heard.
    let mut late = node(1, "tcp://h:1");
    late.incarnation = cluster.incarnations[1] + 1;
    cluster.incarnations[1] += 1;
    cluster.restart(1);
    cluster.sync();
    let before = cluster.map().epoch();
    let refused = cluster.coordinator.join(late.clone(), cluster.now).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert_eq!((cluster.map().epoch(), cluster.heartbeat(1)), (before, NodeStanding::Member));
    // The clock may have been set back, and the one with the later start be gone.
    cluster.die(1);
    cluster.pass(2000);
    assert!(cluster.coordinator.join(late, cluster.now).unwrap().is_some());
}

#[test]
fn a_paused_node_gets_no_lease_before_it_knows_what_it_lost() {
    let mut cluster = Cluster::mirrored(3);
    let old = cluster.map().epoch();
    cluster.die(1);
    cluster.pass(2000);
    let heartbeat = Heartbeat { node: NodeId(1), incarnation: 1, serves: old, is_led: true };
    let lease = cluster.coordinator.heartbeat(&heartbeat, cluster.now);
    assert_eq!((lease.term_us, lease.standing), (0, NodeStanding::Behind));
    assert_eq!(cluster.heartbeat(1), NodeStanding::Member);
    let foreign = Heartbeat { incarnation: 9, ..heartbeat };
    let lease = cluster.coordinator.heartbeat(&foreign, cluster.now);
    assert_eq!((lease.term_us, lease.standing), (0, NodeStanding::Stranger));
}

#[test]
fn missed_and_synced_count_only_from_the_primary_in_its_term() {
    let mut cluster = Cluster::mirrored(3);
    let group = cluster.groups()[0].clone();
    let [primary, second] = [group.members[0].target, group.members[1].target];
    let say = |cluster: &mut Cluster, from: TargetId, term: u32, epoch: Epoch, change| {
        let report = MemberReport {
            redundancy: TWICE,
            partition: PartitionId(0),
            term: Term(term),
            epoch,
            target: second,
            change,
        };
        cluster.coordinator.report(NodeId(from.get()), &[report]).unwrap().epoch()
    };
    let state = |cluster: &Cluster| cluster.groups()[0].members[1].consistency;
    let first = cluster.map().epoch();
    say(&mut cluster, second, 0, first, MemberChanges::Missed);
    say(&mut cluster, primary, 1, first, MemberChanges::Missed);
    assert_eq!(cluster.groups()[0], group);

    let missed = say(&mut cluster, primary, 0, first, MemberChanges::Missed);
    assert_eq!(state(&cluster), MemberConsistency::NeedsResync);
    let again = say(&mut cluster, primary, 0, first, MemberChanges::Missed);
    assert_eq!(again, missed, "twice is as good as once");

    say(&mut cluster, primary, 0, first, MemberChanges::Synced);
    assert_eq!(state(&cluster), MemberConsistency::NeedsResync);
    let fenced = say(&mut cluster, primary, 0, missed, MemberChanges::Missed);
    assert!(fenced > missed, "the reporter can know that nothing is under way");
    say(&mut cluster, primary, 0, missed, MemberChanges::Synced);
    assert_eq!(state(&cluster), MemberConsistency::NeedsResync);
    say(&mut cluster, primary, 0, fenced, MemberChanges::Synced);
    assert_eq!(state(&cluster), MemberConsistency::Good);
    // An old one that comes late undoes nothing.
    say(&mut cluster, primary, 0, first, MemberChanges::Missed);
    assert_eq!(state(&cluster), MemberConsistency::Good);
}

#[test]
fn what_a_node_was_brought_to_before_it_started_again_counts_for_nothing() {
    let mut cluster = Cluster::mirrored(2);
    let group = cluster.groups()[0].clone();
    let [primary, second] = [group.members[0].target, group.members[1].target];
    cluster.die(second.get());
    cluster.pass(1500);
    let behind = cluster.map().epoch();
    // The primary has brought it up to date; before it can say so, the node starts again with nothing.
    cluster.restart(second.get());
    assert_eq!(cluster.groups()[0].members[1].consistency, MemberConsistency::NeedsResync);
    let mut report = MemberReport {
        redundancy: TWICE,
        partition: PartitionId(0),
        term: group.term,
        epoch: behind,
        target: second,
        change: MemberChanges::Synced,
    };
    cluster.coordinator.report(NodeId(primary.get()), &[report]).unwrap();
    assert_eq!(cluster.groups()[0].members[1].consistency, MemberConsistency::NeedsResync);
    report.epoch = cluster.map().epoch();
    cluster.coordinator.report(NodeId(primary.get()), &[report]).unwrap();
    assert!(
        cluster.groups()[0].members.iter().all(|one| one.consistency == MemberConsistency::Good)
    );
}

#[test]
fn the_last_good_member_waits() {
    let mut cluster = Cluster::mirrored(2);
    cluster.pass(200);
    cluster.die(0);
    cluster.pass(1500);
    let alone = cluster.groups();
    assert!(alone.iter().all(|group| group.members[0].target == TargetId(1)));
    cluster.die(1);
    cluster.pass(3000);
    assert_eq!(cluster.groups(), alone);
    cluster.alive = vec![0];
    cluster.pass(3000);
    assert_eq!(cluster.groups(), alone, "the other may have gone on alone");
    cluster.alive = vec![0, 1];
    cluster.sync();
    cluster.check_even(2);
}

#[test]
fn when_all_were_restarted_the_first_to_come_leads() {
    let mut cluster = Cluster::mirrored(2);
    cluster.alive.clear();
    cluster.pass(2000);
    cluster.restart(0);
    let waits = |group: &MirrorGroup| {
        let mut states = states(group);
        states.sort_unstable_by_key(|(target, _)| *target);
        states == [(0, MemberConsistency::Restarted), (1, MemberConsistency::Good)]
    };
    assert!(cluster.groups().iter().all(waits), "the other one may have everything in memory");
    cluster.restart(1);
    for group in cluster.groups() {
        assert_eq!(group.members[0].consistency, MemberConsistency::Good);
        assert_eq!(group.members[1].consistency, MemberConsistency::NeedsResync);
    }
    cluster.sync();
    cluster.check_even(2);
}

#[test]
fn an_unmirrored_partition_is_good_again_at_once() {
    let mut cluster = Cluster::new(2);
    cluster.create(1);
    let before = cluster.map().data().tables[0].clone();
    cluster.restart(1);
    for (old, new) in before.groups.iter().zip(&cluster.map().data().tables[0].groups) {
        assert_eq!(states(old), states(new));
    }
}

#[test]
fn a_new_instance_gives_former_leases_their_time() {
    let mut cluster = Cluster::mirrored(3);
    cluster.pass(1000);
    let state = cluster.coordinator.export();
    cluster.die(2);
    cluster.now += Duration::from_secs(1000);
    cluster.coordinator =
        Coordinator::take_over(&state, ClusterTiming::DEFAULT, cluster.now).unwrap();
    assert_eq!(cluster.coordinator.export(), state);
    let before = cluster.groups();
    cluster.pass(1200);
    assert_eq!(cluster.groups(), before);
    cluster.pass(200);
    assert_eq!(cluster.map().state(NodeId(2)).unwrap().reachability, NodeReachability::Offline);
    assert!(cluster.groups().iter().all(|group| group.members[0].target != TargetId(2)));
    assert!(Coordinator::take_over(&state[1..], ClusterTiming::DEFAULT, START).is_err());
}

#[test]
fn a_coordinator_that_slept_blames_nobody() {
    let mut cluster = Cluster::mirrored(3);
    cluster.pass(1000);
    let before = cluster.map().epoch();
    cluster.now += Duration::from_secs(10);
    cluster.coordinator.tick(cluster.now);
    cluster.pass(1000);
    assert_eq!(cluster.map().epoch(), before);
}

#[test]
fn an_acknowledgement_is_of_the_losses_that_were_seen_and_of_no_later_one() {
    let mut cluster = Cluster::new(2);
    cluster.create(1);
    let look = |cluster: &Cluster| (cluster.map().epoch(), cluster.map().data().losses.clone());
    let count = |cluster: &Cluster| {
        cluster.map().losses_known().iter().map(|loss| loss.partitions).sum::<usize>()
    };
    let acknowledge = |cluster: &mut Cluster, (by, seen): &(Epoch, Vec<LostRecords>)| {
        cluster.coordinator.acknowledge_loss(*by, seen).unwrap();
        count(cluster)
    };
    cluster.restart(0);
    let of_one = count(&cluster);
    cluster.restart(1);
    let all = count(&cluster);
    assert!(0 < of_one && of_one < all);
    // The second loss of node 1 was not seen; that of node 0 was.
    let first = look(&cluster);
    cluster.restart(1);
    assert_eq!(acknowledge(&mut cluster, &first), all - of_one);
    let second = look(&cluster);
    assert_eq!(acknowledge(&mut cluster, &second), 0);
    // Both come again, late.
    cluster.restart(0);
    for late in [&first, &second] {
        assert_eq!(acknowledge(&mut cluster, late), of_one);
    }
    // Another instance does not know when that was.
    let third = look(&cluster);
    cluster.restart(1);
    let state = cluster.coordinator.export();
    cluster.coordinator =
        Coordinator::take_over(&state, ClusterTiming::DEFAULT, cluster.now).unwrap();
    assert_eq!(acknowledge(&mut cluster, &third), all);
    let newest = look(&cluster);
    assert_eq!(acknowledge(&mut cluster, &newest), 0);
}
