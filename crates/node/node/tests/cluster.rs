//! Nodes together: one map, everywhere at once; shards together: one reply.

mod common;

use std::time::{Duration, Instant};

use common::{Ended, Got, Raw, SHM, TCP, UNIX, ask, cluster, pattern, spec};
use samite_types::{Epoch, ErrorKind, NodeId};
use samite_wire::control::{ControlReply, ControlRequest, MEMORY_BACKEND};
use samite_wire::op::{Action, Operation};

#[test]
fn a_dataset_made_anywhere_is_everywhere_when_it_is_answered() {
    let cluster = cluster(3, 2);
    let mut nodes: Vec<Raw> = (0..3).map(|node| Raw::connect(&cluster, node, UNIX)).collect();
    for round in 0..12 {
        let at = round % 3;
        let name = format!("d{round}");
        let dataset = nodes[at].create(&name, MEMORY_BACKEND);
        let epoch = nodes[at].map.epoch();
        for node in &nodes {
            let mut header = node.header(dataset);
            header.map_epoch = epoch;
            for p in [node.partition(0, 2), node.partition(1, 2)] {
                let answer = node.try_send(&header, &[Operation::get(p, b"k")]).unwrap();
                assert_eq!(answer.only().failure(), ErrorKind::NotFound);
            }
            let known = ControlRequest::Map { known: epoch };
            assert_eq!(node.control(&known), ControlReply::Map(None));
        }
    }
    let mut other = spec("d0", MEMORY_BACKEND);
    other.chunk_len /= 2;
    for node in &nodes {
        let reply = node.control(&ControlRequest::CreateDataset(other.clone()));
        let exists = ErrorKind::Exists.code();
        assert!(matches!(reply, ControlReply::Failed { kind, .. } if kind == exists), "{reply:?}");
    }
}

#[test]
fn one_request_reaches_every_shard_and_has_one_reply() {
    let cluster = cluster(1, 4);
    for transport in [SHM, TCP] {
        let mut raw = Raw::connect(&cluster, 0, transport);
        let dataset = raw.create(if transport == SHM { "s" } else { "t" }, MEMORY_BACKEND);
        let value = pattern(20_000, 1);
        let partitions = raw.partitions();
        let puts = partitions.iter().map(|p| Operation::put(*p, b"k", &value)).collect();
        let before = raw.status();
        let answer = raw.send(dataset, puts);
        let after = raw.status();
        assert_eq!(after.requests - before.requests, 1);
        assert_eq!(answer.outcomes.len(), partitions.len());
        for outcome in answer.outcomes {
            let written = Got::Written { offset: 0, total_len: 20_000, created: true };
            assert_eq!(outcome.only(), written);
        }
        assert_eq!(after.records - before.records, partitions.len() as u64);

        // Order within a partition holds across shards, and each outcome is at its operation's place.
        let adds = (0..256)
            .map(|i| {
                let add = Action::Add { key: b"n", offset: 0, delta: 1 };
                Operation::new(partitions[i % partitions.len()], [add])
            })
            .collect();
        let answer = raw.send(dataset, adds);
        for (i, outcome) in answer.outcomes.into_iter().enumerate() {
            assert_eq!(outcome.only(), Got::Number((i / partitions.len()) as u64));
        }
        let gets = partitions.iter().map(|p| Operation::get(*p, b"k")).collect();
        for outcome in raw.send(dataset, gets).outcomes {
            assert!(outcome.value() == value);
        }
    }
}

#[test]
fn many_connections_and_shards_count_right() {
    let cluster = cluster(1, 3);
    let mut raw = Raw::connect(&cluster, 0, UNIX);
    let dataset = raw.create("d", MEMORY_BACKEND);
    let partitions = raw.partitions();
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (cluster, partitions) = (&cluster, &partitions);
            scope.spawn(move || {
                let mut raw = Raw::connect(cluster, 0, client % 3);
                raw.create("d", MEMORY_BACKEND);
                for _ in 0..50 {
                    let adds = partitions.iter().map(|p| {
                        let add = Action::Add { key: b"n", offset: 0, delta: 1 };
                        Operation::new(*p, [add])
                    });
                    let answer = raw.send(dataset, adds.collect());
                    assert_eq!(answer.refused, None);
                }
            });
        }
    });
    for p in partitions {
        assert_eq!(raw.one(dataset, Operation::get(p, b"n")).value(), 200u64.to_le_bytes());
    }
}

