//! Effects: the tasks of the driver.

use std::collections::VecDeque;

use samite_types::{ErrorKind, TargetId};
use samite_wire::peer::{PeerEnvelope, PeerMessage};
use smallvec::SmallVec;

use crate::log::LogEntry;
use crate::packet::PeerPacket;

/// Most messages that wait to be taken. Further ones are dropped, as a network may: they are sent
/// again.
const PACKETS_MAX: usize = 8192;

/// Something that the driver is to do.
#[derive(Clone, Debug)]
pub enum MirrorEffect {
    /// Send a message.
    Send(PeerPacket),
    /// Write an entry to the log on flash, and say when it is there
    /// ([`crate::MirroredPartition::logged`]).
    Append(LogEntry),
    /// The data of this partition on flash, log and checkpoint, are no use any more: its records
    /// are being replaced.
    Discard,
    /// The log on flash begins anew: make a checkpoint of the partition as it is now, and say when
    /// it is there ([`crate::MirroredPartition::logged`]).
    Checkpoint,
    /// More is committed: replies may leave.
    Committed,
    /// This member decides from here on, also on the open references of
    /// [clients](samite_partition::Partition::holders).
    Leads,
    /// This member is not the primary any more: all deferred replies are answered
    /// [`ErrorKind::StaleMap`], and the look-up table is wiped
    /// ([`samite_backend::Arena::retract_all`]).
    Deposed,
    /// Report to the coordinator that a member has missed something, by the epoch and the term that
    /// this member knows. Comes again until a map says so.
    Missed {
        /// The member.
        target: TargetId,
        /// Why: [`ErrorKind::Timeout`], [`ErrorKind::Unavailable`], or the member's answer.
        kind: ErrorKind,
    },
    /// A record is damaged here.
    Damaged {
        /// Its key.
        key: Box<[u8]>,
    },
    /// It is right again.
    Mended {
        /// Its key.
        key: Box<[u8]>,
    },
    /// Members had other records in a range than the primary: they were sent those that are here.
    Evened {
        /// The last record of the range; empty: it was the last of all.
        upto: Box<[u8]>,
    },
    /// A member has everything of this partition. When [`crate::MirroredPartition::ready`] says so
    /// of the partitions of all datasets of the group, report it.
    Synced {
        /// The member.
        target: TargetId,
    },
    /// A member cannot be brought up to date as long as there is no room for it. It is tried again
    /// after a while.
    NoRoom {
        /// The member.
        target: TargetId,
    },
    /// A member cannot be brought up to date; report it. It is tried again after a while.
    Broken {
        /// The member.
        target: TargetId,
        /// Why.
        kind: ErrorKind,
    },
}

/// Effects that wait to be taken.
#[derive(Debug, Default)]
pub(crate) struct MirrorEffects {
    packets: VecDeque<PeerPacket>,
    /// For the log on flash, in order.
    flash: VecDeque<MirrorEffect>,
    /// The newest acknowledgement includes all before it.
    acknowledged: Option<(TargetId, PeerMessage<'static>)>,
    committed: bool,
    leads: bool,
    deposed: bool,
    urgent: SmallVec<[MirrorEffect; 2]>,
    /// Results of repairs of records.
    records: VecDeque<MirrorEffect>,
}

impl MirrorEffects {
    pub(crate) fn send(&mut self, packet: PeerPacket) {
        if self.packets.len() < PACKETS_MAX {
            self.packets.push_back(packet);
        }
    }

    pub(crate) fn acknowledge(&mut self, to: TargetId, message: PeerMessage<'static>) {
        self.acknowledged = Some((to, message));
    }

    /// Bounded by the log, which takes no more entries than fit.
    pub(crate) fn append(&mut self, entry: LogEntry) {
        self.flash.push_back(MirrorEffect::Append(entry));
    }

    /// Whether nothing waits that the log on flash is to be told.
    pub(crate) fn is_log_told(&self) -> bool {
        self.flash.is_empty()
    }

    pub(crate) fn discard(&mut self) {
        self.flash.push_back(MirrorEffect::Discard);
    }

    pub(crate) fn checkpoint(&mut self) {
        self.flash.push_back(MirrorEffect::Checkpoint);
    }

    pub(crate) const fn committed(&mut self) {
        self.committed = true;
    }

    pub(crate) const fn leads(&mut self) {
        self.leads = true;
    }

    pub(crate) fn deposed(&mut self) {
        self.deposed = true;
        self.leads = false;
        self.committed = false;
        self.acknowledged = None;
        self.packets.clear();
        self.urgent.clear();
    }

    /// Results of a record's repair; bounded by the number of records that may be damaged, and of
    /// those that one message mends.
    pub(crate) fn record(&mut self, effect: MirrorEffect) {
        self.records.push_back(effect);
    }

    /// A change of a member's state; bounded by the number of members.
    pub(crate) fn report(&mut self, effect: MirrorEffect) {
        self.urgent.push(effect);
    }

    pub(crate) fn next(&mut self, envelope: &PeerEnvelope) -> Option<MirrorEffect> {
        if let Some(effect) = self.flash.pop_front() {
            return Some(effect);
        }
        if let Some(packet) = self.packets.pop_front() {
            return Some(MirrorEffect::Send(packet));
        }
        if let Some((to, message)) = self.acknowledged.take() {
            let envelope = PeerEnvelope { to, ..*envelope };
            return Some(MirrorEffect::Send(PeerPacket::new(&envelope, &message)));
        }
        if std::mem::take(&mut self.committed) {
            return Some(MirrorEffect::Committed);
        }
        if std::mem::take(&mut self.leads) {
            return Some(MirrorEffect::Leads);
        }
        if std::mem::take(&mut self.deposed) {
            return Some(MirrorEffect::Deposed);
        }
        self.urgent.pop().or_else(|| self.records.pop_front())
    }
}
