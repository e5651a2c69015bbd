//! The member's part in keeping room on other members (I6); see `room.rs`.

use std::time::Duration;

use samite_partition::ChangeFunds;
use samite_types::{ErrorKind, Position};
use samite_wire::peer::PeerMessage;

use super::MirroredPartition;
use crate::role::MemberRole;
use crate::room::{MemberRoom, RoomQuestion, ToldRoom};
use crate::times::MirrorTimes;

impl MirroredPartition {
    /// The room for the next change (I6).
    pub(super) fn funds(&self, now: Duration) -> ChangeFunds {
        let MemberRole::Primary(primary) = &self.role else { return ChangeFunds::Own };
        if self.rules.ignores_room {
            return ChangeFunds::Own;
        }
        let total = self.log.total();
        let rooms = primary.peers.iter().filter(|peer| peer.follows());
        let rooms = rooms.filter_map(|peer| peer.stream.as_ref()).map(|stream| &stream.room);
        let all = rooms.map(|room| (room.left(total), room.full_above(now), room.has_reserve()));
        let both = |one: Option<bool>, two: Option<bool>| match (one, two) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (one, two) => one.and(two),
        };
        let least = all.reduce(|one, two| (one.0.min(two.0), one.1.min(two.1), both(one.2, two.2)));
        least.map_or(ChangeFunds::Own, |(bytes, full_above, has_reserve)| ChangeFunds::Members {
            bytes,
            full_above,
            has_reserve,
        })
    }

    /// A change would take `need` bytes: members that have less are asked to keep so many.
    pub(super) fn ask_room(&mut self, need: u64, now: Duration) {
        let total = self.log.total();
        self.for_rooms(|room, _| room.ask_for(need, total), now);
    }

    /// An entry was sent: members are asked ahead for the room that will be needed if it goes on
    /// so.
    pub(super) fn ask_ahead(&mut self, now: Duration) {
        let total = self.log.total();
        self.for_rooms(|room, _| room.ask_ahead(total), now);
    }

    /// Gives back room that was not needed for a while.
    pub(super) fn review_room(&mut self, now: Duration) {
        let total = self.log.total();
        self.for_rooms(|room, last| room.review((last, total), now), now);
    }

    /// Puts the question that `question` wants to put to a member, if any.
    fn for_rooms(
        &mut self,
        mut question: impl FnMut(&mut MemberRoom, Position) -> Option<RoomQuestion>,
        now: Duration,
    ) {
        let (last, again) = (self.at.position, self.times.retransmit);
        let mut index = 0;
        while let MemberRole::Primary(primary) = &mut self.role
            && let Some(peer) = primary.peers.get_mut(index)
        {
            index += 1;
            if !peer.follows() {
                continue;
            }
            let (target, Some(stream)) = (peer.target, peer.stream.as_mut()) else { continue };
            let room = &mut stream.room;
            let Some(question) = question(room, last) else { continue };
            let number = primary.questions;
            if room.ask((number, last), question, (now, again))
                && let Some(message) = room.question()
            {
                primary.questions = number.wrapping_add(1).max(1);
                self.answer(target, &message);
            }
        }
    }

    /// When [`MirroredPartition::review_room`] has something to do.
    pub(super) fn next_review(&self) -> Option<Duration> {
        let MemberRole::Primary(primary) = &self.role else { return None };
        let streams = primary.peers.iter().filter_map(|peer| peer.stream.as_ref());
        let rooms = streams.filter(|stream| !stream.is_paused).map(|stream| &stream.room);
        let MirrorTimes { retransmit, missed, .. } = self.times;
        rooms.filter_map(|room| room.next(retransmit, missed)).min()
    }

    /// A member that does not say how much room it has is asked again, and reported, like one that
    /// acknowledges nothing.
    pub(super) fn see_answer(&mut self, index: usize, now: Duration) {
        let MirrorTimes { retransmit, missed, .. } = self.times;
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let Some(peer) = primary.peers.get_mut(index).filter(|peer| peer.follows()) else { return };
        let (target, Some(stream)) = (peer.target, peer.stream.as_mut()) else { return };
        let again = stream.room.ask_again(retransmit, now);
        let is_overdue = stream.room.is_overdue(missed, now);
        if let Some(message) = again {
            self.answer(target, &message);
        }
        if is_overdue {
            self.fail(index, ErrorKind::Timeout, now);
        }
    }

    /// A member, having applied all up to `position`, keeps `bytes`.
    pub(super) fn room_told(
        &mut self,
        index: usize,
        (position, bytes): (Position, u64),
        (has_reserve, answers): (bool, u32),
        now: Duration,
    ) {
        let last = self.at.position;
        let total =
            if position == last { Some(self.log.total()) } else { self.log.total_at(position) };
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let peer = &mut primary.peers[index];
        let stream = peer.stream.as_mut().filter(|stream| !stream.is_paused);
        let (Some(stream), Some(total)) = (stream, total) else { return };
        let told = ToldRoom::new(position, total, bytes);
        if stream.room.tell(told, (has_reserve, answers), now) && stream.acked == last {
            // It lives, and owes nothing.
            peer.is_failing = false;
        }
    }

    /// The primary asks this member to keep more, or counts on less.
    pub(super) fn room_asked(
        &mut self,
        (number, position): (u32, Position),
        claim: u64,
        (need, wanted): (u64, u64),
    ) {
        if self.at.term < self.term && !self.rules.ignores_terms {
            // The term's first entry will show whether the records here are those of the primary.
            return;
        }
        if self.kept.is_late((self.term, number)) {
            // It comes late: the primary counts on the answer that it got since.
            return;
        }
        let claim = (position == self.at.position).then_some(claim);
        self.kept.heed((self.term, number), claim, (need, wanted), &mut self.partition);
        self.acknowledge();
    }

    /// The message to the primary: that all entries up to `position` are applied, and how much is
    /// kept for more.
    pub(super) fn applied(&mut self, position: Position) -> PeerMessage<'static> {
        PeerMessage::Applied {
            position,
            here: self.at.position,
            room: self.kept.tell(),
            has_reserve: self.partition.has_reserve(),
            answers: self.kept.answers(),
        }
    }
}
