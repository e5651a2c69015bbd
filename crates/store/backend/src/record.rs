//! Traits of every backend: records, read and changed by key.

use std::ops::ControlFlow;
use std::sync::Arc;

use samite_types::{DatasetId, Epoch, PartitionId, Result, Version};

use crate::arena::{Arena, ArenaExtent};
use crate::bytes::SharedBytes;
use crate::commit::{CommitRecords, CommitTarget};
use crate::quota::QuotaLimit;

/// A piece of a value that was read. Owned: it stays as it is, whatever happens to the record.
#[derive(Clone, Debug)]
pub enum ValuePiece {
    /// Bytes of a small value.
    Bytes(SharedBytes),
    /// Bytes in the arena. A change of the record meanwhile goes to another place.
    Extent {
        /// Where.
        extent: ArenaExtent,
        /// First byte within the extent.
        offset: u32,
        /// Bytes.
        len: u32,
    },
    /// This many zeros: a hole.
    Zeros(u32),
}

impl ValuePiece {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Extent { len, .. } | Self::Zeros(len) => *len as usize,
        }
    }

    /// No bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes; `None` for a hole.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Extent { extent, offset, len } => {
                Some(&extent.as_slice()[*offset as usize..][..*len as usize])
            }
            Self::Zeros(_) => None,
        }
    }

    /// The bytes where they are.
    #[must_use]
    pub fn seen(&self) -> ValueView<'_> {
        self.as_bytes().map_or(ValueView::Zeros(self.len() as u32), ValueView::Bytes)
    }

    /// Appends the bytes, zeros of a hole included, to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        self.seen().append_to(out);
    }
}

/// Bytes of a value where they are.
#[derive(Clone, Copy, Debug)]
pub enum ValueView<'a> {
    /// Bytes.
    Bytes(&'a [u8]),
    /// This many zeros: a hole.
    Zeros(u32),
}

impl ValueView<'_> {
    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Zeros(len) => *len as usize,
        }
    }

    /// No bytes at all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the bytes, zeros of a hole included, to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Self::Bytes(bytes) => out.extend_from_slice(bytes),
            Self::Zeros(len) => out.resize(out.len() + *len as usize, 0),
        }
    }
}

/// Bytes to store.
#[derive(Debug)]
pub enum WriteSource<'a> {
    /// Bytes to copy.
    Bytes(&'a [u8]),
    /// Whole arena blocks that were granted to the writer, each with the number of bytes that it filled from the block's
    /// start. Where they fit the record's grid of blocks they become its storage without a copy.
    Blocks(Vec<(ArenaExtent, u32)>),
    /// This many zeros; they take no space where they cover whole blocks.
    Zeros(u32),
}

impl WriteSource<'_> {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Blocks(blocks) => blocks.iter().map(|(_, len)| *len as usize).sum(),
            Self::Zeros(len) => *len as usize,
        }
    }

    /// No bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

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

/// A change that is about to come, for [`RecordStore::reserve`].
#[derive(Debug)]
pub enum PlannedChange<'a> {
    /// A [`RecordStore::put`].
    Put {
        /// Key.
        key: &'a [u8],
        /// New value.
        source: &'a WriteSource<'a>,
    },
    /// A [`RecordStore::write`].
    Write {
        /// Key.
        key: &'a [u8],
        /// Byte offset.
        offset: u32,
        /// Bytes to write.
        source: &'a WriteSource<'a>,
    },
    /// A [`RecordStore::rename`], or (with `to` as `key`) a removal, a cut, or a read whose pieces
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

/// One record met by [`RecordStore::scan`].
#[derive(Debug)]
pub struct ScannedRecord<'a> {
    /// Key.
    pub key: &'a [u8],
    /// Version and length.
    pub meta: RecordMeta,
    /// The first bytes of the value, as many as were asked for.
    pub value: &'a [u8],
}

/// One record met by [`RecordStore::scrub`].
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

