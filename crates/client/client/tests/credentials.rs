//! Clients whose credential changes while they run: another cluster key, a ticket that ends.

#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use samite_client::runtime::{ClusterDir, RuntimeDir, TicketFile};
use samite_client::{
    Client, ClientOperation, ClientOptions, ClusterConfig, ClusterKeys, Dataset, KeyRotation,
    TicketOrder, TransportKind,
};
use samite_testkit::LocalCluster;
use samite_testkit::datasets::{cluster, spec};
use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_wire::op::{Action, Operation};

fn dir_of(cluster: &LocalCluster) -> ClusterDir {
    cluster.runtime().cluster(cluster.name()).unwrap()
}

/// All nodes by tcp: whether a client takes the same path as one of another host.
fn network_nodes(cluster: &LocalCluster, count: u32) -> Vec<(NodeId, Vec<String>)> {
    let tcp = |url: &&String| url.starts_with("tcp://");
    let one = |node| (node, cluster.addresses(node).iter().filter(tcp).cloned().collect());
    (0..count).map(NodeId).map(one).collect()
}

fn put(dataset: &Dataset, key: &[u8]) -> Result<()> {
    let at = dataset.partition_of(key);
    let put = Operation::put(at, key, b"value");
    let outcome = dataset.execute_one(ClientOperation::new(put))?;
    assert!(outcome.is_done(), "{outcome:?}");
    Ok(())
}

/// Ends the writer also when an assertion fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Changes the key; the run is cut off at the write of the owner's file with this number.
fn rotate(cluster: &LocalCluster, nodes: u32, cut_at: usize) -> Result<u32> {
    rotate_and(cluster, nodes, cut_at, false)
}

fn rotate_and(
    cluster: &LocalCluster,
    nodes: u32,
    cut_at: usize,
    keeps_before: bool,
) -> Result<u32> {
    let dir = dir_of(cluster);
    let mut writes = 0;
    let mut keep = |keys: &ClusterKeys| {
        writes += 1;
        if writes > cut_at {
            return Err(Error::new(ErrorKind::Interrupted, "cut off"));
        }
        dir.write_keys(keys)
    };
    KeyRotation {
        own: dir.read_keys().unwrap(),
        keep: &mut keep,
        nodes: network_nodes(cluster, nodes),
        keeps_before,
        timeout: Duration::from_secs(20),
    }
    .run()
}

#[test]
fn programs_go_on_while_the_key_changes_and_is_cut_off() {
    let mut cluster = cluster(3, 64);
    let dir = dir_of(&cluster);
    let config = ClusterConfig { home: Some(dir.clone()), ..cluster.config() };
    let options = ClientOptions { transport: Some(TransportKind::Tcp), ..Default::default() };
    let client = Client::connect(&config, options).unwrap();
    let dataset = client.create_dataset(&spec("d")).unwrap();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0_u32.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                put(&dataset, &number.to_le_bytes()).unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _ends = StopAtEnd(&stop);
        // Before the first node has heard of it, and when all nodes go by the next key.
        for cut_at in [0, 1] {
            let error = rotate(&cluster, 3, cut_at).unwrap_err();
            assert_eq!(error.message(), "cut off");
            // Whoever comes now is let in by what the owner's file says, and by nothing else.
            let config =
                ClusterConfig { credential: dir.read_credential().unwrap(), ..cluster.config() };
            Client::connect(&config, options).unwrap();
        }
        assert_eq!(rotate(&cluster, 3, usize::MAX).unwrap(), 2);
        let before = done.load(Ordering::Relaxed);
        let begun = Instant::now();
        while done.load(Ordering::Relaxed) < before + 100 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the program stands still");
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
    assert_eq!(dir.read_keys().unwrap().numbers().current, 2);
    let error = Client::connect(&cluster.config(), options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKey, "the old key, with no file to read: {error}");
    // A node that starts again knows the others, and the program reaches it by the key that it
    // reads now.
    cluster.restart_node(NodeId(2)).unwrap();
    client.refresh_map().unwrap();
    client.node_status(NodeId(2)).unwrap();
}

#[test]
fn a_key_that_is_kept_is_dropped_before_the_next_change() {
    let cluster = cluster(1, 64);
    let change = |keeps_before| rotate_and(&cluster, 1, usize::MAX, keeps_before);
    assert_eq!(change(true).unwrap(), 2);
    let error = change(true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.message().contains("nothing is changed: cluster key 2 is in use"), "{error}");
    assert_eq!(change(false).unwrap(), 2, "it drops the one before");
    assert_eq!(change(true).unwrap(), 3);
}

#[test]
fn a_program_renews_its_ticket_while_it_runs_and_writes_it_home() {
    const LIFE: Duration = Duration::from_secs(4);
    let cluster = cluster(1, 64);
    let scratch = tempfile::tempdir_in("/tmp").unwrap();
    let runtime = RuntimeDir::at(scratch.path().join("run")).unwrap();
    let order = TicketOrder {
        uid: 47_113,
        gids: vec![47_113],
        life: LIFE,
        renewable: Duration::from_secs(1000),
        public_key: None,
    };
    let url = network_nodes(&cluster, 1)[0].1[0].clone();
    let file = order.issue(&dir_of(&cluster), vec![(NodeId(0), url)]).unwrap();
    let dir = runtime.use_ticket(&file).unwrap();
    let client = Client::from_cluster_dir(&dir, ClientOptions::default()).unwrap();
    let dataset = client.create_dataset(&spec("own")).unwrap();
    let first = file.claims().unwrap();
    let end = UNIX_EPOCH + Duration::from_secs(first.expires_s) + LIFE;
    while SystemTime::now() < end {
        put(&dataset, b"k").unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    let renewed = TicketFile::read(&dir.ticket_path()).unwrap().claims().unwrap();
    assert!(renewed.expires_s > first.expires_s, "{renewed:?}");
    assert_eq!((renewed.uid, renewed.public_key), (first.uid, first.public_key));
    // The one of before has ended.
    let stale = ClusterConfig {
        cluster: "stale".into(),
        addresses: vec![file.nodes[0].1.clone()],
        credential: file.credential().unwrap(),
        home: None,
    };
    let error = Client::connect(&stale, ClientOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
    let delete = Action::Delete { key: b"k" };
    let delete = Operation::new(dataset.partition_of(b"k"), [delete]);
    assert!(dataset.execute_one(ClientOperation::new(delete)).unwrap().is_done());
}
