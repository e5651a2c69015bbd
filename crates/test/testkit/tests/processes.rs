//! Real processes and SIGKILL. Needs the `samite` binary (`make test` builds it first).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use samite_client::HEAD_LEN;
use samite_client::{ClientOperation, ClientOptions, Dataset, OwnedResult, TransportKind};
use samite_testkit::ProcessCluster;
use samite_types::{Epoch, ErrorKind, NodeId, PartitionId, Redundancy};
use samite_wire::control::DatasetSpec;
use samite_wire::op::{Action, Operation};

const TIMEOUT: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(60);

fn spec() -> DatasetSpec {
    DatasetSpec::new("killed")
}

/// The writes that one writer made until its first error.
struct Written {
    acknowledged: Vec<(String, bool)>,
    error: Option<samite_types::Error>,
    longest: Duration,
}

fn write_until_killed(
    cluster: &ProcessCluster,
    transport: TransportKind,
    writer: usize,
    (begun, stop): (&AtomicU64, &AtomicBool),
) -> Written {
    let options =
        ClientOptions { timeout: TIMEOUT, transport: Some(transport), ..ClientOptions::default() };
    let client = cluster.client(options).expect("connects before the kill");
    let dataset = client.create_dataset(&spec()).expect("makes the dataset");
    let map = client.map().expect("has a map");
    let value = vec![writer as u8; 40_000];
    let mut written = Written { acknowledged: Vec::new(), error: None, longest: Duration::ZERO };
    for i in 0.. {
        let key = format!("{writer} {i}");
        let partition = map.partition_of(key.as_bytes());
        let on_killed = map.node_of(Redundancy(1), partition) == Some(NodeId(1));
        // Once the node is gone, only its own calls may fail.
        let start = Instant::now();
        // A few records over and over, so that the target never fills up.
        let slot = format!("{writer} {}", i % 500);
        let put = Operation::put(partition, slot.as_bytes(), &value);
        let outcome = dataset.execute_one(ClientOperation::new(put));
        written.longest = written.longest.max(start.elapsed());
        match outcome {
            Ok(_) => {
                if written.acknowledged.is_empty() {
                    begun.fetch_add(1, Ordering::Relaxed);
                }
                written.acknowledged.push((key, on_killed));
            }
            Err(error) => {
                assert!(on_killed, "a call to the living node failed: {error}");
                written.error = Some(error);
                break;
            }
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    written
}

#[test]
fn a_killed_node_ends_every_call_and_down_leaves_nothing() {
    let cluster = ProcessCluster::start(2, &["--memory", "128M"]).unwrap();
    let (begun, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let transports = [TransportKind::Shm, TransportKind::Unix, TransportKind::Tcp];
    let all: Vec<Written> = std::thread::scope(|scope| {
        let writers: Vec<_> = transports
            .iter()
            .enumerate()
            .map(|(writer, transport)| {
                let (cluster, flags) = (&cluster, (&begun, &stop));
                scope.spawn(move || write_until_killed(cluster, *transport, writer, flags))
            })
            .collect();
        let since = Instant::now();
        while begun.load(Ordering::Relaxed) < 3 && since.elapsed() < WAIT {
            std::thread::sleep(Duration::from_millis(10));
        }
        cluster.kill_node(NodeId(1)).unwrap();
        // A writer that has no error by then hangs.
        std::thread::sleep(TIMEOUT * 2);
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    for (transport, written) in transports.iter().zip(&all) {
        let error = written.error.as_ref().expect("every writer meets the dead node");
        let kind = error.kind();
        assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout), "{error:?}");
        assert!(error.message().contains("n1"), "{transport}: {error}");
        assert!(written.longest < TIMEOUT * 3 / 2, "{transport}: {:?}", written.longest);
        assert!(!written.acknowledged.is_empty(), "{transport}: wrote nothing before the kill");
    }

    let runtime = cluster.runtime_path();
    let pids: Vec<u32> =
        cluster.file().unwrap().nodes.iter().filter_map(|node| node.pid()).collect();
    cluster.run(["down", "--force"]).unwrap();
    for pid in pids {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "still there: {stat}");
    }
    let left: Vec<_> = std::fs::read_dir(&runtime)
        .map(|entries| entries.filter_map(Result::ok).map(|entry| entry.path()).collect())
        .unwrap_or_default();
    assert!(left.is_empty(), "{left:?}");
    cluster.end();
}

#[test]
fn a_cluster_comes_down_after_all_of_it_was_killed() {
    let cluster = ProcessCluster::start(2, &["--memory", "64M"]).unwrap();
    cluster.kill_node(NodeId(0)).unwrap();
    cluster.kill_node(NodeId(1)).unwrap();
    cluster.run(["down", "--force"]).unwrap();
    assert!(cluster.file().is_err());
    cluster.end();
}

/// Ends the threads of a test, however that ends.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A counter as a reader of shared memory sees it, in the look-up table once it is published there.
fn counter(dataset: &Dataset, at: PartitionId, shown: &AtomicU64) -> u64 {
    let mut dest = [0; HEAD_LEN];
    let bytes = match dataset.head(at, b"k", Epoch(u64::MAX), &mut dest) {
        Some(_) => {
            shown.fetch_add(1, Ordering::Relaxed);
            dest
        }
        None => {
            let get = Action::Get { key: b"k", offset: 0, len: HEAD_LEN as u32 };
            let outcome = dataset.execute_one(ClientOperation::new(Operation::new(at, [get])));
            let outcome = outcome.expect("a read waits until another node has taken over");
            let results = outcome.into_results("counter").expect("it is there");
            match &results[0] {
                OwnedResult::Value { data, .. } => data[..].try_into().expect("whole"),
                other => panic!("{other:?}"),
            }
        }
    };
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

#[test]
fn a_node_that_is_stopped_for_a_while_is_a_pause_and_nothing_stale_is_seen_over_shared_memory() {
    let args = ["--memory", "96M", "--mirror", "2"];
    let cluster = ProcessCluster::start(3, &args).unwrap();
    let client = |transport| {
        let transport = Some(transport);
        cluster
            .client(ClientOptions { transport, timeout: WAIT, ..ClientOptions::default() })
            .unwrap()
    };
    let (near, far) = (client(TransportKind::Shm), client(TransportKind::Unix));
    let redundancy = Redundancy(2);
    let dataset = near.create_dataset(&DatasetSpec { redundancy, ..spec() }).unwrap();
    let others = far.dataset("killed").unwrap();
    // The coordinator lives in node 0.
    let map = near.refresh_map().unwrap();
    let (mut all, first) = ((0..map.partitions()).map(PartitionId), Some(NodeId(1)));
    let at = all.find(|partition| map.node_of(redundancy, *partition) == first).unwrap();
    let write = |number: u64| {
        let mut value = [0; HEAD_LEN];
        value[..8].copy_from_slice(&number.to_le_bytes());
        let written = others.execute_one(ClientOperation::new(Operation::put(at, b"k", &value)));
        assert!(written.expect("a write waits until another node has taken over").is_done());
    };
    write(0);
    let (said, shown, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let before = said.load(Ordering::SeqCst);
                let seen = counter(&dataset, at, &shown);
                assert!(seen >= before, "{seen} is read after {before} was acknowledged");
            }
        });
        scope.spawn(|| {
            for number in 1.. {
                write(number);
                said.store(number, Ordering::SeqCst);
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                // Long enough for readers to look it up and for it to be published.
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let goes_on = |least: u64| {
            let (start, before) = (Instant::now(), said.load(Ordering::SeqCst));
            while said.load(Ordering::SeqCst) < before + least {
                assert!(start.elapsed() < WAIT, "no writes any more");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        goes_on(50);
        cluster.signal_node(NodeId(1), Signal::STOP).unwrap();
        // More than could be under way: another node has taken over while the first one is stopped.
        goes_on(50);
        cluster.signal_node(NodeId(1), Signal::CONT).unwrap();
        goes_on(200);
    });
    assert!(shown.into_inner() > 0, "the look-up table was never read");
    // By now it may be the primary again.
    let term = |map: &samite_placement::ClusterMap| map.group(redundancy, at).unwrap().term;
    assert!(term(&near.refresh_map().unwrap()) > term(&map));
}
