//! Reads by members that are not the primary, where a dataset lets them
//! ([`MirroredPartition::set_reads_any`]).
//!
//! Such a member answers operations that only read while it has a *read lease* from the primary,
//! and only with committed records. It asks ([`PeerMessage::AskReads`]); the answer
//! ([`PeerMessage::LendReads`]) says which entries are committed, and counts for
//! [`Times::read_lease`](crate::MirrorTimes::read_lease) from when the member asked. Until then the
//! primary commits nothing without that member, whatever a map says meanwhile. So a change that was
//! acknowledged before a read began is in the member's copy, and a result that the read saw is
//! never undone. No member asks where no client reads, and no change waits where no member asks.
//!
//! - A read lease is granted to a member that is good by the primary's map and answers, while the
//!   lease of the primary's node runs for longer than the read lease.
//! - A primary without a member that it required commits nothing before all its read leases are
//!   over (a *fence*).
//! - Time counts for read leases as far as it was seen to pass
//!   ([`SteadyTime`](crate::steady::SteadyTime)): a primary whose clock jumps ahead does not take
//!   them for over.
//! - A new primary begins with a fence: it does not know the read leases that others have granted.
//!   A former one, without which nothing is committed until every node knows that it is none any
//!   more, acknowledges nothing before its read leases are over; where it is dropped there is a
//!   fence, too.
//!
//! A read at a member that may not answer is refused at once, and the member asks: the next one
//! will be answered. A read that saw entries that may not be committed waits for the primary's word
//! on them, as long as the read lease runs.

use std::time::Duration;

use samite_partition::{AppliedOutcome, NoGrants, RequestContext};
use samite_types::{ClientId, ErrorKind, Position, TargetId};
use samite_wire::control::MemberConsistency;
use samite_wire::op::Operation;
use samite_wire::peer::PeerMessage;

use super::{MirroredPartition, refused};
use crate::commit::{ApplyTime, CommitPosition, NO_ENTRY};
use crate::role::MemberRole;

impl MirroredPartition {
    /// Whether members that are not the primary answer reads; before the first
    /// [`MirroredPartition::configure`], and the same for all members.
    pub const fn set_reads_any(&mut self, any: bool) {
        self.reads.set_on(any);
    }

    /// The lease of the node runs until then. To be told before messages are received, and before
    /// time passes.
    pub const fn set_lease(&mut self, until: Duration) {
        self.reads.set_node_lease(until);
    }

    /// It is `now`: to be said before anything is decided by read leases.
    pub(super) fn see_time(&mut self, now: Duration) {
        let step = if self.rules.trusts_jumps { Duration::MAX } else { self.time_step() };
        self.reads.pass(now, step);
    }

    /// How much time counts at once for read leases.
    fn time_step(&self) -> Duration {
        self.times.read_lease / 4
    }

    /// When all read leases of now are over, by the [steady](crate::steady::SteadyTime) clock: also
    /// if a jump of the clock comes between.
    fn outlasting(&self) -> Duration {
        self.reads.steady_now() + self.times.read_lease + self.time_step()
    }

    /// When to look whether it is `until` by the [steady](crate::steady::SteadyTime) clock.
    pub(super) fn look_for(&self, until: Duration) -> Duration {
        self.reads.look_for(until, self.time_step())
    }

    /// When to look whether a former primary acknowledges again.
    pub(super) fn withheld(&self) -> Option<Duration> {
        self.reads.withheld(self.time_step())
    }

    /// Whether a member may answer this operation that is not the primary. It may still refuse.
    #[must_use]
    pub fn may_read(&self, operation: &Operation<'_>) -> bool {
        self.reads.is_on() && matches!(self.role, MemberRole::Secondary) && operation.only_reads()
    }

    /// Answers a read as a member that follows.
    pub(super) fn read(
        &mut self,
        client: ClientId,
        context: &RequestContext,
        operation: &Operation<'_>,
        at: ApplyTime,
    ) -> (AppliedOutcome, Option<CommitPosition>) {
        let follows = self.is_fit && self.at.term == self.term && self.at.position > NO_ENTRY;
        if !follows {
            return (refused(ErrorKind::StaleMap), None);
        }
        let is_granted = self.reads.has_lease(self.term, at.now) || self.rules.reads_forever;
        let waits = self.at.position > self.reads.committed(self.term);
        // In time for the next.
        if !is_granted || waits || !self.reads.lasts(at.now + self.times.read_lease / 2) {
            self.ask_reads(at.now);
        }
        if !is_granted {
            return (refused(ErrorKind::StaleMap), None);
        }
        self.partition.set_shows(false);
        let outcome = self.apply_unless_lost(client, context, operation, &mut NoGrants);
        let outcome = self.unless_damaged(outcome, at.now);
        if !waits || self.rules.reads_uncommitted {
            return (outcome, None);
        }
        self.reads.wait_for(self.at.position);
        (
            outcome,
            Some(CommitPosition { reign_number: self.reign_number, position: self.at.position }),
        )
    }

