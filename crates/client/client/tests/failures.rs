//! Broken connections, dead nodes, nodes that do not answer: exactly once, never a success that was none, never a hang.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use samite_client::{ClientOperation, ClientOptions, OwnedOutcome};
use samite_testkit::datasets::{TRANSPORTS, break_links, client, cluster, dataset, spec};
use samite_types::{ErrorKind, NodeId};
use samite_wire::op::{Action, Operation};

#[test]
fn additions_happen_once_however_often_connections_break() {
    const THREADS: u64 = 3;
    const ADDITIONS: u64 = 400;
    let cluster = cluster(2, 64);
    for transport in TRANSPORTS {
        let client = client(&cluster, transport);
        let dataset = dataset(&client, &format!("once-{transport}"));
        let (over, added) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let before = added.load(Ordering::Relaxed);
                    break_links(&client);
                    // On a busy machine it takes longer until they are there again; nobody has endless patience.
                    while !over.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(3));
                        if added.load(Ordering::Relaxed) >= before + THREADS {
                            break;
                        }
                    }
                }
            });
            let adders: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (dataset, added) = (&dataset, &added);
                    scope.spawn(move || {
                        for index in 0..ADDITIONS {
                            // Alone and in batches, spread over both nodes.
                            let keys: Vec<[u8; 2]> =
                                (0..1 + index % 3).map(|key| [thread as u8, key as u8]).collect();
                            add_one(dataset, &keys);
                            added.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            let done: Vec<_> = adders.into_iter().map(|adder| adder.join()).collect();
            over.store(true, Ordering::Relaxed);
            done.into_iter().for_each(|done| done.expect("every addition is acknowledged"));
        });
        assert!(client.stats().retries > 0, "{transport}: no connection broke at the right time");
        for thread in 0..THREADS {
            for key in 0..3u8 {
                let expected = (0..ADDITIONS).filter(|index| index % 3 >= u64::from(key)).count();
                let found = number(&dataset, &[thread as u8, key]);
                assert_eq!(found, expected as u64, "{transport}: {thread} {key}");
            }
        }
    }
}

fn add_one(dataset: &samite_client::Dataset, keys: &[[u8; 2]]) {
    let operations: Vec<Operation<'_>> = keys
        .iter()
        .map(|key| {
            let add = Action::Add { key, offset: 0, delta: 1 };
            Operation::new(dataset.partition_of(key), [add])
        })
        .collect();
    let outcomes = if keys.len() == 2 {
        dataset.submit(&operations).unwrap().wait().unwrap()
    } else {
        let mut ops: Vec<ClientOperation<'_>> =
            operations.into_iter().map(ClientOperation::new).collect();
        dataset.execute(&mut ops, dataset.client().deadline()).unwrap()
    };
    assert!(outcomes.iter().all(OwnedOutcome::is_done));
}

fn number(dataset: &samite_client::Dataset, key: &[u8]) -> u64 {
    let mut raw = [0; 8];
    let op =
        ClientOperation::new(Operation::get(dataset.partition_of(key), key)).into_dest(&mut raw);
    dataset.execute_one(op).unwrap().into_results("get").unwrap();
    u64::from_le_bytes(raw)
}

#[test]
fn nobody_there_is_an_error_that_says_where() {
    let cluster = cluster(1, 64);
    let mut config = cluster.config();
    config.addresses = vec!["unix:///nonexistent/n0.sock".into(), "tcp://127.0.0.1:1".into()];
    let error = samite_client::Client::connect(&config, ClientOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    config.addresses = cluster.config().addresses;
    config.credential = samite_client::ClusterKey::new([0; 32]).into();
    let error = samite_client::Client::connect(&config, ClientOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
}

#[test]
fn a_cluster_is_found_by_its_runtime_directory() {
    let cluster = cluster(2, 64);
    let dir = cluster.runtime().cluster(cluster.name()).unwrap();
    for transport in TRANSPORTS {
        let options = ClientOptions { transport: Some(transport), ..ClientOptions::default() };
        let client = samite_client::Client::from_cluster_dir(&dir, options).unwrap();
        assert_eq!(client.map().unwrap().nodes().len(), 2);
        assert!(client.node_status(NodeId(1)).is_ok());
    }
    let none = cluster.runtime().cluster("none").unwrap();
    let error =
        samite_client::Client::from_cluster_dir(&none, ClientOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn limits_are_told_before_anything_is_sent() {
    let cluster = cluster(1, 64);
    let client = client(&cluster, TRANSPORTS[0]);
    let dataset = dataset(&client, "limits");
    let before = client.stats();
    let long = vec![b'k'; samite_wire::limits::KEY_LEN_MAX + 1];
    let op = ClientOperation::new(Operation::get(dataset.partition_of(&long), &long));
    assert_eq!(dataset.execute_one(op).unwrap_err().kind(), ErrorKind::TooLarge);
    let big = vec![0; samite_wire::limits::RECORD_LEN_MAX + 1];
    let op = ClientOperation::new(Operation::put(dataset.partition_of(b"k"), b"k", &big));
    assert_eq!(dataset.execute_one(op).unwrap_err().kind(), ErrorKind::TooLarge);
    let op = ClientOperation::new(Operation::get(samite_types::PartitionId(1 << 20), b"k"));
    assert_eq!(dataset.execute_one(op).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(client.stats(), before);
}

#[test]
fn datasets_are_made_once_and_seen_by_everybody() {
    let cluster = cluster(2, 64);
    let clients = TRANSPORTS.map(|transport| client(&cluster, transport));
    let made = dataset(&clients[0], "shared");
    for client in &clients {
        assert_eq!(client.dataset("shared").unwrap().id(), made.id());
        assert_eq!(dataset(client, "shared").id(), made.id());
    }
    let mut other = spec("shared");
    other.chunk_len *= 2;
    assert_eq!(clients[1].create_dataset(&other).unwrap_err().kind(), ErrorKind::Exists);
    other.name = "../x".into();
    assert_eq!(clients[1].create_dataset(&other).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(clients[1].dataset("none").unwrap_err().kind(), ErrorKind::NotFound);
    let partition = made.partition_of(b"k");
    let put = made.execute_one(Operation::put(partition, b"k", b"v").into()).unwrap();
    assert!(put.is_done());
    clients[2].drop_dataset("shared").unwrap();
    let get = made.execute_one(Operation::get(partition, b"k").into());
    let is_told = |outcome: OwnedOutcome| {
        outcome.failure().is_some_and(|failure| failure.kind != ErrorKind::NotFound)
    };
    assert!(get.map_or(true, is_told), "the dataset is gone, not just its record");
    assert_eq!(clients[0].node_status(NodeId(0)).unwrap().pid, std::process::id());
}
