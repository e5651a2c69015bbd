//! Messages between nodes.
//!
//! The body of a frame ([`FrameKind::Peer`](crate::frame::FrameKind::Peer),
//! [`FrameKind::PeerReply`](crate::frame::FrameKind::PeerReply)) begins with the number of a
//! [service](PeerService). For [`PeerService::Mirror`], any number of messages between the members
//! of mirror groups follow, of any partitions and either way. Each may be lost, come twice or come
//! late: a member that needs an answer asks again. A message is:
//!
//! ```text
//!  0         4            8        12          16     20   24     28      36     37
//!  | body_len | payload_len | dataset | partition | from | to | term | epoch | tag | fields …
//! ```
//!
//! `body_len` counts from the tag on. The payloads of the messages lie one behind the other in the
//! frame's.
//!
//! The **log** of a partition is what its primary did to it, in order: [`PartitionLogEntry`].
//! Members that have applied the same entries have the same state.

mod decode;
mod encode;
mod service;

use samite_types::{
    ClientId, DatasetId, Epoch, ErrorKind, PartitionId, Position, Seq, TargetId, Term, Version,
};

use crate::op::{List, Operation, ValueData};

pub use decode::PeerMessages;
pub use encode::data_of;
pub use service::PeerService;

/// Bytes of a message before its tag.
pub const HEAD_LEN: usize = 36;

/// Fields that all messages have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerEnvelope {
    /// Dataset.
    pub dataset: DatasetId,
    /// Partition.
    pub partition: PartitionId,
    /// The sender.
    pub from: TargetId,
    /// The receiver.
    pub to: TargetId,
    /// Newest term of the group that the sender knows; of a primary, its own.
    pub term: Term,
    /// Epoch of the cluster map by which the sender serves.
    pub epoch: Epoch,
}

/// A place in the log, and what the partition is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPoint {
    /// Term of the last entry.
    pub term: Term,
    /// Its number.
    pub position: Position,
    /// The partition's version after it.
    pub version: Version,
}

/// One step of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionLogEntry<'a> {
    /// Where the log was before; the entry has the next position.
    pub before: LogPoint,
    /// Where it is after.
    pub after: LogPoint,
    /// Checksum of what came of it: whoever applies it must get the same.
    pub outcome: u32,
    /// The event.
    pub event: EntryEvent<'a>,
}

/// Events of a partition's log.
#[allow(
    clippy::large_enum_variant,
    reason = "one at a time, on the stack; the large ones are the usual ones"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryEvent<'a> {
    /// A term begins.
    Opened,
    /// An operation took effect.
    Applied {
        /// The client of the session.
        client: ClientId,
        /// See [`crate::op::RequestHeader::answered_below`].
        answered_below: Seq,
        /// See [`crate::op::RequestHeader::is_retry`].
        is_retry: bool,
        /// See [`crate::op::RequestHeader::name_space_generation`].
        name_space_generation: Epoch,
        /// As it came, with all of its data inline or zeros.
        operation: Operation<'a>,
    },
    /// An operation that may have been sent before was refused for good.
    Refused {
        /// The client of the session.
        client: ClientId,
        /// See [`crate::op::RequestHeader::answered_below`].
        answered_below: Seq,
        /// Number of the operation.
        seq: Seq,
        /// Why.
        kind: ErrorKind,
        /// Which guard or action.
        index: u16,
    },
    /// A client is gone; its open references end.
    Gone {
        /// Which.
        client: ClientId,
    },
    /// From here on the primary may have granted delegations, or has granted none any more.
    Lending {
        /// Whether it may.
        on: bool,
    },
    /// Digest of the records of a range: a member that finds another digest differs.
    Digest {
        /// The range begins behind this key; empty: at the first.
        after: &'a [u8],
        /// The range ends with this key; empty: with the last.
        upto: &'a [u8],
        /// Digest of their keys, versions and values.
        digest: u64,
    },
    /// The records of a range as the primary has them; there are no others in it.
    Range {
        /// The range begins behind this key; empty: at the first.
        after: &'a [u8],
        /// The range ends with this key; empty: with the last.
        upto: &'a [u8],
        /// All of them, in order.
        records: Vec<RecordCopy<'a>>,
    },
}

impl EntryEvent<'_> {
    /// Whether a client asked for what made it.
    #[must_use]
    pub fn is_clients(&self) -> bool {
        matches!(self, Self::Applied { .. } | Self::Refused { .. })
    }
}

/// A record as it travels; with [`Option::None`] as its value one that is no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordCopy<'a> {
    /// Key.
    pub key: &'a [u8],
    /// Version; of no meaning for one that is no more.
    pub version: Version,
    /// Its value, in pieces: inline bytes and zeros.
    pub value: Option<List<ValueData<'a>, 1>>,
}

