//! A member that follows the log.

use std::time::Duration;

use samite_backend::QuotaLimit;
use samite_partition::{AppliedOutcome, CursorFlow, NoGrants, PartitionCursor, RequestContext};
use samite_types::{ErrorKind, TargetId, Version};
use samite_wire::peer::{EntryEvent, PartitionLogEntry, PeerMessage, RecordCopy};

use super::MirroredPartition;
use crate::digest;
use crate::log::LogEntry;

impl MirroredPartition {
    /// A message from the primary of the newest term.
    pub(super) fn follow(&mut self, from: TargetId, message: &PeerMessage<'_>, now: Duration) {
        let entry = match message {
            PeerMessage::Entry(entry) => entry,
            PeerMessage::LendReads { asked, position } => {
                return self.granted(*asked, *position, now);
            }
            PeerMessage::AskRoom { number, position, claim, need, wanted } if self.is_fit => {
                self.primary = from;
                return self.room_asked((*number, *position), *claim, (*need, *wanted));
            }
            _ => return self.resync_message(from, message),
        };
        if !self.is_fit {
            // While it is brought up to date, entries that are too early come again.
            if self.sink.is_none() {
                self.answer(
                    from,
                    &PeerMessage::Unfit {
                        position: entry.after.position,
                        kind: ErrorKind::NotFound,
                    },
                );
            }
            return;
        }
        self.partition.set_follows(true);
        self.kept.open(&mut self.partition);
        self.primary = from;
        let (position, here) = (entry.after.position, self.at.position);
        if position.get() > here.get() + 1 {
            return self.answer(from, &PeerMessage::Gap { have: here });
        }
        if position > here {
            if let Err(kind) = self.step(entry, now) {
                self.become_unfit();
                return self.answer(from, &PeerMessage::Unfit { position, kind });
            }
            self.log.clear();
            if self.appends {
                self.effects.append(LogEntry::copied(entry));
            }
        } else if entry.after.term > self.at.term {
            // Here are entries that the primary never had.
            self.become_unfit();
            return self.answer(from, &PeerMessage::Unfit { position, kind: ErrorKind::Corrupt });
        }
        if self.at.term < self.term && !self.rules.ignores_terms {
            // The term's first entry will show whether the records here are those of the primary.
            return self.answer(from, &PeerMessage::Gap { have: self.at.position });
        }
        self.acknowledge();
    }

    /// Says how far entries are applied, and on flash where they have to be.
    pub(super) fn acknowledge(&mut self) {
        if self.reads.withholds() {
            // The entry comes again.
            return;
        }
        let position = self.logged.map_or(self.at.position, |logged| logged.min(self.at.position));
        let message = self.applied(position);
        self.effects.acknowledge(self.primary, message);
    }

    /// This member does not follow any more, until it is brought up to date.
    pub(super) fn become_unfit(&mut self) {
        self.is_fit = false;
        self.kept.close(&mut self.partition);
    }

    /// Applies the next entry. Returns the most that it takes of a member, in bytes. A failure
    /// leaves the partition unfit to follow.
    pub(super) fn step(
        &mut self,
        entry: &PartitionLogEntry<'_>,
        now: Duration,
    ) -> Result<u64, ErrorKind> {
        if entry.before != self.at {
            return Err(ErrorKind::Corrupt);
        }
        self.happen(entry, now)?;
        if self.partition.version() != entry.after.version {
            return Err(self.differ());
        }
        self.at = entry.after;
        let cost = self.partition.take_charge();
        self.kept.used(cost, &mut self.partition);
        self.note_touched();
        Ok(cost)
    }

    fn happen(&mut self, entry: &PartitionLogEntry<'_>, now: Duration) -> Result<(), ErrorKind> {
        match &entry.event {
            EntryEvent::Opened => self.partition.begin_term(entry.after.term),
            EntryEvent::Applied { .. } => return self.repeat(entry),
            EntryEvent::Refused { client, answered_below, seq, kind, index } => {
                self.partition.refuse(*client, (*seq, *answered_below), (*kind, *index));
            }
            EntryEvent::Gone { client } => self.partition.drop_client(*client),
            EntryEvent::Lending { on } => self.grants_delegations = *on,
            EntryEvent::Digest { after, upto, digest } => {
                self.compare_range((after, upto), *digest, now)?;
            }
            EntryEvent::Range { after, upto, records } => self.replace(after, upto, records)?,
        }
        Ok(())
    }

    /// Applies an operation that the primary has applied.
    fn repeat(&mut self, entry: &PartitionLogEntry<'_>) -> Result<(), ErrorKind> {
        let EntryEvent::Applied {
            client,
            answered_below,
            is_retry,
            name_space_generation,
            operation,
        } = &entry.event
        else {
            return Err(ErrorKind::Internal);
        };
        let context = RequestContext {
            answered_below: *answered_below,
            is_retry: *is_retry,
            name_space_generation: *name_space_generation,
            body_len_max: 0,
            now: Duration::ZERO,
            delegation_term_max: Duration::ZERO,
            reads_in_place: false,
            grants_all_delegations: false,
        };
        match self.partition.apply(*client, &context, operation, &mut NoGrants) {
            AppliedOutcome::Done(outputs)
                if digest::of_outcome(operation, &outputs) == entry.outcome =>
            {
                Ok(())
            }
            AppliedOutcome::Done(_) => Err(self.differ()),
            // There is no room, or the store does not answer: the records here are right, as far
            // as they go.
            AppliedOutcome::Failed {
                kind: kind @ (ErrorKind::NoSpace | ErrorKind::Io), ..
            } => Err(kind),
            // A record that it reads is damaged here. It will come whole, for its version is
            // another then.
            AppliedOutcome::Failed { kind: ErrorKind::Corrupt, .. } => Err(ErrorKind::Corrupt),
            AppliedOutcome::Failed { .. } => Err(self.differ()),
        }
    }

    /// This copy is not the primary's, and versions do not tell where.
    fn differ(&mut self) -> ErrorKind {
        self.is_doubtful = true;
        ErrorKind::Corrupt
    }

    /// Makes the records of a range those of the primary.
    fn replace(
        &mut self,
        after: &[u8],
        upto: &[u8],
        records: &[RecordCopy<'_>],
    ) -> Result<(), ErrorKind> {
        let mut cursor = PartitionCursor::range(after, upto);
        let here = cursor.next_batch(&self.partition, &mut |_, _| CursorFlow::Take)?;
        let is_gone = |key: &[u8]| records.iter().all(|record| record.key != key);
        for (key, _) in here.iter().filter(|(key, _)| is_gone(key)) {
            let gone = RecordCopy { key, version: Version(0), value: None };
            self.partition.install(&gone, QuotaLimit::Whole)?;
        }
        for record in records {
            self.partition.install(record, QuotaLimit::Whole)?;
        }
        Ok(())
    }
}
