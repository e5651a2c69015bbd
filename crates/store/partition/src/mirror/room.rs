//! Room on other members: a change that does not fit on every member that counts takes effect nowhere. This is flow control by credits, in bytes.
//!
//! Each member keeps space for the changes that its primary decides on, and says with each
//! acknowledgement how much it keeps ([`samite_backend::QuotaAccount`]). The primary reckons with
//! the most that its entries can take, a number that depends on the records and not on how a member
//! stores them; so it knows, without asking, the room that a member that has acknowledged less
//! still has. A change that takes more waits until the member was asked to keep more, and is
//! refused when that has no more. Changes that make room are let through: they find the reserve of
//! the target.
//!
//! A primary that needs less than it asked for gives the rest back: it says how much it counts on from an entry on, and counts on no more.

use std::time::Duration;

use samite_backend::KEPT_IDLE;
use samite_types::{ErrorKind, Position, Term};
use samite_wire::peer::PeerMessage;

use super::{MemberRole, MirrorTimes, MirroredPartition};

/// The most that a member is asked to keep for one partition, in bytes, beside the need of a single
/// change.
const WANTED_MAX: u64 = 8 << 20;
/// The least for a partition in use: the largest record fits twice, about.
const WANTED_BUSY: u64 = 2 << 20;
/// How much of it was needed is looked at so often.
const REVIEW: Duration = Duration::from_secs(1);
/// For so long a member that had no more is taken at its word.
const FULL_FOR: Duration = Duration::from_millis(100);

/// The primary's knowledge of the room that a member keeps for it. Costs are counted from the
/// beginning of its log on: `total` is that of all entries.
#[derive(Debug)]
pub(super) struct MemberRoom {
    /// Having applied this entry, the member kept this much.
    told: ToldRoom,
    /// From this entry on the primary counts on no more, whatever was told by then.
    claim: Option<ToldRoom>,
    /// Whether the member has as much of its reserve left as removals need, once it has said so.
    has_reserve: Option<bool>,
    /// The room that it was asked to keep.
    wanted: u64,
    /// The question that is not answered.
    asked: Option<AskedRoom>,
    /// Until then it is known to have had no more than it told.
    full_until: Duration,
    /// The most that was under way since the last look.
    peak: u64,
    review_at: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct ToldRoom {
    position: Position,
    /// Costs of all entries up to that one.
    total: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct AskedRoom {
    number: u32,
    /// The last entry before it.
    position: Position,
    question: RoomQuestion,
    /// It was sent last then.
    at: Duration,
    /// When the first question was put that is not answered.
    since: Duration,
}

impl ToldRoom {
    /// The rest of it when the costs of all entries are `total`.
    const fn left(&self, total: u64) -> u64 {
        self.bytes.saturating_sub(total.saturating_sub(self.total))
    }
}

/// A question to a member: how much to keep, and how much the primary counts on at most.
#[derive(Clone, Copy, Debug)]
struct RoomQuestion {
    need: u64,
    claim: u64,
}

impl MemberRoom {
    /// That of a member which has said nothing since entry `position`.
    pub(super) fn new(position: Position, now: Duration) -> Self {
        Self {
            told: ToldRoom { position, ..ToldRoom::default() },
            claim: None,
            has_reserve: None,
            wanted: WANTED_BUSY,
            asked: None,
            full_until: Duration::ZERO,
            peak: 0,
            review_at: now + REVIEW,
        }
    }

    /// Bytes that another change may take.
    fn left(&self, total: u64) -> u64 {
        let left = self.told.left(total);
        let claim = self.claim.filter(|claim| self.told.position <= claim.position);
        claim.map_or(left, |claim| left.min(claim.left(total)))
    }

    /// A change that takes more than this does not fit, whatever the changes under way lead to.
    fn full_above(&self, now: Duration) -> u64 {
        if now < self.full_until { self.told.bytes } else { u64::MAX }
    }

    /// The member says how much it keeps. Returns whether that answers the question.
    fn tell(&mut self, told: ToldRoom, (has_reserve, answers): (bool, u32), now: Duration) -> bool {
        let asked = self.asked.take_if(|asked| asked.number == answers);
        // An answer that comes late counts for nothing.
        if asked.is_none() && told.position <= self.told.position {
            return false;
        }
        if asked.is_some() {
            self.claim = None;
        }
        (self.told, self.has_reserve) = (told, Some(has_reserve));
        if asked.is_some_and(|asked| told.bytes < asked.question.need) {
            self.full_until = now + FULL_FOR;
        }
        asked.is_some()
    }

    /// Notes a question behind entry `position`, unless one is under way. Returns whether it is to be sent.
    fn ask(
        &mut self,
        (number, position): (u32, Position),
        question: RoomQuestion,
        (now, again): (Duration, Duration),
    ) -> bool {
        if self.asked.is_some_and(|asked| now < asked.at + again) {
            return false;
        }
        let since = self.asked.map_or(now, |asked| asked.since);
        self.asked = Some(AskedRoom { number, position, question, at: now, since });
        true
    }

    /// The question under way, to be sent.
    fn question(&self) -> Option<PeerMessage<'static>> {
        let AskedRoom { number, position, question: RoomQuestion { need, claim }, .. } =
            self.asked?;
        Some(PeerMessage::AskRoom { number, position, claim, need, wanted: self.wanted })
    }

    /// The question under way, if it is time to send it again.
    fn ask_again(&mut self, again: Duration, now: Duration) -> Option<PeerMessage<'static>> {
        let asked = self.asked.as_mut().filter(|asked| now >= asked.at + again)?;
        asked.at = now;
        self.question()
    }

