//! The primary's knowledge of another member.

use std::time::Duration;

use samite_types::{Epoch, Position, TargetId};
use samite_wire::control::MemberConsistency;

use crate::resync_source::ResyncSource;
use crate::room::MemberRoom;

/// Another member of the group.
#[derive(Debug)]
pub(crate) struct GroupPeer {
    pub(crate) target: TargetId,
    /// Its process, once the map has named it.
    incarnation: Option<u64>,
    pub(crate) consistency: MemberConsistency,
    /// It is sent entries, or will be.
    pub(crate) stream: Option<EntryStream>,
    /// It is brought up to date.
    pub(crate) resync: Option<ResyncSource>,
    /// Nothing is committed that it has not applied.
    pub(crate) is_required: bool,
    /// It does not answer, or said that it cannot follow.
    pub(crate) is_failing: bool,
    /// By the map of this epoch it was said to be up to date. A report of that may be under way,
    /// and make it good, however many maps have come since.
    pub(crate) promised: Option<Epoch>,
    /// Such reports count for nothing from the map of this epoch on.
    void_from: Option<Epoch>,
    /// When it was last reported to have missed something.
    pub(crate) reported_at: Option<Duration>,
    /// When the driver, which reports it, was last told that it is up to date, if that was by the
    /// newest map.
    pub(crate) announced_at: Option<Duration>,
    /// It waits for an answer to [`Message::AskReads`](samite_wire::peer::PeerMessage::AskReads).
    pub(crate) asks: Option<(u64, Position)>,
    /// It is brought up to date from then on.
    pub(crate) resync_at: Duration,
    /// The last try has ended because there was no room for the records that it lacks.
    pub(crate) lacks_room: bool,
}

/// Entries on their way to a member.
#[derive(Debug)]
pub(crate) struct EntryStream {
    /// It has applied all up to this one.
    pub(crate) acked: Position,
    /// The last message that was sent.
    pub(crate) sent: Position,
    /// It has owed an answer since then.
    pub(crate) since: Duration,
    /// The message is sent again then.
    pub(crate) resend_at: Duration,
    /// The last gap that was answered, and when.
    pub(crate) gap: (Position, Duration),
    /// Since when it has seemed to have lost entries that it had acknowledged.
    pub(crate) lost_at: Option<Duration>,
    /// It is not ready for them yet.
    pub(crate) is_paused: bool,
    /// Entries up to this one were written without regard to its room.
    pub(crate) blind_upto: Position,
    /// The room that it keeps for entries.
    pub(crate) room: MemberRoom,
}

impl EntryStream {
    /// A stream to a member that has applied all up to `acked`.
    pub(crate) fn new(acked: Position, now: Duration) -> Self {
        Self {
            acked,
            sent: acked,
            since: now,
            resend_at: now,
            gap: (Position(0), Duration::ZERO),
            lost_at: None,
            is_paused: false,
            blind_upto: acked,
            room: MemberRoom::new(acked, now),
        }
    }
}

impl GroupPeer {
    pub(crate) const fn new(target: TargetId) -> Self {
        Self {
            target,
            incarnation: None,
            consistency: MemberConsistency::NeedsResync,
            stream: None,
            resync: None,
            is_required: false,
            is_failing: false,
            promised: None,
            void_from: None,
            reported_at: None,
            announced_at: None,
            asks: None,
            resync_at: Duration::ZERO,
            lacks_room: false,
        }
    }

    /// A newer map names its process. Another process than before has nothing of that one's
    /// records, however silent the change was.
    pub(crate) fn live(&mut self, incarnation: u64, now: Duration) {
        let before = self.incarnation.replace(incarnation);
        if before.is_some_and(|before| before != incarnation) {
            self.let_go(now);
        }
    }

    /// A newer map, of `epoch`, says this of it. The log stands at `here`.
    pub(crate) fn see(
        &mut self,
        consistency: MemberConsistency,
        epoch: Epoch,
        here: Position,
        now: Duration,
    ) {
        let before = std::mem::replace(&mut self.consistency, consistency);
        self.announced_at = None;
        self.forget_void(epoch);
        match consistency {
            MemberConsistency::Good => {
                if !self.follows() {
                    self.stream = Some(EntryStream::new(here, now));
                }
                self.resync = None;
                self.is_required = true;
                (self.promised, self.void_from) = (None, None);
            }
            _ if before == MemberConsistency::Good => self.let_go(now),
            MemberConsistency::Bad => self.let_go(now),
            // The map may have called it good meanwhile, and does not any more.
            _ if self.is_required && self.is_failing && self.may_let_go() => self.let_go(now),
            _ => {}
        }
    }

    /// Whether it is sent entries.
    pub(crate) fn follows(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| !stream.is_paused)
    }

    /// Whether it has everything up to `committed`, and the map does not know.
    pub(crate) fn is_unknown_to_be_synced(&self, committed: Position) -> bool {
        self.consistency != MemberConsistency::Good
            && self.follows()
            && self.stream.as_ref().is_some_and(|stream| {
                stream.acked >= committed && stream.acked >= stream.blind_upto
            })
    }

    /// Whether it may be required no more without asking: no report that it is up to date can count
    /// any more.
    pub(crate) fn may_let_go(&self) -> bool {
        self.consistency != MemberConsistency::Good && self.promised.is_none()
    }

    /// It is said to be up to date, by the map of `epoch`.
    pub(crate) const fn promise(&mut self, epoch: Epoch) {
        // The reason that made earlier ones void says nothing of this one.
        (self.promised, self.void_from) = (Some(epoch), None);
    }

    /// Reports by maps up to `reported` count for nothing from the map of `by` on; the newest one
    /// here is of `epoch`.
    pub(crate) fn void_promise(&mut self, reported: Epoch, by: Epoch, epoch: Epoch) {
        if self.promised.is_some_and(|promised| promised <= reported) {
            self.void_from = Some(by);
            self.forget_void(epoch);
        }
    }

    fn forget_void(&mut self, epoch: Epoch) {
        if self.void_from.is_some_and(|from| from <= epoch) {
            (self.promised, self.void_from) = (None, None);
        }
    }

    /// It is not required any more, and has to be brought up to date.
    pub(crate) fn let_go(&mut self, resync_at: Duration) {
        let Self { target, incarnation, consistency, lacks_room, .. } = *self;
        *self = Self { incarnation, consistency, resync_at, lacks_room, ..Self::new(target) };
    }

    /// Whether it is not up to date, and the map lets it become so.
    pub(crate) fn needs_resync(&self) -> bool {
        !self.follows()
            && matches!(
                self.consistency,
                MemberConsistency::NeedsResync | MemberConsistency::Restarted
            )
    }
}
