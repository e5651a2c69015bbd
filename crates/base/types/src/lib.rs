//! Words that every layer shares: ids, errors with their errno, time and randomness.
//!
//! Nothing here performs I/O. A bare `u64` never crosses a crate boundary when it means a
//! partition, an epoch or a client: each has a newtype, so the compiler keeps them apart.

mod bytes;
mod env;
mod error;
pub mod fault;
mod ids;
mod time;

pub use bytes::human_bytes;
pub use env::{Clock, Entropy, SystemClock, SystemEntropy};
pub use error::{Error, ErrorKind, Result};
pub use ids::{
    ClientId, DatasetId, Epoch, NodeId, PartitionId, Position, Redundancy, RequestId, Seq, ShardId,
    TargetId, Term, Version,
};
pub use time::{Deadline, utc};
