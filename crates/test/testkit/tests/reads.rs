//! Clients read at a member on their own host, of datasets that let all members answer.
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use samite_client::{ClientOperation, Dataset, OwnedOutcome, OwnedResult};
use samite_testkit::{LocalCluster, LocalOptions};
use samite_types::{PartitionId, Redundancy, TargetId};
use samite_wire::control::{DatasetSpec, ReadsKind};
use samite_wire::op::Operation;

/// How long a member may take to be ready to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Three nodes, of which only the first is on this host, and a dataset with two copies.
fn start(reads: ReadsKind) -> (LocalCluster, Dataset) {
    let options = LocalOptions { apart: true, ..LocalOptions::default() };
    let cluster = LocalCluster::start(3, options).unwrap();
    let client = cluster.client(samite_client::ClientOptions::default()).unwrap();
    let spec = DatasetSpec { redundancy: Redundancy(2), reads, ..DatasetSpec::new("d") };
    let dataset = client.create_dataset(&spec).unwrap();
    (cluster, dataset)
}

/// A partition whose second member is node 0.
fn followed_here(dataset: &Dataset) -> PartitionId {
    let map = dataset.client().refresh_map().unwrap();
    let groups = &map.table(Redundancy(2)).unwrap().groups;
    let at = groups.iter().position(|group| group.members[1].target == TargetId(0));
    PartitionId(at.unwrap() as u32)
}

fn get(dataset: &Dataset, p: PartitionId) -> u64 {
    match dataset.execute_one(ClientOperation::new(Operation::get(p, b"k"))).unwrap() {
        OwnedOutcome::Done(results) => match results.first() {
            Some(OwnedResult::Value { data, .. }) => {
                u64::from_le_bytes(data.as_slice().try_into().unwrap())
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn put(dataset: &Dataset, p: PartitionId, number: u64) {
    let number = number.to_le_bytes();
    dataset.execute_one(ClientOperation::new(Operation::put(p, b"k", &number))).unwrap();
}

#[test]
fn reads_stay_on_the_host_once_a_member_there_may_answer() {
    for (reads, stays) in [(ReadsKind::Any, true), (ReadsKind::Primary, false)] {
        let (_cluster, dataset) = start(reads);
        let p = followed_here(&dataset);
        let primary = dataset.node_of(p).unwrap();
        let requests = || dataset.client().node_status(primary).unwrap().requests;
        put(&dataset, p, 7);
        let elsewhere = || {
            let before = requests();
            for _ in 0..100 {
                assert_eq!(get(&dataset, p), 7);
            }
            requests() - before
        };
        // The first are refused, until the member has a connection to the primary, and go there then.
        let since = Instant::now();
        let mut left = elsewhere();
        while stays && left >= 50 && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
            left = elsewhere();
        }
        assert_eq!(left < 50, stays, "{left} of 100 reads left the host");
    }
}

#[test]
fn reads_are_never_old_while_the_primary_changes() {
    let (mut cluster, dataset) = start(ReadsKind::Any);
    let p = followed_here(&dataset);
    let primary = dataset.node_of(p).unwrap();
    put(&dataset, p, 0);
    let (acknowledged, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let client = cluster.client(samite_client::ClientOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let dataset = client.dataset("d").unwrap();
            let mut reads = 0u64;
            while !is_over.load(Ordering::Relaxed) {
                let before = acknowledged.load(Ordering::SeqCst);
                let found = get(&dataset, p);
                assert!(found >= before, "{found} was read after {before} was acknowledged");
                reads += 1;
            }
            reads
        });
        let start = Instant::now();
        let (mut number, mut is_dead) = (0, false);
        while start.elapsed() < Duration::from_secs(4) {
            number += 1;
            put(&dataset, p, number);
            acknowledged.store(number, Ordering::SeqCst);
            if !is_dead && start.elapsed() > Duration::from_secs(1) {
                is_dead = true;
                cluster.stop_node(primary).unwrap();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 50 && number > 50);
    });
}
