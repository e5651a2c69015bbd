//! Damage: a record that memory has changed by itself is never told, and is put right from another
//! member; records that differ between members are made equal.
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

mod common;

use std::time::{Duration, Instant};

use common::{Ended, Raw, SHM, TCP, UNIX, cluster, pattern};
use samite_testkit::{LocalCluster, LocalOptions};
use samite_types::{DatasetId, ErrorKind, PartitionId, Redundancy, TargetId};
use samite_wire::control::{
    ControlReply, ControlRequest, FaultRequest, MEMORY_BACKEND, PartitionCopy,
};
use samite_wire::op::{Action, Operation};
use samite_wire::status::ScrubStatus;

const WAIT: Duration = Duration::from_secs(20);
const LENS: [usize; 7] = [1, 100, 900, 5_000, 40_000, 70_000, 1 << 20];

/// A partition whose primary is the node of `raw`.
fn own_partition(raw: &Raw, copies: u8) -> PartitionId {
    let table = raw.map.table(Redundancy(copies)).unwrap();
    let own = TargetId(raw.node.get());
    let at = table.groups.iter().position(|group| group.members[0].target == own).unwrap();
    PartitionId(at as u32)
}

fn key(round: usize) -> Vec<u8> {
    format!("key {round}").into_bytes()
}

fn fill(raw: &Raw, at: (DatasetId, PartitionId)) {
    for (round, len) in LENS.into_iter().enumerate() {
        let value = pattern(len, round as u8);
        let put = raw.one(at.0, Operation::put(at.1, &key(round), &value));
        assert!(matches!(put, Ended::Done(_)));
    }
}

