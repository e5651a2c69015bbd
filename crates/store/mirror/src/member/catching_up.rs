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
use samite_wire::peer::{PartitionLogEntry, PeerEnvelope, PeerMessage};

use super::MirroredPartition;
use crate::catching_up::CatchingUpPrimary;
use crate::commit::NO_ENTRY;
use crate::effects::MirrorEffect;
use crate::group_view::GroupView;
use crate::log::LogEntry;
use crate::packet::PeerPacket;
use crate::role::MemberRole;

/// Most entries that are handed over at a time.
const ENTRIES_MAX: u64 = 64;

impl MirroredPartition {
    /// The map names this member the primary.
    pub(super) fn named(&mut self, view: &GroupView, now: Duration) {
        // Before the first term nobody has applied anything.
        let begins = self.at.position == NO_ENTRY && view.term == Term(0);
        if self.is_primary() || begins {
            return self.lead(view, &[], now);
        }
        self.term = view.term;
        let before = match &self.role {
            MemberRole::CatchingUp(catching_up) => Some(&**catching_up),
            _ => None,
        };
        let catching_up = CatchingUpPrimary::new(view, before, now);
        self.role = MemberRole::CatchingUp(Box::new(catching_up));
        self.partition.set_follows(true);
        self.give_up_reads();
        self.tick_catching_up(now);
        self.take_office(now);
    }

    /// Begins to decide, if there is nothing to be taken over any more.
    fn take_office(&mut self, now: Duration) {
        let MemberRole::CatchingUp(catching_up) = &self.role else { return };
        if let Some((view, ends)) = catching_up.settled(self.at.position) {
            self.lead(&view, &ends, now); // I5
        }
    }

    /// Asks the members again that have not answered, and reports those that do not answer at all.
    pub(super) fn tick_catching_up(&mut self, now: Duration) {
        let (have, envelope) = (self.at.position, self.envelope(TargetId(0)));
        let MemberRole::CatchingUp(catching_up) = &mut self.role else { return };
        let tasks = catching_up.due(self.me, have, &self.times, now);
        for to in tasks.asked {
            let envelope = PeerEnvelope { to, ..envelope };
            self.effects.send(PeerPacket::new(&envelope, &PeerMessage::AskTail { have }));
        }
        for (target, kind) in tasks.missed {
            self.effects.report(MirrorEffect::Missed { target, kind });
        }
    }

    /// When [`MirroredPartition::tick_catching_up`] has something to do.
    pub(super) fn next_catching_up(&self) -> Option<Duration> {
        let MemberRole::CatchingUp(catching_up) = &self.role else { return None };
        catching_up.next(self.at.position, self.times.report_again)
    }

    /// A member that was named cannot be told anything for now: it is reported at once.
    pub(super) fn unheard(&mut self, target: TargetId, now: Duration) {
        let (here, again) = (self.at.position, self.times.report_again);
        let MemberRole::CatchingUp(catching_up) = &mut self.role else { return };
        if catching_up.unheard(target, here, (now, again)) {
            self.effects.report(MirrorEffect::Missed { target, kind: ErrorKind::Unavailable });
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
        let MemberRole::CatchingUp(catching_up) = &mut self.role else { return };
        // It comes twice, or others are missing before it.
        if entry.before != self.at || catching_up.has_failed() {
            return;
        }
        catching_up.heard(from, now);
        let stepped = self.step(entry, now);
        if stepped.is_err() {
            self.become_unfit();
            if let MemberRole::CatchingUp(catching_up) = &mut self.role {
                catching_up.fail(now, self.times.report_again);
            }
            return self.tick_catching_up(now);
        }
        let kept = LogEntry::copied(entry);
        if self.appends {
            self.effects.append(kept.clone());
        }
        // Others may lack it as well.
        self.log.push(kept, stepped.unwrap_or_default());
        self.take_office(now);
    }

    /// The entries that another member can give end there.
    pub(super) fn tail_ends(&mut self, from: TargetId, upto: Position, now: Duration) {
        let here = self.at.position;
        let MemberRole::CatchingUp(catching_up) = &mut self.role else { return };
        if catching_up.tail_ends(from, upto, (here, now)) {
            self.tick_catching_up(now);
            self.take_office(now);
        }
    }
}
