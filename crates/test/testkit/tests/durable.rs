//! Durable datasets: acknowledged changes are there after all nodes have ended, in order or by
//! SIGKILL, and logs stay short.
//! The second needs the `samite` binary (`make test` builds it first).
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use samite_client::{ClientOptions, Dataset, TransportKind};
use samite_kv::KvView;
use samite_testkit::{LocalCluster, ProcessCluster};
use samite_types::{ErrorKind, NodeId};
use samite_wire::control::{BackendSpec, DatasetSpec, DurabilityKind, MEMORY_BACKEND};

fn spec(name: &str) -> DatasetSpec {
    on(MEMORY_BACKEND, name)
}

fn on(backend: &str, name: &str) -> DatasetSpec {
    let backend = BackendSpec::named(backend);
    DatasetSpec { durability: DurabilityKind::Logged, backend, ..DatasetSpec::new(name) }
}

fn options(transport: TransportKind) -> ClientOptions {
    ClientOptions {
        timeout: Duration::from_secs(10),
        transport: Some(transport),
        ..ClientOptions::default()
    }
}

/// Numbers that are random enough (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn value(random: &mut u64) -> Vec<u8> {
    let len = match next(random) % 4 {
        0 => next(random) % 100,
        1 | 2 => next(random) % 5_000,
        _ => next(random) % 200_000,
    };
    let fill = next(random);
    (0..len).map(|at| (at ^ fill) as u8).collect()
}

fn compare(kv: &KvView, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    for (key, value) in model {
        let found = kv.get(key).expect("a get").expect("it was written");
        assert!(found.bytes == *value, "{}", String::from_utf8_lossy(key));
    }
    let page = kv.list(b"", b"", 10_000).expect("a listing");
    assert_eq!(page.entries.len(), model.len(), "what was deleted stays so");
}

#[test]
fn a_cluster_that_is_started_again_has_everything_and_its_logs_stay_short() {
    start_again(MEMORY_BACKEND);
}

#[test]
fn a_cluster_that_is_started_again_has_everything_on_lmdb() {
    start_again("lmdb");
}

#[test]
fn a_cluster_that_is_started_again_has_everything_on_posix() {
    start_again("posix");
}

fn start_again(backend: &str) {
    const SEGMENT_LEN: u64 = 512 << 10;
    let flash = tempfile::tempdir().unwrap();
    let options_of = || samite_testkit::LocalOptions {
        memory_bytes: 96 << 20,
        shards: 2,
        flash: Some((flash.path().to_owned(), SEGMENT_LEN)),
        ..samite_testkit::LocalOptions::default()
    };
    let (mut model, mut random) = (BTreeMap::new(), 1);
    for life in 0..4 {
        let cluster = LocalCluster::start(2, options_of()).unwrap();
        let transport = [TransportKind::Shm, TransportKind::Tcp][life % 2];
        let client = cluster.client(options(transport)).unwrap();
        let kv = KvView::new(client.create_dataset(&on(backend, "kept")).unwrap());
        compare(&kv, &model);
        let gone = client.create_dataset(&on(backend, "gone")).unwrap();
        let gone = KvView::new(gone);
        for step in 0..250 {
            let key = format!("{}", next(&mut random) % 150).into_bytes();
            match next(&mut random) % 8 {
                0 => {
                    kv.delete(&key).unwrap();
                    model.remove(&key);
                }
                1 => {
                    kv.append(&key, b"tail").unwrap();
                    model.entry(key).or_insert_with(Vec::new).extend_from_slice(b"tail");
                }
                _ => {
                    let value = value(&mut random);
                    kv.put(&key, &value).unwrap();
                    model.insert(key, value);
                }
            }
            gone.put(format!("{step}").as_bytes(), &[7; 3000]).unwrap();
        }
        if life % 2 == 0 {
            client.drop_dataset("gone").unwrap();
        }
        compare(&kv, &model);
        let data: u64 = model.values().map(|value| value.len() as u64).sum();
        for node in 0..2 {
            let status = client.node_status(NodeId(node)).unwrap();
            // A log may grow to so many segments, or to what it tells of; while checkpoints are made it grows on.
            let bound = 2 * (2 * 8 * SEGMENT_LEN + 2 * data);
            assert!(status.log_bytes < bound, "{status:?}, data {data}");
        }
    }
}

