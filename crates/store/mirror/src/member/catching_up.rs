//! The catching-up primary: a member that the map has named the primary, and that does not decide
//! on anything yet: first it takes over entries that others have applied and it has not.
//!
//! A primary that is to be none any more may have applied operations that its successor has not
//! got. No client was told of them, so a term could begin without them; but then the former primary
//! would have entries that never were, and would have to be brought up to date: the group would be
//! short of a member although no node has died. So the member that is named asks every other good
//! one for its entries beyond its own last one ([`PeerMessage::AskTail`]), applies them, and only
//! then its term begins. It costs a round trip, and programs wait for so long. A member that has
//! died is not good any more by the map that names its successor: it is not waited for here.
//!
//! An entry that is taken over was applied by the primary of an earlier term, behind all that can
//! have been acknowledged: every good member has that. It stays uncommitted until it is so in the
//! new term, and if the new primary fails before, the next one may have it or not.
//!
//! Members that have been primary keep the entries that others may lack; a member that only
//! followed keeps none, and the entries that it has more than others are lost to the group.

use std::time::Duration;

use samite_types::{ErrorKind, Position, TargetId, Term};
use samite_wire::control::{GroupMember, MemberConsistency};
use samite_wire::peer::{PartitionLogEntry, PeerMessage};
use smallvec::SmallVec;

use super::{MemberRole, MirroredPartition};
use crate::commit::NO_ENTRY;
use crate::effects::MirrorEffect;
use crate::group_view::GroupView;
use crate::log::LogEntry;
use crate::packet::PeerPacket;

/// Most entries that are handed over at a time.
const ENTRIES_MAX: u64 = 64;

/// The state that only a catching-up primary has.
#[derive(Debug)]
pub(super) struct CatchingUpPrimary {
    view: GroupView,
    /// Good members that have something to say still, or have said it.
    others: SmallVec<[GoodMember; 2]>,
    /// It cannot apply the entries of others, and has said so last then.
    failed_at: Option<Duration>,
}

/// Another good member.
#[derive(Clone, Debug)]
struct GoodMember {
    target: TargetId,
    /// The entries that it can give end there, once it has said so.
    upto: Option<Position>,
    /// It is asked again then, unless it was asked for something since.
    ask_at: Duration,
    /// Where the log stood when it was asked last.
    asked: Position,
    /// Since when nothing has come of asking.
    since: Duration,
    /// When it was last reported not to answer.
    reported_at: Option<Duration>,
}

impl GoodMember {
    const fn new(target: TargetId, now: Duration) -> Self {
        let (asked, since) = (NO_ENTRY, now);
        Self { target, upto: None, ask_at: now, asked, since, reported_at: None }
    }

    fn is_settled(&self, here: Position) -> bool {
        self.upto.is_some_and(|upto| upto <= here)
    }
}

impl MirroredPartition {
    /// The map names this member the primary.
    pub(super) fn named(&mut self, view: &GroupView, now: Duration) {
        // Before the first term nobody has applied anything.
        let begins = self.at.position == NO_ENTRY && view.term == Term(0);
        if self.is_primary() || begins {
            return self.lead(view, &[], now);
        }
        self.term = view.term;
        let (known, failed_at) = match &mut self.role {
            MemberRole::Elect(elect) if elect.view.term == view.term => {
                (std::mem::take(&mut elect.others), elect.failed_at)
            }
            _ => (SmallVec::new(), None),
        };
        let is_good = |member: &&GroupMember| member.consistency == MemberConsistency::Good;
        let others =
            view.members[1..].iter().filter(is_good).map(|&GroupMember { target, .. }| {
                let before = known.iter().find(|other| other.target == target);
                before.cloned().unwrap_or_else(|| GoodMember::new(target, now))
            });
        let elect = CatchingUpPrimary { view: view.clone(), others: others.collect(), failed_at };
        self.role = MemberRole::Elect(Box::new(elect));
        self.partition.set_follows(true);
        self.give_up_reads();
        self.tick_catching_up(now);
        self.take_office(now);
    }

    /// Begins to decide, if there is nothing to be taken over any more.
    fn take_office(&mut self, now: Duration) {
        let MemberRole::Elect(elect) = &mut self.role else { return };
        let here = self.at.position;
        // A member that cannot take over the entries leaves the lead to another, if there is
        // another.
        let may_lead = elect.failed_at.is_none() || elect.others.is_empty();
        if !may_lead || !elect.others.iter().all(|other| other.is_settled(here)) {
            return;
        }
        let view = elect.view.clone();
        let ends = elect.others.iter().map(|other| (other.target, other.upto.unwrap_or(here)));
        let ends: SmallVec<[(TargetId, Position); 2]> = ends.collect();
        self.lead(&view, &ends, now); // I5
    }

