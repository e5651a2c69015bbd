//! A client and the nodes of a cluster together: their messages, and the effect of a lost node.

use std::time::{Duration, Instant};

use samite_client::{ClientOperation, ClientOptions, TransportKind};
use samite_testkit::LocalCluster;
use samite_types::{ErrorKind, NodeId, Redundancy};
use samite_wire::control::DatasetSpec;
use samite_wire::events::EventKind;
use samite_wire::op::Operation;

const TRANSPORTS: [TransportKind; 3] =
    [TransportKind::Shm, TransportKind::Unix, TransportKind::Tcp];

fn spec(name: &str) -> DatasetSpec {
    DatasetSpec::new(name)
}

fn options(transport: TransportKind, timeout: Duration) -> ClientOptions {
    ClientOptions { timeout, transport: Some(transport), ..ClientOptions::default() }
}

#[test]
fn a_batch_of_a_thousand_puts_is_one_request_for_each_node() {
    let cluster = LocalCluster::start(3, samite_testkit::LocalOptions::default()).unwrap();
    for transport in TRANSPORTS {
        let client = cluster.client(options(transport, Duration::from_secs(10))).unwrap();
        let dataset = client.create_dataset(&spec(&format!("d{transport}"))).unwrap();
        let keys: Vec<String> = (0..1000).map(|i| format!("key {i}")).collect();
        let mut puts: Vec<ClientOperation<'_>> = keys
            .iter()
            .map(|key| {
                let partition = dataset.partition_of(key.as_bytes());
                ClientOperation::new(Operation::put(partition, key.as_bytes(), b"value"))
            })
            .collect();
        let status = |node| client.node_status(NodeId(node)).unwrap();
        let before: Vec<_> = (0..3).map(status).collect();
        let sent = client.stats().requests;
        let outcomes = dataset.execute(&mut puts, client.deadline()).unwrap();
        assert_eq!(outcomes.len(), 1000);
        assert_eq!(client.stats().requests - sent, 3);
        let mut operations = 0;
        for (node, before) in (0..3).zip(before) {
            let after = status(node);
            assert_eq!(after.requests - before.requests, 1, "{transport}: n{node}");
            operations += after.operations - before.operations;
        }
        assert_eq!(operations, 1000);
    }
}

/// Waits until something is there, for a minute at most.
fn wait<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_clock_that_is_wrong_is_told_by_its_node_and_no_other() {
    let clocks_ahead_us = vec![0, -3_000_000, 0];
    let options = samite_testkit::LocalOptions { clocks_ahead_us, ..Default::default() };
    let cluster = LocalCluster::start(3, options).unwrap();
    let client = cluster.client(options_of(TransportKind::Unix)).unwrap();
    let clock = |node| client.clock_difference(NodeId(node)).unwrap();
    let found = wait("n1 compares clocks", || clock(1));
    assert_eq!(found.from, NodeId(0));
    assert!(found.ahead_us.abs_diff(-3_000_000) <= found.error_us, "{found:?}");
    let told = |node| {
        let events = client.node_events(NodeId(node), 0).unwrap().events;
        events.into_iter().find(|event| event.kind == EventKind::ClockSkew)
    };
    let event = wait("n1 tells of it", || told(1));
    assert_eq!(event.node, Some(NodeId(1)));
    assert!(event.words.contains("behind that of n0"), "{}", event.words);
    let right = wait("n2 compares clocks", || clock(2));
    assert!(right.ahead_us.unsigned_abs() <= right.error_us, "{right:?}");
    assert!(told(2).is_none() && told(0).is_none());
}

#[test]
fn the_map_says_what_a_node_holds_since_it_was_resized() {
    let cluster = LocalCluster::start(2, samite_testkit::LocalOptions::default()).unwrap();
    let client = cluster.client(options_of(TransportKind::Unix)).unwrap();
    // The leader itself, and one that follows it.
    for (node, bytes) in [(0, 96 << 20), (1, 32 << 20), (1, 128 << 20)] {
        let node = NodeId(node);
        client.resize_node(node, bytes).unwrap();
        assert_eq!(client.node_status(node).unwrap().capacity_bytes, bytes);
        wait("the map follows", || {
            let map = client.refresh_map().unwrap();
            (map.node(node).unwrap().targets[0].capacity_bytes == bytes).then_some(())
        });
    }
    let error = client.resize_node(NodeId(1), 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

fn options_of(transport: TransportKind) -> ClientOptions {
    options(transport, Duration::from_secs(10))
}

#[test]
fn a_lost_node_is_named_within_the_deadline() {
    let mut cluster = LocalCluster::start(2, samite_testkit::LocalOptions::default()).unwrap();
    let timeout = Duration::from_millis(800);
    let clients: Vec<_> = TRANSPORTS
        .iter()
        .map(|transport| cluster.client(options(*transport, timeout)).unwrap())
        .collect();
    let datasets: Vec<_> =
        clients.iter().map(|client| client.create_dataset(&spec("d")).unwrap()).collect();
    let map = clients[0].map().unwrap();
    let keys: Vec<String> = (0..64).map(|i| format!("key {i}")).collect();
    let on = |node: u32| {
        let map = &map;
        keys.iter().filter(move |key| {
            map.node_of(Redundancy(1), map.partition_of(key.as_bytes())) == Some(NodeId(node))
        })
    };
    for dataset in &datasets {
        for key in on(1).take(1) {
            let put = Operation::put(dataset.partition_of(key.as_bytes()), key.as_bytes(), b"v");
            dataset.execute_one(ClientOperation::new(put)).unwrap();
        }
    }
    cluster.stop_node(NodeId(1)).unwrap();
    for dataset in &datasets {
        for key in on(1).take(2) {
            let start = Instant::now();
            let put = Operation::put(dataset.partition_of(key.as_bytes()), key.as_bytes(), b"v");
            let error =
                dataset.execute_one(ClientOperation::new(put)).expect_err("the node is gone");
            assert!(start.elapsed() < timeout * 10, "{:?}", start.elapsed());
            assert!(
                matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout),
                "{error:?}"
            );
            assert!(error.message().contains("n1"), "{error}");
        }
        for key in on(0).take(2) {
            let put = Operation::put(dataset.partition_of(key.as_bytes()), key.as_bytes(), b"v");
            dataset.execute_one(ClientOperation::new(put)).unwrap();
        }
    }
}

#[test]
fn a_node_that_comes_back_elsewhere_is_in_the_next_map() {
    let mut cluster = LocalCluster::start(2, samite_testkit::LocalOptions::default()).unwrap();
    let client = cluster.client(options(TransportKind::Tcp, Duration::from_secs(5))).unwrap();
    let dataset = client.create_dataset(&spec("d")).unwrap();
    let epoch = client.map().unwrap().epoch();
    // It comes back with another port, so the map has to change.
    cluster.restart_node(NodeId(1)).unwrap();
    assert!(client.refresh_map().unwrap().epoch() > epoch);
    for i in 0..64u32 {
        let key = i.to_le_bytes();
        let put = Operation::put(dataset.partition_of(&key), &key, b"v");
        dataset.execute_one(ClientOperation::new(put)).unwrap();
    }
}
