//! The data plane: operations on records and their outcomes.
//!
//! One **operation** works on one partition, atomically: all of its [`Guard`]s hold and all of its
//! [`Action`]s take effect, or nothing does. Get, put, compare-and-swap, create-if-absent and multi-record
//! updates are all this one shape; the constructors on [`Operation`] spell the common ones.
//! One **request** carries operations for any partitions of one node: a batch is one round trip.
//!
//! Types here borrow: from the caller's buffers when encoding, from the received frame when decoding.

mod decode;
mod encode;
mod listing;
mod reader;

use samite_types::{DatasetId, Epoch, ErrorKind, PartitionId, Seq, Version};
use smallvec::SmallVec;

pub use decode::GuardedRecordId;
pub(crate) use decode::{PayloadReader, flag, key, operation};
pub(crate) use encode::operation_flat;
pub use encode::{ReplyEncoder, RequestEncoder};
pub use listing::{ListEntry, ListedValue, ListingEntries, WHOLE_VALUES, extents};
pub use reader::{BlockRefs, OutcomeHead, PieceHead, ReplyReader, ResultHead};

/// Small lists that rarely leave the stack.
pub type List<T, const N: usize> = SmallVec<[T; N]>;

/// One item for each action of an operation. To make or to remove a name takes three of them.
pub type PerAction<T> = List<T, 4>;

/// A piece of an arena that both ends have mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRef {
    /// Byte offset within the arena.
    pub offset: u64,
    /// Bytes used, at most [`crate::limits::BLOCK_LEN`] for a grant; a read may name longer runs.
    pub len: u32,
    /// The block's generation when the reference was made. A reader that finds another one after its copy must ask again.
    pub generation: u32,
}

/// Bytes, either in the frame or in the shared arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueData<'a> {
    /// In the frame's payload.
    Inline(&'a [u8]),
    /// In arena blocks (shared memory only): on a request, blocks granted to this connection; on a reply, the record's own.
    Blocks(List<BlockRef, 4>),
    /// On a reply: this many zero bytes (a hole).
    Zeros(u32),
}