/// A shard does its work for another one in the turns in which it copies its partitions, too.
#[test]
fn checkpoints_are_right_that_are_made_while_shards_work_for_each_other() {
    const WRITERS: usize = 4;
    let flash = tempfile::tempdir().unwrap();
    let options_of = || samite_testkit::LocalOptions {
        shards: 2,
        flash: Some((flash.path().to_owned(), 1 << 20)),
        ..samite_testkit::LocalOptions::default()
    };
    let mut len = 0;
    for life in 0..3 {
        let cluster = LocalCluster::start(1, options_of()).unwrap();
        let clients: Vec<_> =
            (0..WRITERS).map(|_| cluster.client(options(TransportKind::Tcp)).unwrap()).collect();
        let kv = KvView::new(clients[0].create_dataset(&spec("kept")).unwrap());
        for writer in 0..WRITERS {
            let found = kv.get(&[writer as u8]).unwrap();
            assert_eq!(found.map_or(0, |value| value.bytes.len()), len, "life {life}");
        }
        let write = |client: &samite_client::Client, writer: usize| {
            let kv = KvView::new(client.dataset("kept").unwrap());
            for step in 0..300 {
                // Longer than what is copied in one go.
                if step % 20 == 0 {
                    kv.put(&[writer as u8], &[step as u8; 400_000]).unwrap();
                } else {
                    kv.append(&[writer as u8], &[7; 10]).unwrap();
                }
            }
        };
        std::thread::scope(|scope| {
            for (writer, client) in clients.iter().enumerate() {
                scope.spawn(move || write(client, writer));
            }
        });
        len = 400_000 + 19 * 10;
    }
}

#[test]
fn a_dataset_is_not_durable_on_nodes_that_keep_nothing() {
    let cluster = LocalCluster::start(1, samite_testkit::LocalOptions::default()).unwrap();
    let client = cluster.client(options(TransportKind::Unix)).unwrap();
    let error = client.create_dataset(&spec("d")).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.message().contains("no durable storage"), "{error}");
}

/// Acknowledgements of one writer: of each of its keys the last number that was acknowledged, and
/// the one that was under way at the end.
type Told = BTreeMap<String, (u64, u64)>;

fn write_until_killed(dataset: Dataset, writer: usize, done: &AtomicU64) -> Told {
    let kv = KvView::new(dataset);
    let mut told = Told::new();
    for number in 1.. {
        let key = format!("{writer} {}", number % 40);
        let entry = told.entry(key.clone()).or_insert((0, 0));
        entry.1 = number;
        let mut value = number.to_le_bytes().to_vec();
        value.resize(8 + (number as usize * 977) % 90_000, number as u8);
        match kv.put(key.as_bytes(), &value) {
            Ok(_) => entry.0 = number,
            Err(_) => break,
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    told
}

#[test]
fn every_acknowledged_write_outlives_sigkill_of_all_nodes() {
    kill_all_nodes(MEMORY_BACKEND);
}

#[test]
fn every_acknowledged_write_on_lmdb_outlives_sigkill_of_all_nodes() {
    kill_all_nodes("lmdb");
}

#[test]
fn every_acknowledged_write_on_posix_outlives_sigkill_of_all_nodes() {
    kill_all_nodes("posix");
}

fn kill_all_nodes(backend: &str) {
    let flash = tempfile::tempdir().unwrap();
    let durable = flash.path().join("d").display().to_string();
    let args = ["--memory", "128M", "--durable", &durable];
    let transports = [TransportKind::Shm, TransportKind::Unix, TransportKind::Tcp];
    let mut all: Vec<Told> = Vec::new();
    for life in 0..3 {
        let cluster = ProcessCluster::start(2, &args).unwrap();
        let client = cluster.client(options(TransportKind::Unix)).unwrap();
        let kv = KvView::new(client.create_dataset(&on(backend, "killed")).unwrap());
        for (key, (acknowledged, last)) in all.iter().flatten() {
            let found = kv.get(key.as_bytes()).unwrap().map_or(Vec::new(), |value| value.bytes);
            let number = found.first_chunk().map_or(0, |raw| u64::from_le_bytes(*raw));
            assert!(
                number == *acknowledged || number == *last,
                "{key}: {number}, not {acknowledged}"
            );
            let fill = &found[8.min(found.len())..];
            assert!(fill.iter().all(|byte| *byte == number as u8), "{key}: half of a value");
        }
        if life == 2 {
            cluster.run(["down", "--force"]).unwrap();
            cluster.end();
            break;
        }
        let done = AtomicU64::new(0);
        all = std::thread::scope(|scope| {
            let writers: Vec<_> = transports
                .iter()
                .enumerate()
                .map(|(writer, transport)| {
                    let options =
                        ClientOptions { timeout: Duration::from_secs(3), ..options(*transport) };
                    let client = cluster.client(options).unwrap();
                    let dataset = client.dataset("killed").unwrap();
                    let done = &done;
                    scope.spawn(move || write_until_killed(dataset, writer, done))
                })
                .collect();
            while done.load(Ordering::Relaxed) < 300 {
                assert!(!writers.iter().all(|writer| writer.is_finished()), "all writers failed");
                std::thread::sleep(Duration::from_millis(5));
            }
            cluster.kill_node(NodeId(life)).unwrap();
            cluster.kill_node(NodeId(1 - life)).unwrap();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        assert!(all.iter().all(|told| !told.is_empty()));
        cluster.run(["down", "--force"]).unwrap();
        cluster.end();
    }
}
