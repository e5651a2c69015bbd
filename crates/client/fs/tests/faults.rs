//! A network that loses, doubles and turns over frames costs time, and nothing else.
#![expect(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::time::Duration;

use common::{get, names, noise, put, root};
use samite_client::{Client, ClusterConfig, TransportKind, faults};
use samite_fs::{FileSystem, RenameFlags};
use samite_kv::KvView;
use samite_testkit::{LocalCluster, LocalOptions};
use samite_types::{NodeId, Redundancy};
use samite_wire::control::{DatasetSpec, FaultRequest};

const NODES: u32 = 2;
const TABLE: &str = "drop 5% * *\nduplicate 5% * *\nreorder 10% * *\n";
const ROUNDS: usize = 6;

/// Tells every node; how many faults were injected since the last time.
fn tell(cluster: &LocalCluster, request: &FaultRequest) -> u64 {
    let ask = |node| {
        let addresses = cluster.addresses(NodeId(node)).to_vec();
        let config = ClusterConfig { addresses, ..cluster.config() };
        faults::ask(&config, request.clone(), Duration::from_secs(20)).unwrap()
    };
    (0..NODES).map(|node| ask(node).frames).sum()
}

fn connect(cluster: &LocalCluster, transport: TransportKind) -> Client {
    let options = samite_client::ClientOptions {
        transport: Some(transport),
        timeout: Duration::from_secs(60),
        ..samite_client::ClientOptions::default()
    };
    cluster.client(options).unwrap()
}

/// Tokens appended to a few keys: each is there once, in order.
fn keys(client: &Client, who: usize) {
    let kv = KvView::new(client.dataset("kv").unwrap());
    for round in 0..ROUNDS {
        let key = format!("{who}-{}", round % 3);
        kv.append(key.as_bytes(), &[round as u8]).unwrap();
        let value = kv.get(key.as_bytes()).unwrap().unwrap().bytes;
        let expected: Vec<u8> =
            (0..=round as u8).filter(|at| *at as usize % 3 == round % 3).collect();
        assert_eq!(value, expected);
    }
}

/// Files made, moved, read and removed: no step fails because it was done before, and none is left out.
fn files(client: &Client, who: usize) {
    let fs = FileSystem::open(client, "files").unwrap();
    let dir = format!("/{who}");
    let path = |name: &str| format!("{dir}/{name}").into_bytes();
    let keep = RenameFlags { no_replace: true, exchange: false, whiteout: false };
    fs.mkdir(&root(), dir.as_bytes(), 0o755).unwrap();
    for round in 0..ROUNDS / 2 {
        let data = noise([10, 5000, 200_000][round % 3], (who * 100 + round) as u64);
        let name = format!("f{round}");
        put(&fs, &path("new"), &data);
        fs.rename(&root(), &*path("new"), &*path(&name), keep).unwrap();
        assert!(get(&fs, &path(&name)).unwrap() == data);
        if round > 0 {
            fs.unlink(&root(), &*path(&format!("f{}", round - 1))).unwrap();
        }
        assert_eq!(names(&fs, dir.as_bytes()), [name.as_bytes()]);
    }
}

fn survive(transport: TransportKind, copies: u8) {
    let cluster =
        LocalCluster::start(NODES as usize, LocalOptions { shards: 2, ..LocalOptions::default() })
            .unwrap();
    let client = connect(&cluster, transport);
    for name in ["kv", "files"] {
        let spec = DatasetSpec { redundancy: Redundancy(copies), ..DatasetSpec::new(name) };
        client.create_dataset(&spec).unwrap();
    }
    FileSystem::open(&client, "files").unwrap();
    tell(&cluster, &FaultRequest::Set(format!("seed {}\n{TABLE}", transport as u8)));
    std::thread::scope(|scope| {
        for who in 0..4 {
            let client = &client;
            scope.spawn(move || if who % 2 == 0 { keys(client, who) } else { files(client, who) });
        }
    });
    let harmed = tell(&cluster, &FaultRequest::List);
    assert!(harmed > 20, "{harmed} frames");
    tell(&cluster, &FaultRequest::Clear);
    keys(&connect(&cluster, transport), 9);
}

#[test]
fn frames_are_lost_doubled_and_turned_over_on_shm() {
    survive(TransportKind::Shm, 2);
}

#[test]
fn frames_are_lost_doubled_and_turned_over_on_unix_sockets() {
    survive(TransportKind::Unix, 2);
}

#[test]
fn frames_are_lost_doubled_and_turned_over_on_tcp() {
    survive(TransportKind::Tcp, 2);
}

#[test]
fn data_in_one_place_is_asked_for_again_too() {
    survive(TransportKind::Tcp, 1);
}
