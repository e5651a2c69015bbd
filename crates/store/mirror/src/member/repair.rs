//! Records whose bytes are damaged here, and how they are put right from another member.
//!
//! Damage is found when the bytes are read or scrubbed. Equal versions mean equal values, so any
//! member that follows the log and whose own bytes are undamaged can help: the bytes that it sends
//! are taken when they are of the version that is here. Until then no client is told the bytes; a
//! client that asks the primary is asked to come again, and only when no member can help is it an
//! error. That is no entry of the log: nothing changes.

use std::time::Duration;

use samite_partition::RecordKey;
use samite_types::{ErrorKind, TargetId, Version};
use samite_wire::peer::{PeerEnvelope, PeerMessage, RecordCopy};
use smallvec::SmallVec;

use super::MirroredPartition;
use crate::copy_source::{CopiedRecord, pieces_of};
use crate::effects::MirrorEffect;
use crate::packet::PeerPacket;
use crate::role::MemberRole;

impl MirroredPartition {
    /// Records that are damaged here, as far as that is known.
    #[must_use]
    pub fn damaged(&self) -> usize {
        self.damage.count()
    }

    /// Takes note of a record that was found damaged, and asks for it elsewhere. Returns the answer
    /// to a client that asks for it.
    #[cold]
    pub(super) fn note_damage(&mut self, keys: Vec<RecordKey>, now: Duration) -> ErrorKind {
        let mut keys = keys;
        keys.extend(self.partition.take_damaged());
        for key in &keys {
            if self.damage.note(key, now) {
                self.effects.record(MirrorEffect::Damaged { key: key.clone() });
            }
        }
        self.mend_due(now);
        if keys.iter().any(|key| self.damage.is_lost(key)) {
            ErrorKind::Corrupt
        } else {
            ErrorKind::Unavailable
        }
    }

    /// Members that may have the records that are damaged here.
    fn helpers(&self) -> SmallVec<[TargetId; 2]> {
        match &self.role {
            MemberRole::Primary(primary) => {
                let peers = primary.peers.iter().filter(|peer| peer.follows());
                peers.map(|peer| peer.target).collect()
            }
            MemberRole::Secondary if self.is_fit => SmallVec::from_slice(&[self.primary]),
            _ => SmallVec::new(),
        }
    }

    /// Looks at all damaged records again: they may have been overwritten, and somebody may be able
    /// to help now.
    pub(super) fn look_again(&mut self, now: Duration) {
        self.damage.look_again(now);
        self.mend_due(now);
    }

    /// Asks for the records that are due.
    pub(super) fn mend_due(&mut self, now: Duration) {
        let (helpers, envelope) = (self.helpers(), self.envelope(TargetId(0)));
        for key in self.damage.due(now) {
            if self.partition.is_right(&key) {
                // It was overwritten, or removed.
                self.mended(&key);
                continue;
            }
            let retry = self.is_group.then_some(now + self.times.resync_again);
            let helper = self.damage.ask(&key, &helpers, now + self.times.retransmit, retry);
            if let Some(to) = helper {
                let envelope = PeerEnvelope { to, ..envelope };
                self.effects.send(PeerPacket::new(&envelope, &PeerMessage::Fetch { key: &key }));
            }
        }
    }

    fn mended(&mut self, key: &[u8]) {
        if self.damage.mended(key) {
            self.effects.record(MirrorEffect::Mended { key: key.into() });
        }
    }

    /// Another member's bytes of a record are damaged.
    pub(super) fn fetch_asked(&mut self, from: TargetId, key: &[u8], now: Duration) {
        let can_help = self.is_fit && !matches!(self.role, MemberRole::Out);
        let found = if can_help { self.partition.read_record(key) } else { Ok(None) };
        if found.is_err() {
            self.note_damage(Vec::new(), now);
        }
        let (version, value) = match found {
            Ok(Some((meta, pieces))) => (meta.version, Some(pieces)),
            _ => (Version(0), None),
        };
        let copied = [CopiedRecord { key: key.into(), version, value }];
        let mut body = Vec::with_capacity(64);
        PeerMessage::Fetched { record: copied[0].as_copy() }.encode(&mut body);
        let envelope = self.envelope(from);
        let packet = PeerPacket::shared(&envelope, &body.into(), &pieces_of(&copied).into());
        self.effects.send(packet);
    }

    /// A record's state at another member.
    pub(super) fn fetched(&mut self, from: TargetId, record: &RecordCopy<'_>, now: Duration) {
        if !self.damage.has(record.key) {
            return;
        }
        if record.value.is_none() {
            self.damage.cannot_help(record.key, from, now);
            return self.mend_due(now);
        }
        // At another version it is asked for again: one of the two is behind.
        if self.partition.put_right(record) {
            self.mended(record.key);
        }
    }
}
