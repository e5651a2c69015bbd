//! Nodes that are members of the same partitions: every member has each acknowledged change, and a
//! member that was away gets it.
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

mod common;

use std::time::{Duration, Instant};

use common::{Ended, Got, Raw, SHM, TCP, UNIX, cluster, pattern};
use samite_testkit::{LocalCluster, LocalOptions, PATIENT};
use samite_transport::ClusterKey;
use samite_transport::client::{ConnectIdentity, NodeLink};
use samite_types::fault::FaultSwitch;
use samite_types::{DatasetId, Epoch, ErrorKind, NodeId, PartitionId, Redundancy, TargetId};
use samite_wire::control::{
    ControlReply, ControlRequest, FaultRequest, MemberConsistency, MirrorGroup, NodeInfo,
    PartitionCopy,
};
use samite_wire::op::{Action, Operation, ValueData};

const WAIT: Duration = Duration::from_secs(60);

/// A cluster in which nobody is taken for dead because the machine is slow.
fn patient(nodes: usize, shards: u16) -> LocalCluster {
    let options = LocalOptions { shards, timing: PATIENT, ..LocalOptions::default() };
    LocalCluster::start(nodes, options).unwrap()
}

/// A partition whose primary is the node of `raw`, and the nodes of its other members.
fn mirrored(raw: &Raw, copies: u8) -> (PartitionId, Vec<u32>) {
    let table = raw.map.table(Redundancy(copies)).unwrap();
    let own = TargetId(raw.node.get());
    let (partition, group) = (0..)
        .map(PartitionId)
        .zip(&table.groups)
        .find(|(_, group)| group.members[0].target == own)
        .unwrap();
    let others = group.members[1..].iter().map(|member| member.target.get()).collect();
    (partition, others)
}

fn copy_at(raw: &Raw, dataset: DatasetId, partition: PartitionId) -> Option<PartitionCopy> {
    match raw.control(&ControlRequest::Copy { dataset, partition }) {
        ControlReply::Copy(copy) => copy,
        other => panic!("{other:?}"),
    }
}

/// Every member has the same records of `partition`.
fn assert_equal(cluster: &LocalCluster, nodes: &[u32], at: (DatasetId, PartitionId)) {
    let copies: Vec<_> = nodes
        .iter()
        .map(|node| copy_at(&Raw::connect(cluster, *node, UNIX), at.0, at.1).unwrap())
        .collect();
    assert!(copies.windows(2).all(|pair| pair[0] == pair[1]), "{copies:?}");
    assert!(copies[0].records > 0);
}