impl ValueData<'_> {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Blocks(blocks) => blocks.iter().map(|block| block.len as usize).sum(),
            Self::Zeros(len) => *len as usize,
        }
    }

    /// No bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A condition that must hold before the actions of an operation run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard<'a> {
    /// A record with this key exists.
    Exists(&'a [u8]),
    /// No record has this key.
    Absent(&'a [u8]),
    /// The record exists at exactly this version.
    VersionIs(&'a [u8], Version),
    /// The record exists and holds these bytes at this offset.
    BytesAre {
        /// Key of the record.
        key: &'a [u8],
        /// Byte offset in its value.
        offset: u32,
        /// Expected bytes.
        bytes: &'a [u8],
    },
    /// The record is absent or its value is at most this long.
    LenAtMost(&'a [u8], u32),
    /// No record's key starts with this prefix.
    PrefixEmpty(&'a [u8]),
}

/// One thing to do to, or to learn from, the records of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// Read `len` bytes of the value from `offset`; short at its end. Result: [`ActionResult::Value`].
    Get {
        /// Key.
        key: &'a [u8],
        /// Byte offset in the value.
        offset: u32,
        /// Most bytes to return; `u32::MAX` for all.
        len: u32,
    },
    /// Set the whole value; creates the record. Result: [`ActionResult::Written`].
    Put {
        /// Key.
        key: &'a [u8],
        /// New value.
        data: ValueData<'a>,
    },
    /// Remove the record. Result: [`ActionResult::Deleted`]; an absent record is no error.
    Delete {
        /// Key.
        key: &'a [u8],
    },
    /// Remove every record whose key starts with `prefix`, at most `limit` of them and at most a few thousand at a time
    /// (`samite_partition::limits`). Result: [`ActionResult::Number`], how many went; ask again until none did.
    DeletePrefix {
        /// Prefix.
        prefix: &'a [u8],
        /// Most records to remove.
        limit: u32,
    },
    /// Write into the value at `offset`; creates the record, zero-fills a gap. Result: [`ActionResult::Written`].
    Write {
        /// Key.
        key: &'a [u8],
        /// Byte offset in the value.
        offset: u32,
        /// Bytes to write.
        data: ValueData<'a>,
    },
    /// Write at the end of the value unless it would grow over `len_max`
    /// (then [`ErrorKind::TooLarge`]); creates the record. Result: [`ActionResult::Written`], with the offset.
    Append {
        /// Key.
        key: &'a [u8],
        /// Bytes to append.
        data: ValueData<'a>,
        /// Limit of the value's length.
        len_max: u32,
    },
    /// Cut or zero-extend the value to `len`; the record must exist. Result: [`ActionResult::Written`].
    Truncate {
        /// Key.
        key: &'a [u8],
        /// New length.
        len: u32,
    },
    /// Add to the little-endian `u64` at `offset`, wrapping; an absent record or a short value counts as zeros.
    /// Result: [`ActionResult::Number`], the value before.
    Add {
        /// Key.
        key: &'a [u8],
        /// Byte offset of the number.
        offset: u32,
        /// The number to add; two's complement for less.
        delta: u64,
    },
    /// Raise the little-endian `u64` at `offset` to at least `value`; the record must exist, and a short one grows. Result: [`ActionResult::Number`], the value before.
    Max {
        /// Key.
        key: &'a [u8],
        /// Byte offset of the number.
        offset: u32,
        /// Lower bound to set.
        value: u64,
    },
    /// Move `count` little-endian `i64`s from `offset` on forward to `to` (times, say); at most
    /// [`ADVANCE_COUNT_MAX`](crate::limits::ADVANCE_COUNT_MAX). A number that is later stays as it
    /// is, unless it is later by more than `slack`: then it was set on purpose, and becomes `to` as
    /// well. An absent record is made; numbers that a short value lacks are earlier than
    /// everything. Result: [`ActionResult::Written`].
    Advance {
        /// Key.
        key: &'a [u8],
        /// Byte offset of the first number.
        offset: u32,
        /// How many numbers.
        count: u8,
        /// Their new value.
        to: i64,
        /// How much later a number may be for it to stay.
        slack: u64,
    },
    /// List records whose keys start with `prefix`, in key order. Result: [`ActionResult::Listing`], which also ends, incomplete
    /// and perhaps empty, where the reply is full: ask again after its last entry.
    List {
        /// Prefix; empty for all.
        prefix: &'a [u8],
        /// Only keys after this one (before it when `reverse`); empty for no bound.
        after: &'a [u8],
        /// Most entries to return.
        limit: u32,
        /// From the last key to the first.
        reverse: bool,
        /// Bytes of each value to return with its key; 0 for none, never more than a few KiB, or
        /// [`WHOLE_VALUES`].
        value_len_max: u32,
    },
    /// Zero `len` bytes of the value from `offset`, as far as it has them, and give back the space that they took where that
    /// can be done; the value stays as long as it is. Result: [`ActionResult::Number`], how many bytes of the value lie in that range; an
    /// absent record is no error.
    Punch {
        /// Key.
        key: &'a [u8],
        /// Byte offset in the value.
        offset: u32,
        /// Bytes to zero.
        len: u32,
    },
    /// Where the records whose keys start with `prefix` have data, in key order: each entry's value is the list of ranges that
    /// are no holes ([`extents`]). Result: [`ActionResult::Listing`], as of [`Action::List`].
    Extents {
        /// Prefix; empty for all.
        prefix: &'a [u8],
        /// Only keys after this one; empty for no bound.
        after: &'a [u8],
        /// Most entries to return.
        limit: u32,
    },
    /// Raise the partition's name-space generation for this dataset to at least `epoch`. Result:
    /// [`ActionResult::Number`], the value before.
    RaiseLease {
        /// New least epoch.
        epoch: Epoch,
    },
    /// Ask for a delegation on the record, which may be absent: a guarantee that no other client's
    /// change of it takes effect before the term is over, counted from when the node grants it, or
    /// before the delegation holder has given it back after a recall
    /// ([`crate::control::ControlRequest::Revocations`]). Changes nothing. Result:
    /// [`ActionResult::Number`], the term granted in microseconds; 0 when refused, no failure.
    Lease {
        /// Key.
        key: &'a [u8],
        /// Term asked for, in microseconds.
        term_us: u32,
    },
    /// Take an open reference on the record, which must exist, under `token`: see
    /// [`Action::Detach`]. A token that is on a record already stays where it is. Volatile: it ends
    /// with [`Action::Release`], with the record, or when its client has been gone for a while. It
    /// is not taken exactly once: a request that comes a second time, late, may take it again after
    /// it was released or refused. That keeps an orphan until the client goes, no more. Result:
    /// [`ActionResult::Number`], how many open references the record has now.
    Hold {
        /// Key.
        key: &'a [u8],
        /// A number that nobody else uses; not 0.
        token: u64,
    },
    /// End the open reference under `token`, whichever client took it. Result:
    /// [`ActionResult::Number`], how many the record still has; 0 for an unknown token, no error.
    Release {
        /// Token.
        token: u64,
    },
    /// The key of the record with an open reference under `token`, as the bytes of an
    /// [`ActionResult::Value`]; [`ErrorKind::NotFound`] when there is none.
    Locate {
        /// Token.
        token: u64,
    },
    /// Unlink to orphan: take the record's key away. A record with open references gets the key
    /// `to` and keeps them, any other is removed. `to` is no longer than `key`; when both are the
    /// same, a record with open references stays. Result: [`ActionResult::Number`]:
    /// [`UNLINKED_NONE`], [`UNLINKED_REMOVED`] or [`UNLINKED_KEPT`].
    Detach {
        /// Key.
        key: &'a [u8],
        /// Key that a record with open references gets.
        to: &'a [u8],
    },
    /// The open references of the record, as the bytes of an [`ActionResult::Value`]: token and
    /// client, 8 bytes each. [`ErrorKind::TooLarge`] over [`crate::limits::HOLDERS_LEN_MAX`].
    Holders {
        /// Key.
        key: &'a [u8],
    },
    /// Give the record exactly the open references `holders`, as of [`Action::Holders`]. Result:
    /// [`ActionResult::Number`], how many there were.
    SetHolders {
        /// Key.
        key: &'a [u8],
        /// Tokens and clients.
        holders: &'a [u8],
    },
    /// Move the open references of `from` to `to`, both keys of this partition. Result:
    /// [`ActionResult::Number`], how many they are.
    MoveHolds {
        /// Key.
        from: &'a [u8],
        /// Key.
        to: &'a [u8],
    },
}

/// Result of [`Action::Detach`]: there was no such record.
pub const UNLINKED_NONE: u64 = 0;
/// Result of [`Action::Detach`]: the record had no open references, it is gone.
pub const UNLINKED_REMOVED: u64 = 1;
/// Result of [`Action::Detach`]: the record has open references, and has the other key now.
pub const UNLINKED_KEPT: u64 = 2;

/// The records that an action changes; see [`Action::touched`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TouchedRecords<'a> {
    /// None.
    Nothing,
    /// That of this key.
    Key(&'a [u8]),
    /// That of the first key, which goes, or has the second one from then on.
    Moved(&'a [u8], &'a [u8]),
    /// Every record whose key starts so.
    Prefix(&'a [u8]),
}

impl<'a> Action<'a> {
    /// The records that this action changes. Delegations, change counters and copies under way rely
    /// on it: none may be missing, so each kind is named.
    #[must_use]
    pub const fn touched(&self) -> TouchedRecords<'a> {
        match self {
            Self::Put { key, .. }
            | Self::Delete { key }
            | Self::Write { key, .. }
            | Self::Append { key, .. }
            | Self::Truncate { key, .. }
            | Self::Add { key, .. }
            | Self::Max { key, .. }
            | Self::Advance { key, .. }
            | Self::Punch { key, .. } => TouchedRecords::Key(key),
            Self::Detach { key, to } => TouchedRecords::Moved(key, to),
            Self::DeletePrefix { prefix, .. } => TouchedRecords::Prefix(prefix),
            Self::Get { .. }
            | Self::List { .. }
            | Self::Extents { .. }
            | Self::Lease { .. }
            | Self::RaiseLease { .. }
            | Self::Hold { .. }
            | Self::Release { .. }
            | Self::Locate { .. }
            | Self::Holders { .. }
            | Self::SetHolders { .. }
            | Self::MoveHolds { .. } => TouchedRecords::Nothing,
        }
    }

    /// Whether this action may change records, or open references in a way that must happen exactly
    /// once. Taking and releasing an open reference are neither: doing them again changes nothing.
    #[must_use]
    pub const fn is_mutation(&self) -> bool {
        !matches!(
            self,
            Self::Get { .. }
                | Self::List { .. }
                | Self::Extents { .. }
                | Self::Lease { .. }
                | Self::Hold { .. }
                | Self::Release { .. }
                | Self::Locate { .. }
                | Self::Holders { .. }
        )
    }
}

impl<'a> Guard<'a> {
    /// Key of the record that it is about; `None`: it is about several.
    #[must_use]
    pub const fn record(&self) -> Option<&'a [u8]> {
        match self {
            Self::Exists(key)
            | Self::Absent(key)
            | Self::VersionIs(key, _)
            | Self::LenAtMost(key, _)
            | Self::BytesAre { key, .. } => Some(key),
            Self::PrefixEmpty(_) => None,
        }
    }
}

/// An atomic step on one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operation<'a> {
    /// Partition it works on.
    pub partition: PartitionId,
    /// Sequence number within the client session; `Seq(0)` when nothing is changed.
    /// The client library fills it in.
    pub seq: Seq,
    /// When a guard on a key fails, return up to this many bytes of the record that is there.
    pub reveal_len: u32,
    /// Conditions.
    pub guards: List<Guard<'a>, 2>,
    /// Effects and questions, done in this order.
    pub actions: PerAction<Action<'a>>,
}

impl<'a> Operation<'a> {
    /// An operation with the given actions and no guards.
    #[inline]
    #[must_use]
    pub fn new(partition: PartitionId, actions: impl IntoIterator<Item = Action<'a>>) -> Self {
        Self {
            partition,
            seq: Seq(0),
            reveal_len: 0,
            guards: List::new(),
            actions: actions.into_iter().collect(),
        }
    }

    /// The same with one more guard.
    #[inline]
    #[must_use]
    pub fn guard(mut self, guard: Guard<'a>) -> Self {
        self.guards.push(guard);
        self
    }

    /// The same, returning up to `len` bytes of the record that made a guard fail.
    #[inline]
    #[must_use]
    pub const fn reveal(mut self, len: u32) -> Self {
        self.reveal_len = len;
        self
    }

    /// Read the whole value of `key`.
    #[inline]
    #[must_use]
    pub fn get(partition: PartitionId, key: &'a [u8]) -> Self {
        Self::new(partition, [Action::Get { key, offset: 0, len: u32::MAX }])
    }

    /// Set the value of `key`.
    #[inline]
    #[must_use]
    pub fn put(partition: PartitionId, key: &'a [u8], value: &'a [u8]) -> Self {
        Self::new(partition, [Action::Put { key, data: ValueData::Inline(value) }])
    }

    /// Whether any action may change the partition; such an operation needs a sequence number.
    #[inline]
    #[must_use]
    pub fn is_mutation(&self) -> bool {
        self.actions.iter().any(Action::is_mutation)
    }

    /// Whether it asks for a delegation on a record.
    #[inline]
    #[must_use]
    pub fn takes_delegation(&self) -> bool {
        self.actions.iter().any(|action| matches!(action, Action::Lease { .. }))
    }

    /// Whether it does nothing but look at records: any member of a mirror group could do that.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        self.actions.iter().all(|action| {
            matches!(action, Action::Get { .. } | Action::List { .. } | Action::Extents { .. })
        })
    }
}

