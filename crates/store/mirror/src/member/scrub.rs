//! Scrubbing of records at rest: for damage, and for differences between members.

use std::time::Duration;

use samite_partition::{CursorFlow, PartitionCursor, RecordKey};
use samite_types::{ErrorKind, Result};
use samite_wire::peer::{EntryEvent, PeerMessage};

use super::MirroredPartition;
use crate::copy_source::{CopiedRecord, copy_all, pieces_of};
use crate::effects::MirrorEffect;
use crate::peers::GroupPeer;
use crate::role::MemberRole;

/// Most records of one step, most bytes of one repair, and most records in it.
const COUNT_MAX: u64 = 1024;
const LEN_MAX: usize = 256 << 10;
const RECORDS_MAX: usize = 1024;

/// The findings of a step of scrubbing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubStep {
    /// Where the next one begins; `None`: this was the last.
    pub next: Option<Box<[u8]>>,
    /// Records that were looked at.
    pub records: u64,
    /// Bytes of their values.
    pub len: u64,
}

impl MirroredPartition {
    /// Looks at the records behind `after` (empty: from the first), about `len_max` bytes of them.
    /// A damaged record is put right from another member. Records of the primary are compared with
    /// the other members', in the order of all that happens to the partition, and the others get
    /// them where they differ.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn scrub_step(&mut self, after: &[u8], len_max: u64, now: Duration) -> Result<ScrubStep> {
        let mut cursor = PartitionCursor::range(after, &[]);
        let found = cursor.scrub_batch(&mut self.partition, (COUNT_MAX, len_max))?;
        let next = cursor.position();
        let is_whole = found.damaged.is_empty();
        if !is_whole {
            self.note_damage(found.damaged, now);
        }
        if next.is_none() {
            self.look_again(now);
        }
        let compares = match &self.role {
            MemberRole::Primary(primary) => primary.peers.iter().any(GroupPeer::follows),
            _ => false,
        };
        if compares && is_whole && !self.is_stuffed(now) {
            let upto = next.unwrap_or_default();
            let event = EntryEvent::Digest { after, upto, digest: found.digest };
            self.record(event, 0, Vec::new(), now);
        }
        Ok(ScrubStep { next: next.map(Box::from), records: found.records, len: found.len })
    }

    /// Whether it follows a primary: its records are looked at when the primary looks at its own.
    #[must_use]
    pub const fn is_led(&self) -> bool {
        matches!(self.role, MemberRole::Secondary) && self.is_fit && self.is_group
    }

    /// Compares a range with the primary's records there, at the same point of the log.
    pub(super) fn compare_range(
        &mut self,
        (after, upto): (&[u8], &[u8]),
        digest: u64,
        now: Duration,
    ) -> Result<(), ErrorKind> {
        if self.is_replaying {
            return Ok(());
        }
        let mut cursor = PartitionCursor::range(after, upto);
        let found = cursor.scrub_batch(&mut self.partition, (u64::MAX, u64::MAX))?;
        if !found.damaged.is_empty() {
            self.note_damage(found.damaged, now);
        } else if found.digest != digest {
            self.answer(self.primary, &PeerMessage::Differs { after, upto });
        }
        Ok(())
    }

    /// A member has other records in a range, undamaged as far as it knows: all members get those
    /// that are here.
    pub(super) fn mend(&mut self, after: &[u8], upto: &[u8], now: Duration) {
        if self.is_stuffed(now) {
            return;
        }
        let (mut count, mut len, mut cursor) = (0, 0, PartitionCursor::range(after, upto));
        let batch = cursor.next_batch(&self.partition, &mut |key, meta| {
            count += 1;
            len += key.len() + meta.len as usize;
            if len > LEN_MAX || count >= RECORDS_MAX {
                CursorFlow::TakeLast
            } else {
                CursorFlow::Take
            }
        });
        let copied = batch.and_then(|batch| copy_all(&self.partition, batch));
        let Ok(copied) = copied else {
            // A record that cannot be read here cannot be mended there.
            self.note_damage(Vec::new(), now);
            return;
        };
        let end = RecordKey::from(cursor.position().unwrap_or(upto));
        let records = copied.iter().map(CopiedRecord::as_copy).collect();
        let payload = pieces_of(&copied);
        self.record(EntryEvent::Range { after, upto: &end, records }, 0, payload, now);
        self.effects.record(MirrorEffect::Evened { upto: end });
    }
}