    /// Asks the primary, unless it is asked already.
    fn ask_reads(&mut self, now: Duration) {
        if !self.reads.ask(now, self.times.retransmit) {
            return;
        }
        let asked = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let question = PeerMessage::AskReads { asked, position: self.at.position };
        self.answer(self.primary, &question);
    }

    /// The primary grants read leases.
    pub(super) fn granted(&mut self, asked: u64, position: Position, now: Duration) {
        let asked = Duration::from_nanos(asked);
        if !self.is_fit || self.at.term != self.term || asked > now {
            return;
        }
        // Clocks may differ a little in speed.
        let until = asked + self.times.read_lease / 10 * 9;
        let waits = self.reads.grant(self.term, asked, (until, position));
        self.effects.committed();
        if waits {
            self.ask_reads(now);
        }
    }

    /// Sees to reads that wait: asks again, or gives them up.
    pub(super) fn tick_reads(&mut self, now: Duration) {
        if self.reads_wait().is_none() {
            return;
        }
        if self.reads.has_lease(self.term, now) {
            return self.ask_reads(now);
        }
        self.give_up_reads();
    }

    /// Reads that wait are answered by others.
    pub(super) fn give_up_reads(&mut self) {
        if self.reads.give_up() {
            self.reign_number += 1;
            self.effects.committed();
        }
    }

    /// When reads that wait are to be seen to.
    pub(super) fn reads_wait(&self) -> Option<Duration> {
        self.reads.waits(self.term, self.times.retransmit)
    }

    /// A member asks whether it may answer reads.
    pub(super) fn asked_reads(&mut self, index: usize, question: (u64, Position), now: Duration) {
        let given_until = self.outlasting();
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let peer = &mut primary.peers[index];
        let has_lease =
            self.reads.has_node_lease(now + self.times.read_lease) || self.rules.ignores_lease;
        let is_up =
            peer.consistency == MemberConsistency::Good && peer.is_required && !peer.is_failing;
        // A member may not know yet that the partition is lost, and would say that something is
        // missing.
        let may_grant = self.reads.is_on() && has_lease && is_up && !self.is_lost;
        if may_grant && question.1 <= self.at.position {
            self.reads.note_given(given_until);
            peer.asks = Some(question);
            self.grant_reads(index);
        }
    }

    /// Tells members that wait for it which entries are committed.
    pub(super) fn grant_all(&mut self) {
        let peers = match &self.role {
            MemberRole::Primary(primary) => primary.peers.len(),
            _ => 0,
        };
        (0..peers).for_each(|index| self.grant_reads(index));
    }

    fn grant_reads(&mut self, index: usize) {
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let position = primary.committed;
        let peer = &mut primary.peers[index];
        let (to, committed) = (peer.target, |asks: &mut (u64, Position)| asks.1 <= position);
        if let Some((asked, _)) = peer.asks.take_if(committed) {
            self.answer(to, &PeerMessage::LendReads { asked, position });
        }
    }

    /// Commits nothing before all read leases are over that another primary may have granted.
    pub(super) fn fence_as_new(&mut self) {
        // Where nothing has ever happened no primary has granted any.
        if self.reads.is_on() && self.at.position > NO_ENTRY {
            self.fence(self.outlasting());
        }
    }

    /// Some of the members that were `required` are not any more: their read leases are to be over
    /// first.
    pub(super) fn fence_without(&mut self, required: &[TargetId]) {
        let MemberRole::Primary(primary) = &self.role else { return };
        let is_required =
            |one: &TargetId| primary.peers.iter().any(|p| p.target == *one && p.is_required);
        let mut dropped = required.iter().filter(|one| !is_required(one)).peekable();
        if !self.reads.is_on() || dropped.peek().is_none() {
            return;
        }
        let granted = self.reads.given_until();
        let by_former = dropped.any(|one| *one == self.primary).then(|| self.outlasting());
        if let Some(until) = granted.max(by_former) {
            self.fence(until);
        }
    }

    fn fence(&mut self, until: Duration) {
        if self.rules.ignores_granted_reads {
            return;
        }
        if let MemberRole::Primary(primary) = &mut self.role {
            primary.fenced_until = primary.fenced_until.max(Some(until));
        }
    }

    /// Ends the fence when its time has come.
    pub(super) fn end_fence(&mut self) {
        let now = self.reads.steady_now();
        if let MemberRole::Primary(primary) = &mut self.role
            && primary.fenced_until.take_if(|until| now >= *until).is_some()
        {
            self.advance();
        }
    }
}
