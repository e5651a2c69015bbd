//! Connections that end, for bytes of them are damaged or they are reset, are lost messages: calls go on, and take effect once.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::time::{Duration, Instant};

use samite_client::locks::LockSession;
use samite_client::{
    Client, ClientOperation, ClientOptions, ClusterConfig, Dataset, TransportKind, faults,
};
use samite_testkit::LocalCluster;
use samite_testkit::datasets::{client, cluster, spec};
use samite_types::{ErrorKind, NodeId, Redundancy};
use samite_wire::control::{DatasetSpec, FaultRequest};
use samite_wire::lock::{
    LockAnswer, LockCall, LockHolder, LockMode, LockRange, LockRequest, LockSpace,
};
use samite_wire::op::{Action, Operation};

const LINES: usize = 150;

/// Has all nodes go by this table, or by none.
fn set(cluster: &LocalCluster, nodes: u32, table: Option<&str>) {
    let request = || table.map_or(FaultRequest::Clear, |text| FaultRequest::Set(text.into()));
    for node in (0..nodes).map(NodeId) {
        let addresses = cluster.addresses(node).to_vec();
        let config = ClusterConfig { addresses, ..cluster.config() };
        faults::ask(&config, request(), Duration::from_secs(20)).unwrap();
    }
}

fn mirrored(client: &Client, redundancy: u8) -> Dataset {
    let redundancy = Redundancy(redundancy);
    let spec = DatasetSpec { redundancy, ..spec(&format!("lost-{redundancy}")) };
    client.create_dataset(&spec).unwrap()
}

/// Appends lines to one record, and counts them in another.
fn append(dataset: &Dataset, from: usize) {
    for line in from..from + LINES {
        let bytes = format!("{line:06}\n");
        let at = |key: &[u8]| dataset.partition_of(key);
        let append = Action::Append {
            key: b"lines",
            data: samite_wire::op::ValueData::Inline(bytes.as_bytes()),
            len_max: 1 << 20,
        };
        let add = Action::Add { key: b"count", offset: 0, delta: 1 };
        let mut ops = [
            ClientOperation::new(Operation::new(at(b"lines"), [append])),
            ClientOperation::new(Operation::new(at(b"count"), [add])),
        ];
        let outcomes = dataset.execute(&mut ops, dataset.client().deadline()).unwrap();
        assert!(outcomes.iter().all(samite_client::OwnedOutcome::is_done));
    }
}

fn get(dataset: &Dataset, key: &[u8]) -> Vec<u8> {
    let mut raw = vec![0; 1 << 16];
    let op =
        ClientOperation::new(Operation::get(dataset.partition_of(key), key)).into_dest(&mut raw);
    let results = dataset.execute_one(op).unwrap().into_results("get").unwrap();
    let (_, _, len) = results[0].value().unwrap();
    raw.truncate(len);
    raw
}

fn check(dataset: &Dataset, lines: usize) {
    let all: String = (0..lines).map(|line| format!("{line:06}\n")).collect();
    assert_eq!(String::from_utf8(get(dataset, b"lines")).unwrap(), all);
    assert_eq!(get(dataset, b"count"), (lines as u64).to_le_bytes());
}

#[test]
fn every_line_is_there_once_whatever_ends_the_connections() {
    let cluster = cluster(3, 64);
    let dialler = client(&cluster, TransportKind::Tcp);
    for redundancy in [1, 2] {
        let dataset = mirrored(&dialler, redundancy);
        // Without mirrors a request that is lost, connection and all, is asked again after seconds only.
        let drops = if redundancy > 1 { "drop 2% * *" } else { "" };
        set(&cluster, 3, Some(&format!("corrupt 5% * *\nreset 5% * *\n{drops}")));
        append(&dataset, 0);
        // Each new client has a handshake and its first cluster map before it.
        for _ in 0..15 {
            let fresh = client(&cluster, TransportKind::Tcp);
            get(&fresh.dataset(&dataset.spec().name).unwrap(), b"count");
            fresh.node_status(NodeId(1)).unwrap();
        }
        let fresh = client(&cluster, TransportKind::Tcp);
        append(&fresh.dataset(&dataset.spec().name).unwrap(), LINES);
        set(&cluster, 3, None);
        check(&dataset, 2 * LINES);
    }
    assert!(dialler.stats().connects > 20, "{:?}", dialler.stats());
}

#[test]
fn members_go_on_whatever_ends_their_connections() {
    let cluster = cluster(2, 64);
    let client = client(&cluster, TransportKind::Unix);
    let dataset = mirrored(&client, 2);
    let between = "corrupt 10% 0 1\ncorrupt 10% 1 0\nreset 5% 0 1\nreset 5% 1 0";
    set(&cluster, 2, Some(between));
    append(&dataset, 0);
    set(&cluster, 2, None);
    check(&dataset, LINES);
    let begun = Instant::now();
    for key in [&b"lines"[..], b"count"] {
        let copy = |node| {
            client.partition_copy(NodeId(node), dataset.id(), dataset.partition_of(key)).unwrap()
        };
        while copy(0).map(|copy| copy.digest) != copy(1).map(|copy| copy.digest) {
            assert!(begun.elapsed() < Duration::from_secs(20), "the members differ");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn lock(dataset: &Dataset, call: LockCall) -> LockRequest {
    LockRequest {
        dataset: dataset.id(),
        partition: dataset.partition_of(b"lines"),
        object: 7,
        space: LockSpace::Ranges,
        token: 1,
        term: samite_types::Term(0),
        epoch: samite_types::Epoch(0),
        is_note: false,
        call,
    }
}

/// A lock is its holder's also after the connection has broken by which it was taken.
#[test]
fn locks_outlive_connections_that_break() {
    let cluster = cluster(2, 64);
    let client = client(&cluster, TransportKind::Tcp);
    for redundancy in [1, 2] {
        let dataset = mirrored(&client, redundancy);
        let (holder, other) = (LockSession::new(&client), LockSession::new(&client));
        let take = || {
            lock(
                &dataset,
                LockCall::Take {
                    range: LockRange::WHOLE,
                    mode: LockMode::Exclusive,
                    holder: LockHolder::default(),
                    wait: None,
                    detects_deadlock: false,
                },
            )
        };
        let release = || lock(&dataset, LockCall::Release { range: LockRange::WHOLE });
        assert_eq!(holder.ask(&take()).unwrap(), LockAnswer::Done);
        set(&cluster, 2, Some("corrupt 15% * *\nreset 15% * *"));
        for _ in 0..40 {
            assert_eq!(holder.ask(&take()).unwrap(), LockAnswer::Done);
            assert!(matches!(other.ask(&take()).unwrap(), LockAnswer::Held(_)));
        }
        assert_eq!(holder.ask(&release()).unwrap(), LockAnswer::Done);
        assert_eq!(other.ask(&take()).unwrap(), LockAnswer::Done);
        set(&cluster, 2, None);
    }
}

#[test]
fn a_wrong_key_is_an_answer_also_on_a_bad_network() {
    let cluster = cluster(1, 64);
    set(&cluster, 1, Some("corrupt 20% * *\nreset 10% * *"));
    let tcp = |url: &String| url.starts_with("tcp://");
    let addresses = cluster.config().addresses.into_iter().filter(tcp).collect();
    let credential = samite_transport::ClusterKey::new([0; 32]).into();
    let config = ClusterConfig { addresses, credential, ..cluster.config() };
    let begun = Instant::now();
    let error = Client::connect(&config, ClientOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    set(&cluster, 1, None);
}
