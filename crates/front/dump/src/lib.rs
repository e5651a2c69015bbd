//! Dump and load: whole datasets into a directory or a stream, and back into any cluster.
//!
//! A dump is made of records: keys and whole values, whatever view made them. It is written in
//! *passes*. The first one walks all records while others change them. The last one walks the keys
//! and versions while the datasets are frozen ([`samite_client::DatasetFreeze`]), and takes only
//! what has changed since: so the dump is of one moment, and the pause is short. A *key list* beside
//! the dump has the key and version of each record that a pass has come to, in the order of the
//! next pass, so that neither needs memory for all keys.
//!
//! A pass is written as *segments* of bounded size, each with checksums, each whole or not there.

mod dumping;
mod key_list;
mod loading;
mod manifest;
mod merging;
mod pass;
mod progress;
mod record_placing;
mod segment;
mod sink;
mod source;

pub use dumping::{DumpOptions, DumpReport, dump};
pub use loading::{LoadOptions, LoadReport, LoadedDataset, load};
pub use manifest::{DatasetManifest, DumpManifest, PassManifest};
pub use progress::TransferProgress;
pub use segment::{
    DumpFrameKind, DumpedRecord, RecordReader, SEGMENT_LEN, SegmentBuilder, SegmentHeader,
    read_frame,
};
pub use sink::DumpDestination;
pub use source::DumpSource;

use samite_types::{Error, ErrorKind};

/// A failed call of the system on a file or stream of a dump.
pub(crate) fn io_error(what: impl std::fmt::Display, error: &std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("{what}: {error}"))
}

pub(crate) fn corrupt(words: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, words.into())
}