/// Lets a bit of every record of a node be wrong.
fn rot(cluster: &LocalCluster, node: u32) {
    let raw = Raw::connect(cluster, node, UNIX);
    let table = format!("memory rot 100% {node}");
    let reply = raw.control(&ControlRequest::Faults(FaultRequest::Set(table)));
    assert!(matches!(reply, ControlReply::Faults(_)), "{reply:?}");
    // It happens on the threads of the shards.
    let start = Instant::now();
    loop {
        match raw.control(&ControlRequest::Faults(FaultRequest::List)) {
            ControlReply::Faults(status) if status.writes >= 7 => break,
            _ => assert!(start.elapsed() < WAIT, "nothing has rotted"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(20));
}

/// Has all nodes look at everything. Returns the findings of each since its start.
fn scrub(cluster: &LocalCluster, nodes: u32) -> Vec<ScrubStatus> {
    let nodes = (0..nodes).map(|node| Raw::connect(cluster, node, UNIX)).collect::<Vec<_>>();
    let numbers: Vec<u64> = nodes
        .iter()
        .map(|raw| match raw.control(&ControlRequest::Scrub { dataset: None }) {
            ControlReply::Scrubbing { number } => number,
            other => panic!("{other:?}"),
        })
        .collect();
    let start = Instant::now();
    loop {
        let all: Vec<ScrubStatus> = nodes.iter().map(|raw| raw.status().scrub).collect();
        if all.iter().zip(&numbers).all(|(status, number)| status.done >= *number) {
            return all;
        }
        assert!(start.elapsed() < WAIT, "{all:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn copies(cluster: &LocalCluster, nodes: u32, at: (DatasetId, PartitionId)) -> Vec<PartitionCopy> {
    let of = |node| {
        let raw = Raw::connect(cluster, node, UNIX);
        match raw.control(&ControlRequest::Copy { dataset: at.0, partition: at.1 }) {
            ControlReply::Copy(Some(copy)) => copy,
            other => panic!("{other:?}"),
        }
    };
    (0..nodes).map(of).collect()
}

/// Reads, again while the node says that it cannot now.
fn read(raw: &Raw, at: (DatasetId, PartitionId), round: usize) -> Result<Vec<u8>, ErrorKind> {
    let start = Instant::now();
    loop {
        match raw.one(at.0, Operation::get(at.1, &key(round))) {
            Ended::Failed { kind: ErrorKind::Unavailable, .. } if start.elapsed() < WAIT => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ended::Failed { kind, .. } => return Err(kind),
            done => return Ok(done.value()),
        }
    }
}

#[test]
fn a_primary_with_damage_answers_with_what_another_member_has() {
    for (nodes, transport) in [(2, UNIX), (2, SHM), (3, TCP)] {
        let cluster = cluster(nodes as usize, 1);
        let mut raw = Raw::connect(&cluster, 0, transport);
        let dataset = raw.create_mirrored("d", nodes);
        let at = (dataset, own_partition(&raw, nodes));
        fill(&raw, at);
        scrub(&cluster, u32::from(nodes));
        rot(&cluster, 0);
        for (round, len) in LENS.into_iter().enumerate() {
            assert!(read(&raw, at, round).unwrap() == pattern(len, round as u8), "{len}");
        }
        let found = raw.status().scrub;
        assert_eq!((found.damaged, found.repaired), (7, 7), "{found:?}");
        let copies = copies(&cluster, u32::from(nodes), at);
        assert!(copies.windows(2).all(|pair| pair[0] == pair[1]), "{copies:?}");
    }
}

#[test]
fn scrubbing_finds_and_mends_damage_at_every_member() {
    let cluster = cluster(3, 2);
    let mut raw = Raw::connect(&cluster, 0, UNIX);
    let dataset = raw.create_mirrored("d", 3);
    let at = (dataset, own_partition(&raw, 3));
    fill(&raw, at);
    let clean = scrub(&cluster, 3);
    assert!(clean.iter().all(|found| found.damaged == 0 && found.evened == 0), "{clean:?}");
    for node in [0, 1, 2] {
        rot(&cluster, node);
        let start = Instant::now();
        loop {
            let found = scrub(&cluster, 3)[node as usize];
            if (found.damaged, found.repaired) == (7, 7) {
                break;
            }
            assert!(start.elapsed() < WAIT, "{node}: {found:?}");
        }
        let copies = copies(&cluster, 3, at);
        assert!(copies.windows(2).all(|pair| pair[0] == pair[1]), "{copies:?}");
    }
    for (round, len) in LENS.into_iter().enumerate() {
        assert!(read(&raw, at, round).unwrap() == pattern(len, round as u8), "{len}");
    }
}

#[test]
fn what_nobody_has_whole_is_an_error_and_never_wrong_bytes() {
    let cluster = cluster(2, 1);
    let mut raw = Raw::connect(&cluster, 0, UNIX);
    let alone = raw.create("alone", MEMORY_BACKEND);
    let mirrored = raw.create_mirrored("both", 2);
    for (dataset, copies) in [(alone, 1), (mirrored, 2)] {
        let at = (dataset, own_partition(&raw, copies));
        fill(&raw, at);
    }
    scrub(&cluster, 2);
    rot(&cluster, 0);
    rot(&cluster, 1);
    for (dataset, copies) in [(alone, 1), (mirrored, 2)] {
        let at = (dataset, own_partition(&raw, copies));
        for round in 0..LENS.len() {
            assert_eq!(read(&raw, at, round), Err(ErrorKind::Corrupt));
        }
        // It can be removed, and written anew.
        let removed = raw.one(dataset, Operation::new(at.1, [Action::Delete { key: &key(6) }]));
        assert!(matches!(removed, Ended::Done(_)), "{removed:?}");
        fill(&raw, at);
        for (round, len) in LENS.into_iter().enumerate() {
            assert!(read(&raw, at, round).unwrap() == pattern(len, round as u8), "{len}");
        }
    }
}

#[test]
fn nodes_scrub_by_themselves() {
    let scrub_interval = Some(Duration::from_millis(100));
    let cluster =
        LocalCluster::start(2, LocalOptions { scrub_interval, ..LocalOptions::default() }).unwrap();
    let mut raw = Raw::connect(&cluster, 0, UNIX);
    let dataset = raw.create_mirrored("d", 2);
    let at = (dataset, own_partition(&raw, 2));
    fill(&raw, at);
    let start = Instant::now();
    let walks = raw.status().scrub.walks;
    while raw.status().scrub.walks < walks + 2 {
        assert!(start.elapsed() < WAIT, "{:?}", raw.status());
        std::thread::sleep(Duration::from_millis(10));
    }
    rot(&cluster, 1);
    let other = Raw::connect(&cluster, 1, UNIX);
    while other.status().scrub.repaired < 7 {
        assert!(start.elapsed() < 2 * WAIT, "{:?}", other.status());
        std::thread::sleep(Duration::from_millis(10));
    }
    let copies = copies(&cluster, 2, at);
    assert_eq!(copies[0], copies[1]);
}