    /// Asks the members again that have not answered, and reports those that do not answer at all.
    pub(super) fn tick_catching_up(&mut self, now: Duration) {
        let (have, times, envelope) = (self.at.position, self.times, self.envelope(TargetId(0)));
        let MemberRole::Elect(elect) = &mut self.role else { return };
        let is_due = |at: Option<Duration>| at.is_none_or(|at| now >= at + times.report_again);
        if elect.failed_at.is_some_and(|at| is_due(Some(at))) {
            elect.failed_at = Some(now);
            let news = MirrorEffect::Missed { target: self.me, kind: ErrorKind::Corrupt };
            self.effects.news(news);
        }
        for other in elect.others.iter_mut().filter(|other| !other.is_settled(have)) {
            if now >= other.ask_at {
                (other.ask_at, other.asked) = (now + times.retransmit, have);
                let envelope = samite_wire::peer::PeerEnvelope { to: other.target, ..envelope };
                self.effects.send(PeerPacket::new(&envelope, &PeerMessage::AskTail { have }));
            }
            if now >= other.since + times.missed && is_due(other.reported_at) {
                other.reported_at = Some(now);
                let news = MirrorEffect::Missed { target: other.target, kind: ErrorKind::Timeout };
                self.effects.news(news);
            }
        }
    }

    /// When [`MirroredPartition::tick_catching_up`] has something to do.
    pub(super) fn next_catching_up(&self) -> Option<Duration> {
        let MemberRole::Elect(elect) = &self.role else { return None };
        let here = self.at.position;
        let open = elect.others.iter().filter(|other| !other.is_settled(here));
        let failed = elect.failed_at.map(|at| at + self.times.report_again);
        open.map(|other| other.ask_at).chain(failed).min()
    }

    /// A member that was named cannot be told anything for now: it is reported at once.
    pub(super) fn unheard(&mut self, target: TargetId, now: Duration) {
        let again = self.times.report_again;
        let here = self.at.position;
        let MemberRole::Elect(elect) = &mut self.role else { return };
        let mut open = elect.others.iter_mut().filter(|other| !other.is_settled(here));
        if let Some(other) = open.find(|other| other.target == target)
            && other.reported_at.is_none_or(|at| now >= at + again)
        {
            other.reported_at = Some(now);
            self.effects.news(MirrorEffect::Missed { target, kind: ErrorKind::Unavailable });
        }
    }

    /// The catching-up primary asks for the entries that it lacks.
    pub(super) fn asked_tail(&mut self, from: TargetId, have: Position) {
        let here = self.at.position;
        let is_kept = self.is_fit && self.log.last() == Some(here);
        let first = Position(have.get().saturating_add(1));
        let mut upto = here.min(have);
        if is_kept && here > have && self.log.get(first).is_some() {
            upto = here;
            let envelope = self.envelope(from);
            let end = here.get().min(have.get().saturating_add(ENTRIES_MAX));
            for entry in (first.get()..=end).filter_map(|at| self.log.get(Position(at))) {
                self.effects.send(entry.as_tail(&envelope));
            }
        }
        self.answer(from, &PeerMessage::TailEnd { upto });
    }

    /// An entry that another member has, and this one may lack.
    pub(super) fn take_over(
        &mut self,
        from: TargetId,
        entry: &PartitionLogEntry<'_>,
        now: Duration,
    ) {
        let MemberRole::Elect(elect) = &mut self.role else { return };
        // It comes twice, or others are missing before it.
        if entry.before != self.at || elect.failed_at.is_some() {
            return;
        }
        if let Some(other) = elect.others.iter_mut().find(|other| other.target == from) {
            other.since = now;
        }
        let stepped = self.step(entry, now);
        if stepped.is_err() {
            self.become_unfit();
            if let MemberRole::Elect(elect) = &mut self.role {
                elect.failed_at = Some(now.saturating_sub(self.times.report_again));
            }
            return self.tick_catching_up(now);
        }
        let kept = LogEntry::copied(entry);
        if self.logged.is_some() {
            self.effects.append(kept.clone());
        }
        // Others may lack it as well.
        self.log.push(kept, stepped.unwrap_or_default());
        self.take_office(now);
    }

    /// The entries that another member can give end there.
    pub(super) fn tail_ends(&mut self, from: TargetId, upto: Position, now: Duration) {
        let here = self.at.position;
        let MemberRole::Elect(elect) = &mut self.role else { return };
        let Some(other) = elect.others.iter_mut().find(|other| other.target == from) else {
            return;
        };
        other.upto = Some(upto);
        if other.asked < here {
            // Some of it has come: the rest, if there is more.
            other.ask_at = now;
        }
        self.tick_catching_up(now);
        self.take_office(now);
    }
}
