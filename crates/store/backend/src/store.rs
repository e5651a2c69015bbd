//! Traits of the records of one partition: [`RecordStore`], in parts.

use std::ops::ControlFlow;

use samite_types::{Epoch, Result, Version};
use samite_wire::op::BlockRef;

use crate::commit::CommitRecords;
use crate::quota::QuotaLimit;
use crate::record::{
    PlannedChange, PlannedRead, ReadAhead, RecordChange, RecordMeta, ScannedRecord, ScrubbedRecord,
};
use crate::value_piece::{ValuePiece, ValueView, WriteSource};

/// The part of a record store that reads.
pub trait ReadRecords {
    /// Version and length of a record.
    fn meta(&self, key: &[u8]) -> Result<Option<RecordMeta>>;

    /// Whether [`meta`](Self::meta) may find that a record is damaged: a write into that would be
    /// lost with the rest.
    fn verifies_meta(&self) -> bool {
        false
    }

    /// Reads `len` bytes from `offset` (fewer at the value's end) and hands them to `out`, piece by piece, in order.
    ///
    /// # Errors
    /// `Corrupt`: they are not what was written ([`ScrubRecords::take_damaged`]); the bytes
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

    /// As [`scan`](Self::scan), for a client that copies values from the arena itself: a value
    /// that lies there is not shown, but all references to it are. Values that were verified in
    /// this round need not be verified again.
    ///
    /// # Errors
    /// As [`scan`](Self::scan).
    fn scan_in_place(
        &self,
        prefix: &[u8],
        after: &[u8],
        reverse: bool,
        value_len: u32,
        visit: &mut dyn FnMut(&ScannedRecord<'_>, &[BlockRef]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan(prefix, after, reverse, value_len, &mut |record| visit(record, &[]))
    }

    /// Records held.
    fn record_count(&self) -> u64;

    /// Work that brings what an operation is about to read to where it is read without waiting for
    /// a disk; `None`: it is there. It is done by a thread of the target, and the operation after
    /// it. An operation that does not wait for it is as right, and may be slow.
    fn read_ahead(&self, _reads: &[PlannedRead<'_>]) -> Option<ReadAhead> {
        None
    }
}

/// The part of a record store that changes records.
///
/// A change happens whole or not at all. Changes announced to [`reserve`](Self::reserve) find the space they need;
/// every other way to run out of it is [`ErrorKind::NoSpace`](samite_types::ErrorKind::NoSpace) with nothing changed.
pub trait WriteRecords {
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
}

/// The part of a record store that looks for damage.
pub trait ScrubRecords {
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
}

/// The part of a record store that clients of this host look into. A store of which they see
/// nothing leaves it as it is.
pub trait PublishRecords {
    /// Publishes the first bytes of a record to clients of this host ([`samite_arena::lookup`])
    /// until it changes, if the store can. `head` is at least
    /// [`HEAD_LEN`](samite_arena::lookup::HEAD_LEN) of them; records with fewer are not published.
    /// Not to be called between the actions of one operation.
    fn publish(&self, _key: &[u8], _meta: RecordMeta, _head: &[u8]) {}

    /// Prefetch: a record at `key` will change or be published, before other work; a hint, for the
    /// store to have at hand the memory that it takes.
    fn expect(&self, _key: &[u8]) {}

    /// Prefetch: the record at `key`, if there is one, will be looked at; a hint, for the store to
    /// have it at hand.
    fn fetch(&self, _key: &[u8]) {}

    /// From now on records are published only to clients with name-space generation `epoch` or a
    /// newer one.
    fn require_lease(&self, _epoch: Epoch) {}
}

/// The records of one partition of one dataset in one target.
///
/// Keys have 1 to [`KEY_LEN_MAX`](samite_wire::limits::KEY_LEN_MAX) bytes, values up to
/// [`RECORD_LEN_MAX`](samite_wire::limits::RECORD_LEN_MAX); the partition checks both. Bytes of a value that were never written are zeros.
pub trait RecordStore: ReadRecords + WriteRecords + ScrubRecords + PublishRecords + Send {
    /// The part that remembers, if the store does.
    fn commits(&mut self) -> Option<&mut dyn CommitRecords> {
        None
    }
}