/// The same, when a primary has just begun a term: the others follow at once, but not at the same
/// time.
fn wait_equal(cluster: &LocalCluster, nodes: &[u32], at: (DatasetId, PartitionId)) {
    let start = Instant::now();
    loop {
        let copies: Vec<_> = nodes
            .iter()
            .map(|node| copy_at(&Raw::connect(cluster, *node, UNIX), at.0, at.1))
            .collect();
        if copies[0].is_some() && copies.windows(2).all(|pair| pair[0] == pair[1]) {
            return assert!(copies[0].as_ref().unwrap().records > 0);
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{copies:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_acknowledged_is_at_every_member() {
    for (nodes, copies, shards) in [(2, 2, 1), (3, 3, 2)] {
        let cluster = patient(nodes, shards);
        let all: Vec<u32> = (0..nodes as u32).collect();
        for (transport, name) in [(SHM, "shm"), (UNIX, "unix"), (TCP, "tcp")] {
            let mut raw = Raw::connect(&cluster, 0, transport);
            let dataset = raw.create_mirrored(name, copies);
            let (p, others) = mirrored(&raw, copies);
            assert_eq!(others.len() + 1, usize::from(copies));
            for (round, len) in [0, 1, 100, 5_000, 70_000, 1 << 20].into_iter().enumerate() {
                let value = pattern(len, round as u8);
                let key = format!("key {round}");
                let put = raw.one(dataset, Operation::put(p, key.as_bytes(), &value));
                assert!(matches!(put.only(), Got::Written { .. }));
                let get = raw.one(dataset, Operation::get(p, key.as_bytes()));
                assert!(get.value() == value);
                assert_equal(&cluster, &all, (dataset, p));
            }
            let changes = Operation::new(
                p,
                [
                    Action::Append { key: b"key 2", data: ValueData::Inline(b"++"), len_max: 200 },
                    Action::Write {
                        key: b"key 5",
                        offset: 100,
                        data: ValueData::Inline(&[7; 9000]),
                    },
                    Action::Punch { key: b"key 5", offset: 65_536, len: 131_072 },
                    Action::Delete { key: b"key 1" },
                    Action::Add { key: b"n", offset: 8, delta: 3 },
                ],
            );
            raw.one(dataset, changes);
            assert_equal(&cluster, &all, (dataset, p));
        }
    }
}

#[test]
fn blocks_that_a_client_has_filled_reach_the_others() {
    let cluster = patient(2, 1);
    let mut raw = Raw::connect(&cluster, 0, SHM);
    let dataset = raw.create_mirrored("d", 2);
    let (p, _) = mirrored(&raw, 2);
    let ControlReply::Granted(granted) = raw.control(&ControlRequest::Grant { count: 4 }) else {
        panic!("no grant")
    };
    let value = pattern(4 << 16, 3);
    let data = raw.fill(&granted, &value);
    let put = Operation::new(p, [Action::Put { key: b"k", data }]);
    let answer = raw.send(dataset, vec![put]);
    assert_eq!(answer.grants.len(), 4, "new ones in their place");
    assert!(raw.one(dataset, Operation::get(p, b"k")).value() == value);
    wait_equal(&cluster, &[0, 1], (dataset, p));
}

#[test]
fn a_mirrored_operation_costs_one_frame_each_way_for_each_member() {
    for copies in [2, 3] {
        let cluster = patient(usize::from(copies), 1);
        let mut raw = Raw::connect(&cluster, 0, UNIX);
        let dataset = raw.create_mirrored("d", copies);
        let (p, others) = mirrored(&raw, copies);
        let others: Vec<Raw> =
            others.iter().map(|node| Raw::connect(&cluster, *node, UNIX)).collect();
        raw.one(dataset, Operation::put(p, b"first", b"opens all"));
        let count = || {
            let other = others.iter().map(|raw| raw.status().peer_frames).sum::<u64>();
            (raw.status().peer_frames, other)
        };
        let before = count();
        for round in 0..10u8 {
            raw.one(dataset, Operation::put(p, &[round], b"value"));
        }
        // A batch is one frame each way, too.
        let keys: Vec<[u8; 2]> = (0..100).map(|key| [key, 0]).collect();
        raw.send(dataset, keys.iter().map(|key| Operation::put(p, key, b"value")).collect());
        let after = count();
        let members = u64::from(copies) - 1;
        assert_eq!((after.0 - before.0, after.1 - before.1), (11 * members, 11 * members));
        // Reads cost nothing.
        raw.one(dataset, Operation::get(p, b"first"));
        assert_eq!(count(), after);
    }
}

#[test]
fn only_the_primary_serves() {
    let cluster = patient(2, 1);
    let mut raw = Raw::connect(&cluster, 0, UNIX);
    let dataset = raw.create_mirrored("d", 2);
    let (p, _) = mirrored(&raw, 2);
    raw.one(dataset, Operation::put(p, b"k", b"v"));
    let other = Raw::connect(&cluster, 1, UNIX);
    let answer = other.try_send(&other.header(dataset), &[Operation::get(p, b"k")]).unwrap();
    assert_eq!(answer.refused, Some(ErrorKind::StaleMap));
}

/// The group of a partition of datasets with two members, by the newest map of a node.
fn group(raw: &Raw, partition: PartitionId) -> MirrorGroup {
    group_of(raw, 2, partition)
}

fn group_of(raw: &Raw, copies: u8, partition: PartitionId) -> MirrorGroup {
    let known = Epoch(0);
    let ControlReply::Map(Some(map)) = raw.control(&ControlRequest::Map { known }) else {
        panic!("no map")
    };
    let table =
        map.tables.into_iter().find(|table| table.redundancy == Redundancy(copies)).unwrap();
    table.groups.into_iter().nth(partition.get() as usize).unwrap()
}

/// Waits until the coordinator says so of a group.
fn wait_for(raw: &Raw, partition: PartitionId, is_so: impl Fn(&MirrorGroup) -> bool) {
    let start = Instant::now();
    loop {
        let group = group(raw, partition);
        if is_so(&group) {
            return;
        }
        assert!(start.elapsed() < WAIT, "{group:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_all_good(group: &MirrorGroup) -> bool {
    group.members.iter().all(|member| member.consistency == MemberConsistency::Good)
}

/// Puts a value, again while the node is busy.
fn put(raw: &Raw, at: (DatasetId, PartitionId), number: u32, len: usize) {
    let start = Instant::now();
    let value = pattern(len, number as u8);
    loop {
        let key = number.to_le_bytes();
        let answer = raw.send(at.0, vec![Operation::put(at.1, &key, &value)]);
        match answer.refused {
            None => return assert!(matches!(answer.only(), Ended::Done(_))),
            Some(ErrorKind::Busy) if start.elapsed() < WAIT => {}
            refused => panic!("{refused:?}"),
        }
    }
}

#[test]
fn a_member_that_was_away_is_brought_up_to_date_while_writes_go_on() {
    let mut cluster = cluster(2, 2);
    let mut raw = Raw::connect(&cluster, 0, UNIX);
    let dataset = raw.create_mirrored("d", 2);
    // Another one of the same groups, which nobody touches meanwhile.
    let quiet = raw.create_mirrored("quiet", 2);
    let (p, _) = mirrored(&raw, 2);
    for number in 0..100 {
        put(&raw, (dataset, p), number, 100 + 1000 * number as usize);
    }
    put(&raw, (quiet, p), 1, 300_000);
    cluster.stop_node(NodeId(1)).unwrap();
    for number in 50..150 {
        put(&raw, (dataset, p), number, 3_000);
    }
    let needs_resync =
        |group: &MirrorGroup| group.members[1].consistency == MemberConsistency::NeedsResync;
    wait_for(&raw, p, needs_resync);
    cluster.restart_node(NodeId(1)).unwrap();
    let start = Instant::now();
    // Until the member is good, and some more.
    let (mut number, mut left) = (150, 50);
    while left > 0 {
        put(&raw, (dataset, p), number % 400, 500 + number as usize);
        number += 1;
        let group = group(&raw, p);
        left -= usize::from(is_all_good(&group));
        assert!(start.elapsed() < WAIT, "{group:?}");
    }
    assert_equal(&cluster, &[0, 1], (dataset, p));
    assert_equal(&cluster, &[0, 1], (quiet, p));
    assert!(raw.status().resync_bytes > 300_000);
}

#[test]
fn a_member_that_was_cut_off_is_sent_only_what_it_missed() {
    let cluster = cluster(2, 1);
    let mut raw = Raw::connect(&cluster, 0, UNIX);
    let dataset = raw.create_mirrored("d", 2);
    let (p, _) = mirrored(&raw, 2);
    for number in 0..100 {
        put(&raw, (dataset, p), number, 50_000);
    }
    // A busy machine may have been late before.
    wait_for(&raw, p, is_all_good);
    let before = raw.status().resync_bytes;
    for node in [0, 1] {
        let cut = FaultRequest::Set("cut 0 1 0s 4s\ncut 1 0 0s 4s".into());
        let reply = Raw::connect(&cluster, node, UNIX).control(&ControlRequest::Faults(cut));
        assert!(matches!(reply, ControlReply::Faults(_)));
    }
    for number in 98..103 {
        put(&raw, (dataset, p), number, 30_000);
    }
    wait_for(&raw, p, |group| group.members[1].consistency == MemberConsistency::NeedsResync);
    wait_for(&raw, p, is_all_good);
    assert_equal(&cluster, &[0, 1], (dataset, p));
    let sent = raw.status().resync_bytes - before;
    assert!((150_000..400_000).contains(&sent), "{sent} bytes, of 5 MB that were there already");
}

#[test]
fn when_the_primary_dies_the_other_has_all_that_was_acknowledged() {
    let mut cluster = cluster(2, 1);
    // Not the node in which the coordinator lives.
    let mut first = Raw::connect(&cluster, 1, UNIX);
    let dataset = first.create_mirrored("d", 2);
    let (p, _) = mirrored(&first, 2);
    let mut raw = Raw::connect(&cluster, 0, UNIX);
    raw.map = first.map.clone();
    for number in 0..200 {
        put(&first, (dataset, p), number, 100 + 300 * number as usize);
    }
    cluster.stop_node(NodeId(1)).unwrap();
    wait_for(&raw, p, |group| group.members[0].target == TargetId(0));
    for number in 0..200u32 {
        let key = number.to_le_bytes();
        let value = raw.one(dataset, Operation::get(p, &key)).value();
        assert!(value == pattern(100 + 300 * number as usize, number as u8));
    }
    put(&raw, (dataset, p), 1000, 10);
    cluster.restart_node(NodeId(1)).unwrap();
    wait_for(&raw, p, is_all_good);
    wait_equal(&cluster, &[0, 1], (dataset, p));
}

#[test]
fn no_reply_leaves_before_every_member_has_it() {
    let cluster = cluster(2, 1);
    let mut raw = Raw::connect(&cluster, 0, UNIX);
    let dataset = raw.create_mirrored("d", 2);
    let (p, _) = mirrored(&raw, 2);
    put(&raw, (dataset, p), 0, 10);
    // The other's messages are lost for a while; not for so long that it is noticed.
    let other = Raw::connect(&cluster, 1, UNIX);
    let lost = Duration::from_millis(300);
    let table = ControlRequest::Faults(FaultRequest::Set("drop 100% 1 0 0ms 300ms".into()));
    let before = Instant::now();
    assert!(matches!(other.control(&table), ControlReply::Faults(_)));
    put(&raw, (dataset, p), 1, 10);
    assert!(before.elapsed() >= lost, "{:?}", before.elapsed());
    assert_equal(&cluster, &[0, 1], (dataset, p));
}

#[test]
fn three_members_lose_one_after_the_other_and_get_them_back() {
    let mut cluster = cluster(3, 2);
    let mut raw = Raw::connect(&cluster, 0, TCP);
    let dataset = raw.create_mirrored("d", 3);
    let (p, others) = mirrored(&raw, 3);
    let mut number = 0;
    let mut some = |raw: &Raw| {
        for _ in 0..60 {
            put(raw, (dataset, p), number % 100, 10 + 97 * (number as usize % 1000));
            number += 1;
        }
    };
    some(&raw);
    for other in others {
        cluster.stop_node(NodeId(other)).unwrap();
        some(&raw);
        cluster.restart_node(NodeId(other)).unwrap();
        some(&raw);
        let start = Instant::now();
        while !is_all_good(&group_of(&raw, 3, p)) {
            some(&raw);
            assert!(start.elapsed() < WAIT, "{:?}", group_of(&raw, 3, p));
        }
    }
    assert_equal(&cluster, &[0, 1, 2], (dataset, p));
}

#[test]
fn a_node_whose_place_was_taken_by_late_words_of_an_earlier_process_takes_it_back() {
    let cluster = cluster(3, 1);
    let mut raw = Raw::connect(&cluster, 0, UNIX);
    let dataset = raw.create_mirrored("d", 2);
    let (p, others) = mirrored(&raw, 2);
    raw.one(dataset, Operation::put(p, b"k", b"v"));
    let node = NodeId(others[0]);
    let living = raw.map.node(node).unwrap().clone();
    let late = NodeInfo { incarnation: living.incarnation + 1, ..living.clone() };
    let address = cluster.addresses(NodeId(0))[UNIX].parse().unwrap();
    let who = ConnectIdentity::node(&FaultSwitch::new(node, None));
    let key = ClusterKey::new(*cluster.key());
    let link = NodeLink::connect_as(&address, &key, &who, common::deadline()).unwrap();
    let reply = common::ask(&link, &ControlRequest::Join { info: late, before: 0 }).unwrap();
    assert!(!matches!(reply, ControlReply::Failed { .. }), "{reply:?}");
    let start = Instant::now();
    loop {
        let ControlReply::Map(Some(map)) = raw.control(&ControlRequest::Map { known: Epoch(0) })
        else {
            panic!("no map")
        };
        if map.nodes.contains(&living) {
            break;
        }
        assert!(start.elapsed() < WAIT, "{:?}", map.nodes);
        std::thread::sleep(Duration::from_millis(10));
    }
    wait_for(&raw, p, is_all_good);
    wait_equal(&cluster, &[0, node.get()], (dataset, p));
}
