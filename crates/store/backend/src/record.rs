//! What is told of records, and what is planned with them.

use samite_types::Version;

use crate::value_piece::WriteSource;

/// Metadata of a record, without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordMeta {
    /// Version.
    pub version: Version,
    /// Length of the value in bytes.
    pub len: u32,
}

/// Result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordChange {
    /// Length of the value in bytes, now.
    pub len: u32,
    /// The record did not exist before.
    pub created: bool,
}

/// A change that is about to come, for [`WriteRecords::reserve`](crate::WriteRecords::reserve).
#[derive(Debug)]
pub enum PlannedChange<'a> {
    /// A [`WriteRecords::put`](crate::WriteRecords::put).
    Put {
        /// Key.
        key: &'a [u8],
        /// New value.
        source: &'a WriteSource<'a>,
    },
    /// A [`WriteRecords::write`](crate::WriteRecords::write).
    Write {
        /// Key.
        key: &'a [u8],
        /// Byte offset.
        offset: u32,
        /// Bytes to write.
        source: &'a WriteSource<'a>,
    },
    /// A [`WriteRecords::rename`](crate::WriteRecords::rename), or (with `to` as `key`) a removal, a cut, or a read whose pieces
    /// are kept: takes nothing, but the changes after it may find neither record where it was, or
    /// less of it, or shared.
    Moves {
        /// Key.
        key: &'a [u8],
        /// Key after.
        to: &'a [u8],
    },
    /// Removals of records whose keys begin so.
    Wipes {
        /// Prefix.
        prefix: &'a [u8],
    },
}

impl<'a> PlannedChange<'a> {
    /// Key of the record that it writes.
    #[must_use]
    pub const fn key(&self) -> Option<&'a [u8]> {
        match self {
            Self::Put { key, .. } | Self::Write { key, .. } => Some(key),
            Self::Moves { .. } | Self::Wipes { .. } => None,
        }
    }

    /// Whether it may leave the record at `key` another one, or none, without writing it.
    #[must_use]
    pub fn unsettles(&self, key: &[u8]) -> bool {
        match self {
            Self::Put { .. } | Self::Write { .. } => false,
            Self::Moves { key: from, to } => *from == key || *to == key,
            Self::Wipes { prefix } => key.starts_with(prefix),
        }
    }
}

/// One record met by [`ReadRecords::scan`](crate::ReadRecords::scan).
#[derive(Debug)]
pub struct ScannedRecord<'a> {
    /// Key.
    pub key: &'a [u8],
    /// Version and length.
    pub meta: RecordMeta,
    /// The first bytes of the value, as many as were asked for.
    pub value: &'a [u8],
}

/// One record met by [`ScrubRecords::scrub`](crate::ScrubRecords::scrub).
#[derive(Debug)]
pub struct ScrubbedRecord<'a> {
    /// Key.
    pub key: &'a [u8],
    /// Version and length.
    pub meta: RecordMeta,
    /// Bytes that were looked at.
    pub len: u64,
    /// Digest of the value, holes included: of two stores of one kind that were given the same, it is the same. `None`: the value is damaged.
    pub content: Option<u64>,
}

/// Work of [`ReadRecords::read_ahead`](crate::ReadRecords::read_ahead).
pub type ReadAhead = Box<dyn FnOnce() + Send>;

/// A read that an operation is about to do.
#[derive(Clone, Copy, Debug)]
pub enum PlannedRead<'a> {
    /// Version and length of a record, and bytes of its value.
    Record {
        /// Key.
        key: &'a [u8],
        /// Byte offset.
        offset: u32,
        /// Bytes; 0: none of the value.
        len: u32,
    },
    /// A [`ReadRecords::scan`](crate::ReadRecords::scan).
    Scan {
        /// Prefix.
        prefix: &'a [u8],
        /// Key behind which it begins.
        after: &'a [u8],
        /// Whether it goes backwards.
        reverse: bool,
        /// Records.
        limit: u32,
        /// Bytes of each value.
        value_len: u32,
    },
}