/// Result of one action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionResult<'a> {
    /// Of [`Action::Get`], [`Action::Locate`], [`Action::Holders`].
    Value {
        /// Version of the record.
        version: Version,
        /// Whole length of its value, in bytes.
        total_len: u32,
        /// The bytes asked for, in order: mostly one piece, several when the value has holes or lies in arena blocks.
        data: List<ValueData<'a>, 1>,
    },
    /// Of [`Action::Put`], [`Action::Write`], [`Action::Append`], [`Action::Truncate`].
    Written {
        /// Version of the record after.
        version: Version,
        /// Offset at which the bytes went.
        offset: u32,
        /// Length of the value after.
        total_len: u32,
        /// The record did not exist before.
        created: bool,
    },
    /// Of [`Action::Delete`].
    Deleted {
        /// The record existed.
        existed: bool,
    },
    /// Of [`Action::Add`], [`Action::Max`], [`Action::DeletePrefix`], [`Action::Punch`],
    /// [`Action::RaiseLease`], [`Action::Lease`], and of most actions on open references.
    Number(u64),
    /// Of [`Action::List`], [`Action::Extents`].
    Listing(ListingEntries<'a>),
}

/// Why an operation had no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationFailure<'a> {
    /// Kind of the error; [`ErrorKind::Conflict`] when a guard did not hold.
    pub kind: ErrorKind,
    /// Which guard or action, counted from 0.
    pub index: u16,
    /// The record that made a guard fail, when [`Operation::reveal_len`] asked for it: version, whole length, first bytes.
    pub current: Option<(Version, u32, &'a [u8])>,
}

