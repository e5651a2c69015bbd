//! Real processes and SIGKILL. Needs the `samite` binary (`make test` builds it first).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use samite_client::{Op, Options, Transport};
use samite_testkit::ProcessCluster;
use samite_types::{ErrorKind, NodeId, Redundancy};
use samite_wire::control::DatasetSpec;
use samite_wire::op::Operation;

const TIMEOUT: Duration = Duration::from_secs(2);

fn spec() -> DatasetSpec {
    DatasetSpec::new("killed")
}

/// What one writer saw until its first error.
struct Written {
    acknowledged: Vec<(String, bool)>,
    error: Option<samite_types::Error>,
    longest: Duration,
}

fn write_until_killed(
    cluster: &ProcessCluster,
    transport: Transport,
    writer: usize,
    stop: &AtomicBool,
) -> Written {
    let options = Options { timeout: TIMEOUT, transport: Some(transport), ..Options::default() };
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
        let outcome = dataset.execute_one(Op::new(put));
        written.longest = written.longest.max(start.elapsed());
        match outcome {
            Ok(_) => written.acknowledged.push((key, on_killed)),
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
    let stop = AtomicBool::new(false);
    let transports = [Transport::Shm, Transport::Unix, Transport::Tcp];
    let all: Vec<Written> = std::thread::scope(|scope| {
        let writers: Vec<_> = transports
            .iter()
            .enumerate()
            .map(|(writer, transport)| {
                let (cluster, stop) = (&cluster, &stop);
                scope.spawn(move || write_until_killed(cluster, *transport, writer, stop))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        cluster.kill_node(NodeId(1)).unwrap();
        // Whoever has no error by then hangs.
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
    let pids: Vec<u32> = cluster.file().unwrap().nodes.iter().map(|node| node.pid).collect();
    cluster.run(["down"]).unwrap();
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
    cluster.run(["down"]).unwrap();
    assert!(cluster.file().is_err());
    cluster.end();
}