    /// When the next thing is to be done about it.
    fn next(&self, again: Duration, missed: Duration) -> Option<Duration> {
        let is_open = self.wanted > KEPT_IDLE || self.claim.is_some();
        let answer_at = self.asked.map(|asked| (asked.at + again).min(asked.since + missed));
        answer_at.into_iter().chain(is_open.then_some(self.review_at)).min()
    }

    /// Whether the member has owed an answer for so long that it is to be reported. It is again after as long.
    fn is_overdue(&mut self, missed: Duration, now: Duration) -> bool {
        let asked = self.asked.as_mut().filter(|asked| now >= asked.since + missed);
        asked.map(|asked| asked.since = now).is_some()
    }
}

/// The room that a member keeps for its primary.
#[derive(Debug, Default)]
pub(super) struct ReservedRoom {
    /// The room that it was asked to keep; 0 while it follows no primary.
    wanted: u64,
    /// The least that the primary may count on.
    owed: u64,
    /// The room that is kept.
    bytes: u64,
    /// The question that was heeded last, and its term.
    answers: (Term, u32),
}

/// The account for the space of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ChangeFunds {
    /// The free space here.
    #[default]
    Own,
    /// The same, and other members have room for `bytes`; a change that takes more than
    /// `full_above` fits nowhere.
    Members {
        /// The room that the member with the least still has for this primary.
        bytes: u64,
        /// The room that the fullest member had when it was asked lately; without a limit when none
        /// was full.
        full_above: u64,
        /// Whether they have something left for changes that make room; `None`: not all have said.
        has_reserve: Option<bool>,
    },
    /// The room that is kept here for another member's decisions.
    Kept,
    /// Somebody counts on it: small records may take more than there is.
    Promised,
}

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
        let all = rooms.map(|room| (room.left(total), room.full_above(now), room.has_reserve));
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
        self.for_rooms(
            |room, _| {
                let is_short = room.left(total) < need;
                is_short.then(|| {
                    room.wanted = room.wanted.max(need.saturating_mul(2)).min(WANTED_MAX);
                    RoomQuestion { need, claim: u64::MAX }
                })
            },
            now,
        );
    }

    /// An entry was sent: members are asked ahead for the room that will be needed if it goes on
    /// so.
    pub(super) fn ask_ahead(&mut self, now: Duration) {
        let total = self.log.total();
        self.for_rooms(
            |room, _| {
                room.peak = room.peak.max(total.saturating_sub(room.told.total));
                let is_idle = room.wanted < WANTED_BUSY;
                let is_short = room.wanted < WANTED_MAX && room.peak > room.wanted / 2;
                (room.asked.is_none() && (is_idle || is_short)).then(|| {
                    room.wanted = (room.wanted * 2).clamp(WANTED_BUSY, WANTED_MAX);
                    RoomQuestion { need: 0, claim: u64::MAX }
                })
            },
            now,
        );
    }

    /// Gives back room that was not needed for a while.
    pub(super) fn review_room(&mut self, now: Duration) {
        let total = self.log.total();
        self.for_rooms(
            |room, last| {
                if now < room.review_at {
                    return None;
                }
                room.review_at = now + REVIEW;
                let peak = std::mem::take(&mut room.peak);
                let least = if peak == 0 { KEPT_IDLE } else { WANTED_BUSY };
                let wanted = (peak * 2).clamp(least, WANTED_MAX);
                if room.wanted < wanted * 2 && room.claim.is_none() {
                    return None;
                }
                room.wanted = wanted;
                let bytes = room.left(total).min(wanted);
                room.claim = Some(ToldRoom { position: last, total, bytes });
                Some(RoomQuestion { need: 0, claim: bytes })
            },
            now,
        );
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
        let told = ToldRoom { position, total, bytes };
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
        if (self.term, number) < self.kept.answers {
            // It comes late: the primary counts on the answer that it got since.
            return;
        }
        if position == self.at.position {
            self.kept.owed = self.kept.owed.min(claim);
        }
        self.kept.wanted = wanted.min(WANTED_MAX);
        self.kept.answers = (self.term, number);
        let least = self.kept.owed.max(need);
        self.kept.bytes = self.partition.keep(least, self.kept.wanted);
        self.kept.owed = self.kept.owed.min(self.kept.bytes);
        self.acknowledge();
    }

    /// An entry was applied that takes at most `cost` bytes.
    pub(super) fn room_used(&mut self, cost: u64) {
        self.kept.owed = self.kept.owed.saturating_sub(cost);
        self.keep_room();
    }

    /// This member follows a primary: it begins to keep room for it.
    pub(super) fn open_room(&mut self) {
        if self.kept.wanted == 0 {
            self.kept.wanted = WANTED_BUSY;
            self.keep_room();
        }
    }

    fn keep_room(&mut self) {
        if self.kept.wanted > 0 || self.kept.bytes > 0 {
            self.kept.bytes = self.partition.keep(self.kept.owed, self.kept.wanted);
        }
    }

    /// Keeps nothing any more: this member follows no primary.
    pub(super) fn close_room(&mut self) {
        self.kept = ReservedRoom::default();
        self.partition.keep(0, 0);
    }

    /// The message to the primary: that all entries up to `position` are applied, and how much is
    /// kept for more.
    pub(super) fn applied(&mut self, position: Position) -> PeerMessage<'static> {
        self.kept.owed = self.kept.bytes;
        PeerMessage::Applied {
            position,
            here: self.at.position,
            room: self.kept.bytes,
            has_reserve: self.partition.has_reserve(),
            answers: self.kept.answers.1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(10);

    const QUESTION: RoomQuestion = RoomQuestion { need: 5000, claim: u64::MAX };

    fn told(position: u64, total: u64, bytes: u64) -> ToldRoom {
        ToldRoom { position: Position(position), total, bytes }
    }

    #[test]
    fn what_is_under_way_is_taken_off() {
        let mut room = MemberRoom::new(Position(3), NOW);
        assert_eq!((room.left(500), room.has_reserve), (0, None), "nothing was told yet");
        room.tell(told(5, 500, 1000), (true, 0), NOW);
        assert_eq!((room.left(500), room.left(900), room.left(1501)), (1000, 600, 0));
        // Older words come late.
        room.tell(told(4, 400, 9000), (false, 0), NOW);
        assert_eq!((room.left(900), room.has_reserve), (600, Some(true)));
    }

    #[test]
    fn a_member_that_has_no_more_is_known_to_be_full_for_a_while() {
        let mut room = MemberRoom::new(Position(3), NOW);
        let again = Duration::from_millis(100);
        assert!(room.ask((7, Position(3)), QUESTION, (NOW, again)));
        assert!(!room.ask((8, Position(3)), QUESTION, (NOW, again)), "one question at a time");
        assert!(room.ask((8, Position(3)), QUESTION, (NOW + again, again)), "it may be lost");
        room.tell(told(3, 0, 4000), (true, 7), NOW);
        assert_eq!(room.left(0), 0, "the answer to an older question says nothing new");
        room.tell(told(3, 0, 4000), (true, 8), NOW);
        assert_eq!((room.left(0), room.full_above(NOW)), (4000, 4000));
        assert_eq!(room.full_above(NOW + FULL_FOR), u64::MAX);
    }

    #[test]
    fn what_was_given_back_is_not_counted_on_whatever_comes_late() {
        let mut room = MemberRoom::new(Position(0), NOW);
        room.tell(told(5, 500, 8000), (true, 0), NOW);
        room.claim = Some(told(6, 600, 1000));
        assert_eq!((room.left(600), room.left(700)), (1000, 900));
        // Said before the member knew of it.
        room.tell(told(6, 600, 7900), (true, 0), NOW);
        assert_eq!(room.left(600), 1000);
        // It has not heeded it, for another entry had come: then it keeps the room that it says.
        room.tell(told(7, 700, 7800), (true, 0), NOW);
        assert_eq!(room.left(700), 7800);
    }

    #[test]
    fn a_member_that_does_not_answer_is_reported_again_and_again() {
        let mut room = MemberRoom::new(Position(0), NOW);
        let (again, missed) = (Duration::from_millis(100), Duration::from_millis(600));
        assert!(room.ask((1, Position(0)), QUESTION, (NOW, again)));
        assert_eq!(room.ask_again(again, NOW + again / 2), None);
        let first = room.question();
        assert_eq!(room.ask_again(again, NOW + again), first, "it may be lost");
        assert_eq!(room.next(again, missed), Some(NOW + again * 2));
        assert!(room.ask((2, Position(0)), QUESTION, (NOW + missed / 2, again)));
        assert!(!room.is_overdue(missed, NOW + missed / 2));
        assert!(room.is_overdue(missed, NOW + missed));
        assert!(!room.is_overdue(missed, NOW + missed));
        assert!(room.is_overdue(missed, NOW + missed * 2));
    }
}
