//! Read leases of a member, those that it has and those that it has given. The rules are in
//! `member/reads.rs`.

use std::time::Duration;

use samite_types::{Position, Term};

use crate::commit::NO_ENTRY;
use crate::steady::SteadyTime;

/// A member's state of reads by others than the primary.
#[derive(Debug, Default)]
pub(crate) struct MemberReads {
    /// The dataset lets all members answer them.
    is_on: bool,
    /// As a member: the primary of this term has granted a read lease until then, and said that all
    /// up to there is committed.
    term: Term,
    until: Duration,
    committed: Position,
    /// When it asked last, if no answer has come.
    asked_at: Option<Duration>,
    /// Reads wait until that is committed.
    wanted: Position,
    /// As a primary: the lease of the node runs until then.
    node_until: Duration,
    /// By this clock read leases end, and fences.
    steady: SteadyTime,
    /// The read leases are over then.
    given_until: Duration,
    /// It was the primary, and acknowledges nothing before that.
    withholds: bool,
}

impl MemberReads {
    /// Whether the dataset lets all members answer reads.
    pub(crate) const fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether it does from here on.
    pub(crate) const fn set_on(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    /// It is `now`; a gap counts for a `step` at most.
    pub(crate) fn pass(&mut self, now: Duration, step: Duration) {
        self.steady.look(now, step);
        self.withholds &= self.steady.now() < self.given_until;
    }

    /// The time by the [steady](SteadyTime) clock.
    pub(crate) fn steady_now(&self) -> Duration {
        self.steady.now()
    }

    /// When to look whether it is `until` by the [steady](SteadyTime) clock, of which a `step`
    /// counts at once.
    pub(crate) fn look_for(&self, until: Duration, step: Duration) -> Duration {
        self.steady.toward(until, step)
    }

    /// Up to where the primary of `term` has said that all is committed.
    pub(crate) fn committed(&self, term: Term) -> Position {
        if self.term == term { self.committed } else { NO_ENTRY }
    }

    /// Whether the primary of `term` has granted a read lease that runs still.
    pub(crate) fn has_lease(&self, term: Term, now: Duration) -> bool {
        self.term == term && now < self.until
    }

    /// Whether the last read lease runs until then.
    pub(crate) fn lasts(&self, until: Duration) -> bool {
        until <= self.until
    }

    /// Whether the primary is to be asked `now`: it was not, or not answered, since `again` before.
    pub(crate) fn ask(&mut self, now: Duration, again: Duration) -> bool {
        let is_asked = self.asked_at.is_some_and(|at| now < at + again);
        if !is_asked {
            self.asked_at = Some(now);
        }
        !is_asked
    }

    /// The primary of `term`, asked when it was `asked`, grants a read lease until then, and says
    /// that all up to `position` is committed. Whether reads wait for more.
    pub(crate) fn grant(
        &mut self,
        term: Term,
        asked: Duration,
        (until, position): (Duration, Position),
    ) -> bool {
        if self.term != term {
            (self.term, self.until, self.committed) = (term, until, position);
        }
        self.until = self.until.max(until);
        self.committed = self.committed.max(position);
        self.asked_at.take_if(|at| *at <= asked);
        self.wanted > self.committed
    }

    /// A read waits until all up to `position` is committed.
    pub(crate) const fn wait_for(&mut self, position: Position) {
        self.wanted = position;
    }

    /// Until when reads wait that need the word of the primary of `term`, or when it is asked
    /// again, `again` after the last time. `None`: none wait.
    pub(crate) fn waits(&self, term: Term, again: Duration) -> Option<Duration> {
        if self.wanted <= self.committed(term) {
            return None;
        }
        let again = self.asked_at.map(|at| at + again);
        Some(again.map_or(self.until, |again| again.min(self.until)))
    }

    /// No read waits any more. Whether one did.
    pub(crate) fn give_up(&mut self) -> bool {
        std::mem::take(&mut self.wanted) > NO_ENTRY
    }

    /// The lease of the node runs until then.
    pub(crate) const fn set_node_lease(&mut self, until: Duration) {
        self.node_until = until;
    }

    /// Whether the lease of the node runs until then.
    pub(crate) fn has_node_lease(&self, until: Duration) -> bool {
        until <= self.node_until
    }

    /// As a primary: a member gets a read lease that is over then, by the steady clock.
    pub(crate) fn note_given(&mut self, until: Duration) {
        self.given_until = self.given_until.max(until);
    }

    /// When the read leases are over that members have, by the steady clock; `None`: they are.
    pub(crate) fn given_until(&self) -> Option<Duration> {
        Some(self.given_until).filter(|until| *until > self.steady.now())
    }

    /// It is not the primary any more.
    pub(crate) fn deposed(&mut self) {
        self.withholds = self.given_until > Duration::ZERO;
        self.wanted = NO_ENTRY;
    }

    /// Whether it does not acknowledge anything for now.
    pub(crate) const fn withholds(&self) -> bool {
        self.withholds
    }

    /// When to look whether a former primary acknowledges again; a `step` of time counts at once.
    pub(crate) fn withheld(&self, step: Duration) -> Option<Duration> {
        self.withholds.then(|| self.look_for(self.given_until, step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_read_waits_until_the_primary_of_its_term_has_said_enough() {
        let mut reads = MemberReads::default();
        assert!(reads.ask(ms(1), ms(100)));
        assert!(!reads.ask(ms(2), ms(100)), "it is asked already");
        reads.wait_for(Position(5));
        assert!(reads.grant(Term(1), ms(1), (ms(50), Position(4))), "it waits for more");
        assert_eq!(reads.waits(Term(1), ms(100)), Some(ms(50)));
        assert!(reads.ask(ms(3), ms(100)), "the first question was answered");
        assert!(!reads.grant(Term(1), ms(3), (ms(60), Position(5))));
        assert_eq!(reads.waits(Term(1), ms(100)), None);
        assert!(reads.has_lease(Term(1), ms(59)) && !reads.has_lease(Term(1), ms(60)));
        // The word of one primary counts for nothing with the next.
        assert_eq!(reads.committed(Term(2)), NO_ENTRY);
        assert!(!reads.has_lease(Term(2), ms(10)));
        assert!(reads.waits(Term(2), ms(100)).is_some());
        assert!(reads.give_up() && !reads.give_up());
        assert_eq!(reads.waits(Term(2), ms(100)), None);
    }

    #[test]
    fn a_former_primary_acknowledges_nothing_before_its_read_leases_are_over() {
        let mut reads = MemberReads::default();
        reads.deposed();
        assert!(!reads.withholds(), "it has given none");
        reads.pass(ms(5), STEP);
        reads.note_given(reads.steady_now() + ms(25));
        assert_eq!(reads.given_until(), Some(ms(30)));
        reads.deposed();
        // The clock jumps: that counts for a step.
        reads.pass(ms(1000), STEP);
        assert!(reads.withholds() && reads.withheld(STEP).is_some());
        for at in 1..=2 {
            reads.pass(ms(1000) + STEP * at, STEP);
        }
        assert!(!reads.withholds() && reads.given_until().is_none());
    }
}
