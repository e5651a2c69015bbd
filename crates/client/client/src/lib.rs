//! The client of a cluster: placement, batches, retries, and the key-value and object views.
//!
//! A [`Client`] knows the cluster map and keeps one connection ([`samite_transport`]'s link) to
//! each node it has needed. A [`Dataset`] carries out [`ClientOperation`]s: it groups them by node,
//! sends **one request per node**, waits in the calling thread, and repeats operations where needed
//! (stale map, broken connection, busy node) until the deadline. A mutation that is sent again
//! keeps its sequence number, so that the partition applies it once.
//!
//! ```no_run
//! # fn main() -> samite_types::Result<()> {
//! use samite_client::{Client, kv::KvView};
//!
//! let client = Client::from_runtime("default")?;
//! let kv = KvView::new(client.dataset("kv")?);
//! kv.put(b"key", b"value")?;
//!
//! // Many operations, one request per node; and one that nobody waits for yet.
//! let mut batch = kv.batch();
//! batch.put(b"a", b"1").put(b"b", b"2").get(b"key");
//! let outcomes = batch.execute()?;
//! let pending = kv.submit_get(b"a")?;
//! assert_eq!(pending.wait()?.map(|value| value.bytes), Some(b"1".to_vec()));
//! # Ok(())
//! # }
//! ```
//!
//! [`kv`] and [`object`] are views over records; the file system is one too, in a crate of its own.
//!
//! This crate is linked into the preloaded library: all I/O goes through raw system calls, and no
//! thread is started unless a future is polled.

mod changes;
mod client;
mod config;
mod dataset;
mod draft;
mod early_completion;
mod exec;
pub mod faults;
mod flight;
mod frame;
mod inconsistent_read;
pub mod interposability;
pub mod kv;
mod listing;
pub mod locks;
mod maps;
mod members;
pub mod object;
mod op;
mod outcome;
mod peer;
mod pending;
mod reply;
pub mod retry;
mod revocations;
pub mod runtime;
mod seq;
mod session;
pub mod stats;
mod thread_pool;
mod timer;
mod wait;

pub use changes::ReadStamp;
pub use client::Client;
pub use config::{
    ClientOptions, ClusterConfig, ENV_TRANSPORT, parse_transport, transport_from_env,
};
pub use dataset::Dataset;
pub use op::ClientOperation;
pub use outcome::{GuardedRecord, OwnedEntry, OwnedFailure, OwnedOutcome, OwnedResult};
pub use pending::PendingOperations;
pub use revocations::RecallListener;
pub use samite_transport::client::WaitEnd;
pub use samite_transport::shm::SubmittedEntry;
pub use samite_transport::{TlsAuthorities, TransportKind};
