//! Outcomes of operations, owned.

use std::fmt;
use std::sync::Arc;

use samite_arena::ArenaView;
use samite_types::{Error, ErrorKind, Result, Version};
use samite_wire::op::{List, ListEntry, ListedValue, ListingEntries};

/// The outcome of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedOutcome {
    /// Took effect; one result for each action.
    Done(List<OwnedResult, 2>),
    /// Had no effect.
    Failed(OwnedFailure),
}

/// The result of one action; see [`samite_wire::op::ActionResult`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedResult {
    /// Of a `Get`.
    Value {
        /// Version of the record.
        version: Version,
        /// Whole length of its value, in bytes.
        total_len: u32,
        /// Bytes read: the length of `data`, or how many landed in the operation's `dest`.
        len: usize,
        /// The bytes, unless they landed in `dest`.
        data: Vec<u8>,
    },
    /// Of a `Put`, `Write`, `Append` or `Truncate`.
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
    /// Of a `Delete`.
    Deleted {
        /// The record existed.
        existed: bool,
    },
    /// Of an `Add`, `Max`, `DeletePrefix`, `Punch`, `RaiseLease` or `Lease`.
    Number(u64),
    /// Of a `List` or `Extents`.
    Listing {
        /// There is nothing after the last entry.
        complete: bool,
        /// Entries in the order of the listing.
        entries: OwnedEntries,
    },
}

/// The entries of a listing, in one piece of memory.
#[derive(Clone, Default)]
pub struct OwnedEntries {
    count: u32,
    raw: Vec<u8>,
    /// Where the values lie that entries refer to.
    arena: Option<Arc<ArenaView>>,
}

impl OwnedEntries {
    pub(crate) fn new(
        listing: &ListingEntries<'_>,
        arena: impl FnOnce() -> Option<Arc<ArenaView>>,
    ) -> Self {
        let refers = listing.entries().any(|one| matches!(one.value, ListedValue::Blocks(_)));
        let arena = if refers { arena() } else { None };
        Self { count: listing.count, raw: listing.raw().to_vec(), arena }
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// There are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn listing(&self) -> ListingEntries<'_> {
        ListingEntries::again(true, self.count, &self.raw)
    }

    /// The entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = ListEntry<'_>> {
        self.listing().entries()
    }

    /// The first one.
    #[must_use]
    pub fn first(&self) -> Option<ListEntry<'_>> {
        self.iter().next()
    }

    /// The entries, each in memory of its own.
    #[must_use]
    pub fn to_vec(&self) -> Vec<OwnedEntry> {
        let own = |entry: ListEntry<'_>| OwnedEntry {
            key: entry.key.into(),
            version: entry.version,
            total_len: entry.total_len,
            value: entry.bytes().into(),
        };
        self.iter().map(own).collect()
    }

    /// The arena in which values lie that are referred to.
    pub(crate) fn arena(&self) -> Option<&ArenaView> {
        self.arena.as_deref()
    }
}

impl PartialEq for OwnedEntries {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

impl Eq for OwnedEntries {}

impl fmt::Debug for OwnedEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// One record in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedEntry {
    /// Key.
    pub key: Box<[u8]>,
    /// Version.
    pub version: Version,
    /// Whole length of the value, in bytes.
    pub total_len: u32,
    /// The first bytes of the value, as many as were asked for.
    pub value: Box<[u8]>,
}

/// Why an operation had no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedFailure {
    /// The error; [`ErrorKind::Conflict`] when a guard was not true.
    pub kind: ErrorKind,
    /// Which guard or action, counted from 0 (guards and actions each from 0).
    pub index: u16,
    /// The record that made a guard fail, when the operation asked for it.
    pub current: Option<GuardedRecord>,
}

/// The record that made a guard fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedRecord {
    /// Version of the record.
    pub version: Version,
    /// Whole length of its value, in bytes.
    pub total_len: u32,
    /// The first bytes of the value, as many as were asked for.
    pub bytes: Vec<u8>,
}

impl OwnedOutcome {
    /// The results, or the failure as an error named by `what` ("put \"k\"").
    ///
    /// # Errors
    /// The kind of the failure.
    pub fn into_results(self, what: impl std::fmt::Display) -> Result<List<OwnedResult, 2>> {
        match self {
            Self::Done(results) => Ok(results),
            Self::Failed(failure) => Err(failure.into_error(what)),
        }
    }

    /// Whether it took effect.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }

    /// The failure, if it had no effect.
    #[must_use]
    pub const fn failure(&self) -> Option<&OwnedFailure> {
        match self {
            Self::Done(_) => None,
            Self::Failed(failure) => Some(failure),
        }
    }
}

impl OwnedFailure {
    /// An error of the failure's kind, named by `what`.
    #[must_use]
    pub fn into_error(self, what: impl std::fmt::Display) -> Error {
        let cause = match self.kind {
            ErrorKind::NotFound => "no such record",
            ErrorKind::Invalid => "the operation makes no sense for this record",
            ErrorKind::Corrupt => {
                "what is stored is damaged, and no other copy could help; `samite scrub` tells of all such"
            }
            kind => kind.words(),
        };
        Error::new(self.kind, format!("{what}: {cause}"))
    }
}

impl OwnedResult {
    /// Of a write: the record's version and length after, and the offset at which the bytes went.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: the node answered something else.
    pub fn written(&self) -> Result<(Version, u32, u32)> {
        match *self {
            Self::Written { version, total_len, offset, .. } => Ok((version, total_len, offset)),
            _ => Err(self.unexpected("Written")),
        }
    }

    /// Of a read: the record's version and whole length, and how many bytes came.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: the node answered something else.
    pub fn value(&self) -> Result<(Version, u32, usize)> {
        match *self {
            Self::Value { version, total_len, len, .. } => Ok((version, total_len, len)),
            _ => Err(self.unexpected("Value")),
        }
    }

    /// Of a number.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: the node answered something else.
    pub fn number(&self) -> Result<u64> {
        match *self {
            Self::Number(value) => Ok(value),
            _ => Err(self.unexpected("Number")),
        }
    }

    /// Of a deletion: whether there was a record.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: the node answered something else.
    pub fn existed(&self) -> Result<bool> {
        match *self {
            Self::Deleted { existed } => Ok(existed),
            _ => Err(self.unexpected("Deleted")),
        }
    }

    fn unexpected(&self, expected: &str) -> Error {
        let got = match self {
            Self::Value { .. } => "Value",
            Self::Written { .. } => "Written",
            Self::Deleted { .. } => "Deleted",
            Self::Number(_) => "Number",
            Self::Listing { .. } => "Listing",
        };
        Error::new(ErrorKind::Corrupt, format!("reply: expected {expected}, got {got}"))
    }
}