/// A message.
#[allow(
    clippy::large_enum_variant,
    reason = "one at a time, on the stack; the large ones are the usual ones"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerMessage<'a> {
    /// To a member: apply this.
    Entry(PartitionLogEntry<'a>),
    /// To the primary: everything up to here is applied.
    Applied {
        /// The last entry; of durable data, the last that is on flash.
        position: Position,
        /// The last entry that is applied.
        here: Position,
        /// Bytes that are reserved there for entries to come.
        room: u64,
        /// The target has something left for changes that make room.
        has_reserve: bool,
        /// The last [`PeerMessage::AskRoom`] that was heeded; 0: none.
        answers: u32,
    },
    /// To a member: keep so much room for entries to come.
    AskRoom {
        /// Number of the question; not 0.
        number: u32,
        /// The last entry before the question.
        position: Position,
        /// From that entry on the primary counts on no more than this, in bytes.
        claim: u64,
        /// Bytes that it needs.
        need: u64,
        /// Bytes that it would like.
        wanted: u64,
    },
    /// To the primary: an entry came for which others are missing.
    Gap {
        /// The last entry that is applied.
        have: Position,
    },
    /// To the primary: this member does not follow the log any more, until it is brought up to date anew.
    Unfit {
        /// The entry that it did not apply.
        position: Position,
        /// Why: [`ErrorKind::Corrupt`] when its state differs, else what stood in the way of an entry.
        kind: ErrorKind,
    },
    /// To the primary: the records of this range were others than an [`EntryEvent::Digest`] said.
    Differs {
        /// The range begins behind this key; empty: at the first.
        after: &'a [u8],
        /// The range ends with this key; empty: with the last.
        upto: &'a [u8],
    },
    /// To the primary: may this member answer what only reads, and is all up to here committed?
    AskReads {
        /// When it asks, on its own clock, in nanoseconds.
        asked: u64,
        /// The last entry that it has applied.
        position: Position,
    },
    /// To a member: it may, for a while from when it asked; nothing is acknowledged without it until then.
    LendReads {
        /// That of the question.
        asked: u64,
        /// All entries up to here are committed; no fewer than it asked for.
        position: Position,
    },
    /// To a good member, of whoever is to be the primary and does not decide yet: what have you applied beyond this entry?
    AskTail {
        /// The last entry that the sender has applied.
        have: Position,
    },
    /// Answers a [`PeerMessage::AskTail`]: an entry beyond that, of the term in which it was applied.
    Tail(PartitionLogEntry<'a>),
    /// Answers a [`PeerMessage::AskTail`], behind what was sent as [`PeerMessage::Tail`].
    TailEnd {
        /// The last entry that the sender has, or if that is more than it can hand over, the one
        /// that it was asked about.
        upto: Position,
    },
    /// To another member: the sender's own bytes of this record are damaged; what are they there?
    Fetch {
        /// Its key.
        key: &'a [u8],
    },
    /// Answers a [`PeerMessage::Fetch`]. Equal versions mean equal values.
    Fetched {
        /// The record; without a value when this member cannot help.
        record: RecordCopy<'a>,
    },
    /// To whoever takes itself for the primary: there is a newer term (that of the envelope).
    Stale,
    /// To a member: you will be brought up to date.
    Begin {
        /// Which try; grows within a term.
        attempt: u32,
    },
    /// To a member: these are all the records of a range. It deletes others, and says which of these it lacks.
    Compare {
        /// Which try.
        attempt: u32,
        /// Which step of it.
        step: u32,
        /// The range begins behind this key; empty: at the first.
        after: &'a [u8],
        /// The range ends with this key; empty: with the last.
        upto: &'a [u8],
        /// Keys and versions, in order.
        records: Vec<(&'a [u8], Version)>,
    },
    /// To a member: keep these.
    Records {
        /// Which try.
        attempt: u32,
        /// Which step of it.
        step: u32,
        /// The records.
        records: Vec<RecordCopy<'a>>,
    },
    /// To a member: a part of what the partition is beside its records. With the last part the member is up to date, and follows the log.
    State {
        /// Which try.
        attempt: u32,
        /// Which step of it.
        step: u32,
        /// Bytes of the whole.
        total_len: u32,
        /// Where these bytes belong.
        offset: u32,
        /// The part.
        bytes: &'a [u8],
    },
    /// To the primary: the step is done.
    Done {
        /// Which try.
        attempt: u32,
        /// Which step of it; 0 for its beginning.
        step: u32,
        /// Not all of it: the step is to be sent again.
        again: bool,
        /// This member serves clients meanwhile, and the messages to come must not make them wait.
        is_busy: bool,
        /// Of a [`PeerMessage::Compare`]: one bit for each record that is wanted, the first in the lowest bit of the first byte.
        wanted: &'a [u8],
    },
    /// To the primary: this member cannot go on with that try.
    Lost {
        /// Which try.
        attempt: u32,
        /// [`ErrorKind::NotFound`]: it knows nothing of it; else what stood in the way.
        kind: ErrorKind,
    },
}