/// The records of one partition of one dataset in one target.
///
/// Keys have 1 to [`KEY_LEN_MAX`](samite_wire::limits::KEY_LEN_MAX) bytes, values up to
/// [`RECORD_LEN_MAX`](samite_wire::limits::RECORD_LEN_MAX); the partition checks both. Bytes of a value that were never written are zeros.
///
/// A change happens whole or not at all. Changes announced to [`reserve`](Self::reserve) find the space they need;
/// every other way to run out of it is [`ErrorKind::NoSpace`](samite_types::ErrorKind::NoSpace) with nothing changed.
pub trait RecordStore: Send {
    /// Version and length of a record.
    fn meta(&self, key: &[u8]) -> Result<Option<RecordMeta>>;

    /// Reads `len` bytes from `offset` (fewer at the value's end) and hands them to `out`, piece by piece, in order.
    ///
    /// # Errors
    /// `Corrupt`: they are not what was written ([`take_damaged`](Self::take_damaged)); the bytes
    /// given to `out` are worth nothing.
    fn read(
        &self,
        key: &[u8],
        offset: u32,
        len: u32,
        out: &mut dyn FnMut(ValuePiece),
    ) -> Result<Option<RecordMeta>>;

    /// The same, for a caller that keeps nothing of it: nothing is copied.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn look(
        &self,
        key: &[u8],
        offset: u32,
        len: u32,
        see: &mut dyn FnMut(ValueView<'_>),
    ) -> Result<Option<RecordMeta>> {
        self.read(key, offset, len, &mut |piece| see(piece.seen()))
    }

