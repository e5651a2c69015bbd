//! Backends: what turns a target into a store of records.
//!
//! [`RecordStore`] is the records of one partition, [`Backend`] one target as one shard sees it. [`memory`] keeps them in an
//! [`arena`] that clients on the same host can map; [`null`] keeps lengths only and isolates the framework's own cost.
//! Every backend passes [`conformance`].

pub mod arena;
pub mod conformance;
pub mod memory;
pub mod null;

mod bytes;
mod quota;
mod range;
mod record;

pub use arena::{Arena, Bar, Extent, Near, Post, Turn};
pub use bytes::Bytes;
pub use quota::{Account, KEPT_IDLE, Limit, Quota};
pub use record::{
    Backend, Changed, Piece, PlannedChange, RecordMeta, RecordStore, Scanned, Scrubbed, Seen,
    Source, Usage,
};