#[test]
fn name_space_generations_are_raised_and_enforced() {
    let cluster = cluster(1, 1);
    let mut raw = Raw::connect(&cluster, 0, TCP);
    let dataset = raw.create("d", MEMORY_BACKEND);
    let p = raw.partition(0, 1);
    let raise = Operation::new(p, [Action::RaiseLease { epoch: Epoch(5) }]);
    let answer = raw.send(dataset, vec![raise]);
    assert_eq!(answer.name_space_generation, Epoch(5));
    let mut header = raw.header(dataset);
    header.name_space_generation = Epoch(4);
    let get = [Operation::get(p, b"k")];
    let answer = raw.try_send(&header, &get).unwrap();
    assert_eq!(answer.name_space_generation, Epoch(5));
    assert_eq!(answer.only().failure(), ErrorKind::StaleLease);
    header.name_space_generation = Epoch(5);
    assert_eq!(raw.try_send(&header, &get).unwrap().only().failure(), ErrorKind::NotFound);
}

#[test]
fn a_lost_node_is_an_error_and_the_others_go_on() {
    let mut cluster = cluster(2, 1);
    let mut raw = Raw::connect(&cluster, 0, TCP);
    let mut soonest = Duration::MAX;
    for transport in [SHM, UNIX, TCP] {
        let lost = Raw::connect(&cluster, 1, transport);
        cluster.stop_node(NodeId(1)).unwrap();
        let start = Instant::now();
        let error = ask(&lost.link, &ControlRequest::Status).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(start.elapsed() < Duration::from_secs(10));
        assert!(lost.link.is_dead());
        // Datasets can still be made, without waiting for the lost one.
        let start = Instant::now();
        let dataset = raw.create(&format!("d{transport}"), MEMORY_BACKEND);
        soonest = soonest.min(start.elapsed());
        let put = raw.one(dataset, Operation::put(raw.partition(0, 1), b"k", b"v"));
        assert!(matches!(put, Ended::Done(_)));
        cluster.restart_node(NodeId(1)).unwrap();
        let back = Raw::connect(&cluster, 1, transport);
        assert!(back.map.epoch() > raw.map.epoch() || back.map.data() == raw.map.data());
        assert!(back.map.dataset(&format!("d{transport}")).is_some());
    }
    // A silent node would be waited for, for two seconds each time.
    assert!(soonest < Duration::from_millis(1500), "{soonest:?}");
}

#[test]
fn a_new_coordinator_begins_anew_everywhere() {
    let mut cluster = cluster(2, 1);
    let mut other = Raw::connect(&cluster, 1, UNIX);
    let old = other.create("old", MEMORY_BACKEND);
    let p = other.partition(0, 1);
    other.one(old, Operation::put(p, b"k", b"v"));
    // Epochs and ids of the new one begin at its second.
    std::thread::sleep(Duration::from_millis(1100));
    cluster.restart_node(NodeId(0)).unwrap();
    let fresh = Raw::connect(&cluster, 0, TCP).create("new", MEMORY_BACKEND);
    assert_ne!(fresh, old);
    let gone = other.try_send(&other.header(old), &[Operation::get(p, b"k")]).unwrap();
    assert_eq!(gone.refused, Some(ErrorKind::NotFound));
    assert!(gone.map_epoch > other.map.epoch());
    assert_eq!(other.one(fresh, Operation::get(p, b"k")).failure(), ErrorKind::NotFound);
}

#[test]
fn a_node_stops_when_a_client_says_so() {
    let mut cluster = cluster(2, 2);
    let raw = Raw::connect(&cluster, 1, UNIX);
    assert_eq!(raw.control(&ControlRequest::Shutdown), ControlReply::Ok);
    let start = Instant::now();
    while ask(&raw.link, &ControlRequest::Status).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    cluster.stop().unwrap();
    let left: Vec<_> = std::fs::read_dir(cluster.runtime_path().join(cluster.name()))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name.to_string_lossy().ends_with(".sock"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