    /// As [`read`](Self::read), for a client that copies large values from the arena itself: values
    /// that were verified in this round need not be verified again.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn read_in_place(
        &self,
        key: &[u8],
        offset: u32,
        len: u32,
        out: &mut dyn FnMut(ValuePiece),
    ) -> Result<Option<RecordMeta>> {
        self.read(key, offset, len, out)
    }

    /// Looks at all bytes of the records behind `after` (empty: from the first) up to and with `upto` (empty: to the last), in key order, until `visit`
    /// breaks. From then on their bytes are known: changes that nobody makes are found.
    ///
    /// # Errors
    /// Errors of the target.
    fn scrub(
        &mut self,
        after: &[u8],
        upto: &[u8],
        visit: &mut dyn FnMut(&ScrubbedRecord<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Keys of records that reads and scans found damaged since the last call; not all, when there are many.
    fn take_damaged(&mut self) -> Vec<Box<[u8]>> {
        Vec::new()
    }

    /// Lets one stored bit of a record be wrong from now on, as if memory had failed. Returns whether that was possible. For tests of what then happens.
    fn rot(&mut self, _key: &[u8], _random: u64) -> bool {
        false
    }

    /// Sets space aside for all of `changes`, so that they cannot fail for want of it, until [`settle`](Self::settle).
    ///
    /// # Errors
    /// `NoSpace`: not all of them would fit; nothing is set aside.
    fn reserve(&mut self, changes: &[PlannedChange<'_>]) -> Result<()>;

    /// The changes are done: gives back what was set aside and not used.
    fn settle(&mut self);

    /// How much of the target the next changes may take, until [`settle`](Self::settle); without a word [`QuotaLimit::Open`].
    fn set_limit(&mut self, limit: QuotaLimit);

    /// The most that `changes` take of any target of this kind that has the same records, in bytes: what the records are decides, not how they are
    /// stored.
    fn charge_max(&self, changes: &[PlannedChange<'_>]) -> u64;

    /// Keeps room for changes that another member of the mirror group decides on: at least `least`
    /// bytes, if they are there, and `wanted`, if the target can spare them. Returns how many bytes
    /// it has.
    fn keep(&mut self, least: u64, wanted: u64) -> u64;

    /// Whether the target has half of its reserved budget left, which only changes that free some
    /// space may take ([`QuotaLimit::Whole`]).
    fn has_reserve(&self) -> bool;

    /// The next changes may use up to `bytes` of the [room](Self::keep), until
    /// [`settle`](Self::settle); the rest of it stays.
    fn draw(&mut self, bytes: u64);

    /// Sets the whole value; creates the record.
    fn put(
        &mut self,
        key: &[u8],
        source: WriteSource<'_>,
        version: Version,
    ) -> Result<RecordChange>;

    /// Writes into the value at `offset`; creates the record, and extends the value where needed.
    fn write(
        &mut self,
        key: &[u8],
        offset: u32,
        source: WriteSource<'_>,
        version: Version,
    ) -> Result<RecordChange>;

    /// Cuts or zero-extends the value; `None` if there is no such record. Takes no space.
    fn truncate(&mut self, key: &[u8], len: u32, version: Version) -> Result<Option<RecordChange>>;

    /// Removes a record. Returns whether there was one. Takes no space.
    fn delete(&mut self, key: &[u8]) -> Result<bool>;

    /// Gives a record the key `to`, which is no longer than its own; what has that key now is removed. Returns whether there was a
    /// record. Takes no space.
    fn rename(&mut self, key: &[u8], to: &[u8], version: Version) -> Result<bool>;

    /// Visits the records whose keys start with `prefix`, in key order, or backwards: those after `after` (before it,
    /// backwards) if it is not empty, with up to `value_len` bytes of each value, until `visit` breaks.
    ///
    /// # Errors
    /// `Corrupt`: a value that was to be visited is damaged.
    fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        reverse: bool,
        value_len: u32,
        visit: &mut dyn FnMut(&ScannedRecord<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Records held.
    fn record_count(&self) -> u64;

    /// Publishes the first bytes of a record to clients of this host ([`samite_wire::lookup`])
    /// until it changes, if the store can. `head` is at least
    /// [`HEAD_LEN`](samite_wire::lookup::HEAD_LEN) of them; records with fewer are not published.
    /// Not to be called between the actions of one operation.
    fn show(&self, _key: &[u8], _meta: RecordMeta, _head: &[u8]) {}

    /// Prefetch: a record at `key` will change or be published, before other work; a hint, for the
    /// store to have at hand the memory that it takes.
    fn expect(&self, _key: &[u8]) {}

    /// Prefetch: the record at `key`, if there is one, will be looked at; a hint, for the store to
    /// have it at hand.
    fn fetch(&self, _key: &[u8]) {}

    /// From now on records are published only to clients with name-space generation `epoch` or a
    /// newer one.
    fn require_lease(&self, _epoch: Epoch) {}

    /// The part that remembers, if the store does.
    fn commits(&mut self) -> Option<&mut dyn CommitRecords> {
        None
    }

    /// Work that brings what an operation is about to read to where it is read without waiting for
    /// a disk; `None`: it is there. It is done by a thread of the target, and the operation after
    /// it. An operation that does not wait for it is as right, and may be slow.
    fn read_ahead(&self, _reads: &[PlannedRead<'_>]) -> Option<ReadAhead> {
        None
    }
}

/// Work of [`RecordStore::read_ahead`].
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
    /// A [`RecordStore::scan`].
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

/// How full a target is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetUsage {
    /// Bytes it can hold.
    pub capacity: u64,
    /// Bytes in use: values as stored, keys, and what each record costs beside them.
    pub used: u64,
    /// Bytes of the arena whose pages are in place.
    pub populated: u64,
}

/// One target, as one shard sees it: each shard has its own handle.
pub trait Backend: Send {
    /// Opens the records of one partition: those that were committed, if the target remembers; else
    /// it is empty, and dropping it frees its space.
    fn open(&mut self, dataset: DatasetId, partition: PartitionId) -> Result<Box<dyn RecordStore>>;

    /// How full the target is.
    fn usage(&self) -> TargetUsage;

    /// The arena that clients on this host can map, if there is one.
    fn arena(&self) -> Option<Arc<Arena>>;

    /// Whether a value reads back as it was written; a backend that answers `false` gives zeros instead.
    fn keeps_values(&self) -> bool {
        true
    }

    /// The target of its stores, if they remember.
    fn commit_target(&self) -> Option<Arc<dyn CommitTarget>> {
        None
    }
}
