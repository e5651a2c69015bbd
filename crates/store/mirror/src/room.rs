//! Room on other members: a change that does not fit on every member that counts takes effect
//! nowhere. This is flow control by credits, in bytes.
//!
//! Each member keeps space for the changes that its primary decides on, and says with each
//! acknowledgement how much it keeps ([`samite_backend::QuotaAccount`]). The primary reckons with
//! the most that its entries can take, a number that depends on the records and not on how a member
//! stores them; so it knows, without asking, the room that a member that has acknowledged less
//! still has. A change that takes more waits until the member was asked to keep more, and is
//! refused when that has no more. Changes that make room are let through: they find the reserve of
//! the target.
//!
//! A primary that needs less than it asked for gives the rest back: it says how much it counts on
//! from an entry on, and counts on no more.

use std::time::Duration;

use samite_backend::KEPT_IDLE;
use samite_partition::Partition;
use samite_types::{Position, Term};
use samite_wire::peer::PeerMessage;

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
pub(crate) struct MemberRoom {
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

/// A member's word on its room.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ToldRoom {
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
    /// Having applied all up to `position`, whose entries cost `total` bytes in all, the member
    /// keeps `bytes`.
    pub(crate) const fn new(position: Position, total: u64, bytes: u64) -> Self {
        Self { position, total, bytes }
    }

    /// The rest of it when the costs of all entries are `total`.
    const fn left(&self, total: u64) -> u64 {
        self.bytes.saturating_sub(total.saturating_sub(self.total))
    }
}

/// A question to a member: how much to keep, and how much the primary counts on at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoomQuestion {
    need: u64,
    claim: u64,
}

impl MemberRoom {
    /// That of a member which has said nothing since entry `position`.
    pub(crate) fn new(position: Position, now: Duration) -> Self {
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

    /// Whether the member has as much of its reserve left as removals need, once it has said so.
    pub(crate) const fn has_reserve(&self) -> Option<bool> {
        self.has_reserve
    }

    /// Bytes that another change may take.
    pub(crate) fn left(&self, total: u64) -> u64 {
        let left = self.told.left(total);
        let claim = self.claim.filter(|claim| self.told.position <= claim.position);
        claim.map_or(left, |claim| left.min(claim.left(total)))
    }

    /// A change that takes more than this does not fit, whatever the changes under way lead to.
    pub(crate) fn full_above(&self, now: Duration) -> u64 {
        if now < self.full_until { self.told.bytes } else { u64::MAX }
    }

    /// The member says how much it keeps. Returns whether that answers the question.
    pub(crate) fn tell(
        &mut self,
        told: ToldRoom,
        (has_reserve, answers): (bool, u32),
        now: Duration,
    ) -> bool {
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

    /// A change would take `need` bytes: the question, if the member is not known to keep so many.
    pub(crate) fn ask_for(&mut self, need: u64, total: u64) -> Option<RoomQuestion> {
        let is_short = self.left(total) < need;
        is_short.then(|| {
            self.wanted = self.wanted.max(need.saturating_mul(2)).min(WANTED_MAX);
            RoomQuestion { need, claim: u64::MAX }
        })
    }

    /// An entry was sent: the question for the room that will be needed if it goes on so.
    pub(crate) fn ask_ahead(&mut self, total: u64) -> Option<RoomQuestion> {
        self.peak = self.peak.max(total.saturating_sub(self.told.total));
        let is_idle = self.wanted < WANTED_BUSY;
        let is_short = self.wanted < WANTED_MAX && self.peak > self.wanted / 2;
        (self.asked.is_none() && (is_idle || is_short)).then(|| {
            self.wanted = (self.wanted * 2).clamp(WANTED_BUSY, WANTED_MAX);
            RoomQuestion { need: 0, claim: u64::MAX }
        })
    }

    /// The question that gives back room which was not needed for a while. `last`: the last entry,
    /// up to which all have cost `total` bytes.
    pub(crate) fn review(
        &mut self,
        (last, total): (Position, u64),
        now: Duration,
    ) -> Option<RoomQuestion> {
        if now < self.review_at {
            return None;
        }
        self.review_at = now + REVIEW;
        let peak = std::mem::take(&mut self.peak);
        let least = if peak == 0 { KEPT_IDLE } else { WANTED_BUSY };
        let wanted = (peak * 2).clamp(least, WANTED_MAX);
        if self.wanted < wanted * 2 && self.claim.is_none() {
            return None;
        }
        self.wanted = wanted;
        let bytes = self.left(total).min(wanted);
        self.claim = Some(ToldRoom { position: last, total, bytes });
        Some(RoomQuestion { need: 0, claim: bytes })
    }

    /// Notes a question behind entry `position`, unless one is under way. Returns whether it is to
    /// be sent.
    pub(crate) fn ask(
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
    pub(crate) fn question(&self) -> Option<PeerMessage<'static>> {
        let AskedRoom { number, position, question: RoomQuestion { need, claim }, .. } =
            self.asked?;
        Some(PeerMessage::AskRoom { number, position, claim, need, wanted: self.wanted })
    }

    /// The question under way, if it is time to send it again.
    pub(crate) fn ask_again(
        &mut self,
        again: Duration,
        now: Duration,
    ) -> Option<PeerMessage<'static>> {
        let asked = self.asked.as_mut().filter(|asked| now >= asked.at + again)?;
        asked.at = now;
        self.question()
    }

    /// When the next thing is to be done about it.
    pub(crate) fn next(&self, again: Duration, missed: Duration) -> Option<Duration> {
        let is_open = self.wanted > KEPT_IDLE || self.claim.is_some();
        let answer_at = self.asked.map(|asked| (asked.at + again).min(asked.since + missed));
        answer_at.into_iter().chain(is_open.then_some(self.review_at)).min()
    }

    /// Whether the member has owed an answer for so long that it is to be reported. It is again
    /// after as long.
    pub(crate) fn is_overdue(&mut self, missed: Duration, now: Duration) -> bool {
        let asked = self.asked.as_mut().filter(|asked| now >= asked.since + missed);
        asked.map(|asked| asked.since = now).is_some()
    }
}

/// The room that a member keeps for its primary.
#[derive(Debug, Default)]
pub(crate) struct ReservedRoom {
    /// The room that it was asked to keep; 0 while it follows no primary.
    wanted: u64,
    /// The least that the primary may count on.
    owed: u64,
    /// The room that is kept.
    bytes: u64,
    /// The question that was heeded last, and its term.
    answers: (Term, u32),
}

impl ReservedRoom {
    /// The number of the question that was heeded last.
    pub(crate) const fn answers(&self) -> u32 {
        self.answers.1
    }