/// Outcome of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationOutcome<'a> {
    /// Took effect; one result for each action.
    Done(List<ActionResult<'a>, 2>),
    /// Had no effect.
    Failed(OperationFailure<'a>),
}

/// Fields that all operations of a request share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Dataset.
    pub dataset: DatasetId,
    /// Epoch of the cluster map by which the client chose this node.
    pub map_epoch: Epoch,
    /// Name-space generation of the client's cached directories; `Epoch(u64::MAX)`: it used none.
    pub name_space_generation: Epoch,
    /// Every mutation with a smaller sequence number has been answered: the node may forget its result.
    pub answered_below: Seq,
    /// This may be a repetition of a request that was sent before.
    pub is_retry: bool,
}

/// A decoded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationRequest<'a> {
    /// Shared fields.
    pub header: RequestHeader,
    /// Operations, at least one.
    pub operations: Vec<Operation<'a>>,
}

/// Fields that all outcomes of a reply share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// `None` when the operations were tried; otherwise why none was ([`ErrorKind::StaleMap`], [`ErrorKind::Busy`], …).
    pub refused: Option<ErrorKind>,
    /// The node's cluster map epoch.
    pub map_epoch: Epoch,
    /// The dataset's name-space generation at this node.
    pub name_space_generation: Epoch,
}

/// A decoded reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationReply<'a> {
    /// Shared fields.
    pub header: ReplyHeader,
    /// One outcome for each operation, in their order; empty when refused.
    pub outcomes: Vec<OperationOutcome<'a>>,
    /// Blocks that this connection may fill for later writes (shared memory only).
    ///
    /// A client gives up every block that its request names, whatever becomes of the operations, also when the request is
    /// refused: those it may use again are listed here, with new ones in place of those that were used.
    pub grants: List<BlockRef, 4>,
}
