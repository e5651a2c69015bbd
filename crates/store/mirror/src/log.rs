//! The entries that some secondary has not acknowledged yet.

use std::collections::VecDeque;
use std::sync::Arc;

use samite_backend::ValuePiece;
use samite_types::{Position, Term};
use samite_wire::peer::{PartitionLogEntry, PeerEnvelope, PeerMessage};

use crate::packet::{Payload, PeerPacket};

/// Most entries that are kept, and most bytes of them. Beyond, the primary takes no changes until
/// followers have caught up.
const ENTRIES_MAX: usize = 4096;
const LEN_MAX: usize = 8 << 20;

/// An entry, encoded. A clone shares its bytes.
#[derive(Clone, Debug)]
pub struct LogEntry {
    position: Position,
    term: Term,
    /// With the tag of a message in front.
    pub(crate) message: Arc<[u8]>,
    pub(crate) payload: Payload,
}

impl LogEntry {
    /// Encodes `entry`, whose inline data is in `payload`.
    pub(crate) fn new(entry: PartitionLogEntry<'_>, payload: Vec<ValuePiece>) -> Self {
        let (position, term) = (entry.after.position, entry.after.term);
        let mut message = Vec::with_capacity(128);
        PeerMessage::Entry(entry).encode(&mut message);
        Self { position, term, message: message.into(), payload: payload.into() }
    }

    /// Encodes `entry` with a copy of its data.
    pub(crate) fn copied(entry: &PartitionLogEntry<'_>) -> Self {
        let mut payload = Vec::new();
        entry.payload(&mut |bytes| payload.push(ValuePiece::Bytes(bytes.into())));
        Self::new(entry.clone(), payload)
    }

    /// As a part of the entries that another member may lack.
    pub(crate) fn as_tail(&self, envelope: &PeerEnvelope) -> PeerPacket {
        PeerPacket::shared(envelope, &PeerMessage::tail_of(self.body()).into(), &self.payload)
    }

    /// Its number.
    #[must_use]
    pub const fn position(&self) -> Position {
        self.position
    }

    /// Its term.
    #[must_use]
    pub const fn term(&self) -> Term {
        self.term
    }

    /// The result of [`PartitionLogEntry::decode`], the payload aside.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.message[1..]
    }

    /// Its payload, in order: no piece is a hole.
    #[must_use]
    pub fn payload(&self) -> &[ValuePiece] {
        &self.payload
    }

    fn len(&self) -> usize {
        self.message.len() + self.payload.iter().map(ValuePiece::len).sum::<usize>()
    }
}

/// Entries without a gap between them.
#[derive(Debug, Default)]
pub(crate) struct EntryLog {
    /// With the costs of all entries up to each.
    entries: VecDeque<(LogEntry, u64)>,
    len: usize,
    total: u64,
}

impl EntryLog {
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= ENTRIES_MAX || self.len >= LEN_MAX
    }

    /// Appends an entry that takes at most `cost` bytes of a member.
    pub(crate) fn push(&mut self, entry: LogEntry, cost: u64) {
        if self.last().is_some_and(|last| last.get() + 1 != entry.position.get()) {
            self.clear();
        }
        self.len += entry.len();
        self.total += cost;
        self.entries.push_back((entry, self.total));
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.len = 0;
    }

    /// The last entry that is kept.
    pub(crate) fn last(&self) -> Option<Position> {
        self.entries.back().map(|(entry, _)| entry.position)
    }

    /// No member needs the entries up to `position` any more.
    pub(crate) fn trim(&mut self, position: Position) {
        while let Some((first, _)) = self.entries.front()
            && first.position <= position
        {
            self.len -= first.len();
            self.entries.pop_front();
        }
    }

    /// Entry `position`, if it is kept.
    pub(crate) fn get(&self, position: Position) -> Option<&LogEntry> {
        self.at(position).map(|(entry, _)| entry)
    }

    /// The costs of all entries up to `position`, if that is kept.
    pub(crate) fn total_at(&self, position: Position) -> Option<u64> {
        self.at(position).map(|(_, total)| *total)
    }

    /// The costs of all entries that there were.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    fn at(&self, position: Position) -> Option<&(LogEntry, u64)> {
        let first = self.entries.front()?.0.position;
        let index = position.get().checked_sub(first.get())?;
        self.entries.get(usize::try_from(index).ok()?)
    }
}