    /// Whether the primary has asked, in the same term or a later one, something newer than this.
    pub(crate) fn is_late(&self, question: (Term, u32)) -> bool {
        question < self.answers
    }

    /// The primary asks for `need` bytes at least, and `wanted` if they are there. `claim`: it
    /// counts on no more than so many of those that are kept already.
    pub(crate) fn heed(
        &mut self,
        question: (Term, u32),
        claim: Option<u64>,
        (need, wanted): (u64, u64),
        partition: &mut Partition,
    ) {
        if let Some(claim) = claim {
            self.owed = self.owed.min(claim);
        }
        self.wanted = wanted.min(WANTED_MAX);
        self.answers = question;
        self.bytes = partition.keep(self.owed.max(need), self.wanted);
        self.owed = self.owed.min(self.bytes);
    }

    /// An entry was applied that takes at most `cost` bytes.
    pub(crate) fn used(&mut self, cost: u64, partition: &mut Partition) {
        self.owed = self.owed.saturating_sub(cost);
        self.keep(partition);
    }

    /// This member follows a primary: it begins to keep room for it.
    pub(crate) fn open(&mut self, partition: &mut Partition) {
        if self.wanted == 0 {
            self.wanted = WANTED_BUSY;
            self.keep(partition);
        }
    }

    /// Keeps nothing any more: this member follows no primary.
    pub(crate) fn close(&mut self, partition: &mut Partition) {
        *self = Self::default();
        partition.keep(0, 0);
    }

    /// The room that is kept, in bytes, for the primary to count on from here on.
    pub(crate) const fn tell(&mut self) -> u64 {
        self.owed = self.bytes;
        self.bytes
    }

    fn keep(&mut self, partition: &mut Partition) {
        if self.wanted > 0 || self.bytes > 0 {
            self.bytes = partition.keep(self.owed, self.wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use samite_backend::Backend as _;
    use samite_backend::memory::MemoryBackend;
    use samite_types::{DatasetId, PartitionId};

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

    #[test]
    fn a_member_keeps_what_its_primary_counts_on_as_long_as_it_follows_one() {
        let mut backend = MemoryBackend::new(64 << 20, 1).unwrap();
        let mut partition = Partition::new(backend.open(DatasetId(1), PartitionId(0)).unwrap());
        let mut room = ReservedRoom::default();
        room.used(1000, &mut partition);
        assert_eq!(room.tell(), 0, "it follows nobody");
        room.open(&mut partition);
        let told = room.tell();
        assert!(told > 1000);
        room.heed((Term(2), 5), Some(u64::MAX), (0, 0), &mut partition);
        assert_eq!(room.bytes, told, "the primary counts on it still");
        room.heed((Term(2), 6), Some(1000), (0, 0), &mut partition);
        assert_eq!(room.tell(), 1000);
        assert!(room.is_late((Term(2), 5)) && room.is_late((Term(1), 9)));
        assert!(!room.is_late((Term(2), 6)) && !room.is_late((Term(3), 1)));
        room.used(400, &mut partition);
        assert_eq!((room.tell(), room.answers()), (600, 6));
        room.close(&mut partition);
        assert_eq!((room.tell(), room.answers()), (0, 0));
    }
}
