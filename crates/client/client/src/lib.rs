//! The client of a cluster: placement, batches, retries, file locks.
//!
//! A [`Client`] knows the cluster map and keeps one connection ([`samite_transport`]'s link) to
//! each node it has needed. A [`Dataset`] carries out [`ClientOperation`]s: it groups them by node,
//! sends **one request per node**, waits in the calling thread, and repeats operations where needed
//! (stale map, broken connection, busy node) until the deadline. A mutation that is sent again
//! keeps its sequence number, so that the partition applies it once.
//!
//! ```no_run
//! # fn main() -> samite_types::Result<()> {
//! use samite_client::{Client, ClientOperation};
//! use samite_wire::op::{Action, Operation};
//!
//! let client = Client::from_runtime("default")?;
//! let dataset = client.dataset("counters")?;
//! let partition = dataset.partition_of(b"visits");
//! let add = || Operation::new(partition, [Action::Add { key: b"visits", offset: 0, delta: 1 }]);
//! dataset.execute_one(ClientOperation::new(add()))?.into_results("count")?;
//!
//! // Many operations, one request per node; and some that nobody waits for yet.
//! let mut ops = [ClientOperation::new(add()), ClientOperation::new(add())];
//! let outcomes = dataset.execute(&mut ops, client.deadline())?;
//! assert!(outcomes.iter().all(samite_client::OwnedOutcome::is_done));
//! let pending = dataset.submit(&[add()])?;
//! assert_eq!(pending.wait()?.len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! Keys and values (`samite-kv`), objects (`samite-object`) and files (`samite-fs`) are views over
//! records: crates of their own, which stand on what is public here. A view has a [`Dataset`], the
//! keys of its records, and its operations on them; [`listing`] merges the records of all
//! partitions in key order, and [`drafts`] are for what lies in chunks and is replaced as a whole.
//!
//! This crate is linked into the preloaded library: all I/O goes through raw system calls, and no
//! thread is started unless a future is polled, or a dataset frozen.

mod changes;
mod client;
mod config;
mod credential_slot;
mod dataset;
pub mod drafts;
mod early_completion;
mod exec;
pub mod faults;
mod flight;
mod frame;
mod freeze;
mod inconsistent_read;
pub mod interposability;
mod key_rotation;
mod key_text;
pub mod listing;
pub mod locks;
mod maps;
mod members;
mod op;
mod outcome;
mod peer;
mod pending;
pub mod record_placement;
mod reply;
pub mod retry;
mod revocations;
pub mod runtime;
pub mod scan;
mod seq;
mod session;
pub mod stats;
mod thread_pool;
mod tickets;
mod timer;
mod wait;

pub use changes::ReadStamp;
pub use client::Client;
pub use config::{
    ClientOptions, ClusterConfig, ENV_TRANSPORT, parse_transport, transport_from_env,
};
pub use dataset::Dataset;
pub use early_completion::CompletedChange;
pub use freeze::DatasetFreeze;
pub use key_rotation::KeyRotation;
pub use key_text::key_text;
pub use op::ClientOperation;
pub use outcome::{
    GuardedRecord, OwnedEntries, OwnedEntry, OwnedFailure, OwnedOutcome, OwnedResult,
};
pub use pending::{FinishStep, PendingOperations};
pub use revocations::RecallListener;
pub use samite_arena::lookup::{HEAD_LEN, LookupHead};
pub use samite_transport::client::WaitEnd;
pub use samite_transport::{ClusterKey, ClusterKeys, Credential, TlsAuthorities, TransportKind};
pub use tickets::{TicketOrder, make_ticket_key};
