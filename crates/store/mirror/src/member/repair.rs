//! Records whose bytes are damaged here, and how they are put right from another member.
//!
//! Damage is found when the bytes are read or scrubbed. Equal versions mean equal values, so any
//! member that follows the log and whose own bytes are undamaged can help: the bytes that it sends
//! are taken when they are of the version that is here. Until then no client is told the bytes; a
//! client that asks the primary is asked to come again, and only when no member can help is it an
//! error. That is no entry of the log: nothing changes.

use std::collections::BTreeMap;
use std::time::Duration;

use samite_partition::RecordKey;
use samite_types::{ErrorKind, TargetId, Version};
use samite_wire::peer::{PeerMessage, RecordCopy};
use smallvec::SmallVec;

use super::{MemberRole, MirroredPartition};
use crate::copy_source::{CopiedRecord, pieces_of};
use crate::effects::MirrorEffect;
use crate::packet::PeerPacket;

/// Most damaged records that are known of at a time; more are found when these are put right.
const DAMAGED_MAX: usize = 1024;

/// Records that are damaged here.
#[derive(Debug, Default)]
pub(super) struct DamagedRecords {
    records: BTreeMap<RecordKey, DamagedRecord>,
}

#[derive(Debug)]
struct DamagedRecord {
    /// When somebody is to be asked; `None`: there is nobody.
    at: Option<Duration>,
    /// The members that were asked and cannot help, since all were asked last.
    helpless: SmallVec<[TargetId; 2]>,
    /// All have been asked, and none can help.
    is_lost: bool,
}

impl DamagedRecords {
    /// When something is to be done.
    pub(super) fn next(&self) -> Option<Duration> {
        self.records.values().filter_map(|damaged| damaged.at).min()
    }
}

impl MirroredPartition {
    /// Records that are damaged here, as far as that is known.
    #[must_use]
    pub fn damaged(&self) -> usize {
        self.damage.records.len()
    }

    /// Takes note of a record that was found damaged, and asks for it elsewhere. Returns the answer
    /// to a client that asks for it.
    #[cold]
    pub(super) fn note_damage(&mut self, keys: Vec<RecordKey>, now: Duration) -> ErrorKind {
        let mut keys = keys;
        keys.extend(self.partition.take_damaged());
        for key in &keys {
            if self.damage.records.len() < DAMAGED_MAX && !self.damage.records.contains_key(key) {
                self.effects.record(MirrorEffect::Damaged { key: key.clone() });
                let damaged =
                    DamagedRecord { at: Some(now), helpless: SmallVec::new(), is_lost: false };
                self.damage.records.insert(key.clone(), damaged);
            }
        }
        self.mend_due(now);
        let is_lost =
            |key: &RecordKey| self.damage.records.get(key).is_some_and(|known| known.is_lost);
        if keys.iter().any(is_lost) { ErrorKind::Corrupt } else { ErrorKind::Unavailable }
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

    /// Looks at all damaged records again: they may have been overwritten, and somebody may be able to help now.
    pub(super) fn look_again(&mut self, now: Duration) {
        self.damage.records.values_mut().for_each(|damaged| damaged.at = Some(now));
        self.mend_due(now);
    }

    /// Asks for the records that are due.
    pub(super) fn mend_due(&mut self, now: Duration) {
        let due =
            self.damage.records.iter().filter(|(_, known)| known.at.is_some_and(|at| at <= now));
        let due: Vec<RecordKey> = due.map(|(key, _)| key.clone()).collect();
        let (helpers, envelope) = (self.helpers(), self.envelope(TargetId(0)));
        for key in due {
            if self.partition.is_right(&key) {
                // It was overwritten, or removed.
                self.mended(&key);
                continue;
            }
            let Some(damaged) = self.damage.records.get_mut(&key) else { continue };
            let helper = helpers.iter().find(|helper| !damaged.helpless.contains(helper));
            if let Some(helper) = helper {
                damaged.at = Some(now + self.times.retransmit);
                let envelope = samite_wire::peer::PeerEnvelope { to: *helper, ..envelope };
                self.effects.send(PeerPacket::new(&envelope, &PeerMessage::Fetch { key: &key }));
            } else {
                damaged.is_lost = true;
                damaged.helpless.clear();
                damaged.at = self.is_group.then_some(now + self.times.resync_again);
            }
        }
    }

    fn mended(&mut self, key: &RecordKey) {
        if self.damage.records.remove(key).is_some() {
            self.effects.record(MirrorEffect::Mended { key: key.clone() });
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
        let Some(damaged) = self.damage.records.get_mut(record.key) else { return };
        if record.value.is_none() {
            if !damaged.helpless.contains(&from) {
                damaged.helpless.push(from);
            }
            damaged.at = Some(now);
            return self.mend_due(now);
        }
        // At another version it is asked for again: one of the two is behind.
        if self.partition.put_right(record) {
            self.mended(&record.key.into());
        }
    }
}
