//! Clients and datasets for the tests of the client and of its views.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use samite_client::{Client, ClientOperation, ClientOptions, Dataset, OwnedResult, TransportKind};
use samite_types::PartitionId;
use samite_wire::control::DatasetSpec;
use samite_wire::op::{Action, Operation};

use crate::{LocalCluster, LocalOptions};

/// Every way from a client to a node.
pub const TRANSPORTS: [TransportKind; 3] =
    [TransportKind::Shm, TransportKind::Unix, TransportKind::Tcp];

/// A cluster of so many nodes, each with `memory_mib` MiB for records.
///
/// # Panics
/// When it does not start; so all functions here, when what they do fails.
#[must_use]
pub fn cluster(nodes: usize, memory_mib: u64) -> LocalCluster {
    let options = LocalOptions { memory_bytes: memory_mib << 20, ..LocalOptions::default() };
    LocalCluster::start(nodes, options).expect("the cluster starts")
}

/// A client that reaches its nodes by `transport` only, and waits 20 s for them.
#[must_use]
pub fn client(cluster: &LocalCluster, transport: TransportKind) -> Client {
    let options = ClientOptions {
        transport: Some(transport),
        timeout: Duration::from_secs(20),
        ..ClientOptions::default()
    };
    cluster.client(options).expect("the client connects")
}

/// What makes a dataset with chunks of 64 KiB.
#[must_use]
pub fn spec(name: &str) -> DatasetSpec {
    DatasetSpec { chunk_len: 64 << 10, ..DatasetSpec::new(name) }
}

/// The dataset of that name, with chunks of 64 KiB; made if there is none.
#[must_use]
pub fn dataset(client: &Client, name: &str) -> Dataset {
    client.create_dataset(&spec(name)).expect("the dataset is made")
}

/// Breaks every connection of the client, as a network or a node that dies would.
pub fn break_links(client: &Client) {
    for fd in client.descriptors() {
        // SAFETY: the client has just said that it holds this one open. Should it close it just
        // now, shutdown fails.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        // A doorbell is no socket; that fails, too.
        let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
    }
}

/// Bytes that differ from place to place, and by `seed`.
#[must_use]
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Keys of all records of a dataset, up to 1000 in each partition.
#[must_use]
pub fn records(dataset: &Dataset) -> Vec<Box<[u8]>> {
    let list =
        Action::List { prefix: b"", after: b"", limit: 1000, reverse: false, value_len_max: 0 };
    let partitions = (0..dataset.partitions()).map(PartitionId);
    let mut ops: Vec<ClientOperation<'_>> = partitions
        .map(|partition| ClientOperation::new(Operation::new(partition, [list.clone()])))
        .collect();
    let outcomes = dataset.execute(&mut ops, dataset.client().deadline()).unwrap();
    let results = outcomes.into_iter().flat_map(|outcome| outcome.into_results("list").unwrap());
    results
        .flat_map(|result| match result {
            OwnedResult::Listing { entries, .. } => entries.to_vec(),
            other => panic!("{other:?}"),
        })
        .map(|entry| entry.key)
        .collect()
}

struct ThreadUnparker(Thread);

impl Wake for ThreadUnparker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end on this thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(ThreadUnparker(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}
