//! Backends: the code that turns a target into a record store.
//!
//! [`RecordStore`] is the records of one partition, [`Backend`] one target as one shard sees it.
//! [`memory`] stores them in an [`Arena`] that clients on the same host can map; [`null`] stores
//! lengths only and isolates the framework's own cost. [`ordered`] makes record stores that remember
//! of any ordered map on disk.
//! Every backend passes [`conformance`].

pub mod conformance;
pub mod failing;
pub mod memory;
pub mod memory_rows;
pub mod null;
pub mod ordered;

mod bytes;
mod commit;
mod quota;
mod range;
mod record;
mod store;
mod target;
mod value_piece;

pub use bytes::SharedBytes;
pub use commit::{CommitRecords, CommitTarget, RowChange, StoredPartition, WriteBatch};
pub use quota::{KEPT_IDLE, QuotaAccount, QuotaLimit, TargetQuota};
pub use record::{
    PlannedChange, PlannedRead, ReadAhead, RecordChange, RecordMeta, ScannedRecord, ScrubbedRecord,
};
pub use store::{PublishRecords, ReadRecords, RecordStore, ScrubRecords, WriteRecords};
pub use target::{Backend, BackendOffers, RestartSource, TargetUsage};
pub use value_piece::{ValuePiece, ValueView, WriteSource};

pub use samite_arena::lookup::HEAD_LEN;
pub use samite_arena::{Arena, ArenaExtent};
