//! One member of a mirror group: its state, and what the driver calls.

mod beside;
mod catching_up;
mod checkpoint;
mod commit;
mod primary;
mod reads;
mod repair;
mod resync;
mod room;
pub(crate) mod scrub;
mod secondary;
mod sink;

use std::fmt;
use std::time::Duration;

use samite_partition::{AppliedOutcome, BlockGrants, ChangeFunds, Partition, RequestContext};
use samite_types::{ClientId, DatasetId, Epoch, ErrorKind, PartitionId, Position, TargetId, Term};
use samite_wire::control::MemberConsistency;
use samite_wire::op::Operation;
use samite_wire::peer::{LogPoint, PeerEnvelope, PeerMessage};

use crate::commit::{ApplyTime, CommitPosition, CommitStatus};
use crate::copy_source::CopySource;
use crate::damage::DamagedRecords;
use crate::effects::{MirrorEffect, MirrorEffects};
use crate::group_view::GroupView;
use crate::log::EntryLog;
use crate::packet::PeerPacket;
use crate::read_leases::MemberReads;
use crate::resync_sink::ResyncSink;
use crate::role::MemberRole;
use crate::room::ReservedRoom;
use crate::rules::MirrorRules;
use crate::times::MirrorTimes;
use commit::CommitProgress;
pub use commit::MemberCommit;

/// One partition of one dataset on one target, with its part in the mirror group. See the
/// [crate](crate).
///
/// The driver calls, in any order: [`configure`](Self::configure) with each new map, before
/// anything is reported by it; [`apply`](Self::apply); [`receive`](Self::receive);
/// [`tick`](Self::tick) at [`next_tick`](Self::next_tick); [`resync_step`](Self::resync_step) as
/// fast as it lets resync be; and after each of them takes all [effects](Self::next_effect).
///
/// A group is shared by the partitions of all datasets of one redundancy: a member of it is good
/// when the partitions of all of them are up to date ([`MirroredPartition::ready`]), and needs a
/// resync when one of them has missed something.
pub struct MirroredPartition {
    partition: Partition,
    dataset: DatasetId,
    id: PartitionId,
    me: TargetId,
    epoch: Epoch,
    /// Newest term that is known.
    term: Term,
    /// More than one member: nothing is served without a lease.
    is_group: bool,
    role: MemberRole,
    /// Counts the times that this member has become primary.
    reign_number: u32,
    /// Where the log stands here.
    at: LogPoint,
    /// The records and `at` belong together; else this member has to be brought up to date.
    is_fit: bool,
    /// Its records may differ from those of others at the same version: a resync copies all.
    is_doubtful: bool,
    /// See [`GroupView::is_lost`].
    is_lost: bool,
    /// A primary may have granted delegations.
    grants_delegations: bool,
    /// The primary that this member follows.
    primary: TargetId,
    log: EntryLog,
    /// A checkpoint under way.
    checkpoint: Option<CopySource>,
    /// Entries come to be on flash, and are there up to this one: in a log, or in the records and
    /// the state that the store commits.
    logged: Option<Position>,
    /// They are in a log.
    appends: bool,
    commits: CommitProgress,
    sink: Option<ResyncSink>,
    damage: DamagedRecords,
    /// Entries come from a log on flash: nobody is to be told anything.
    is_replaying: bool,
    /// The last try to bring this member up to date, and its term.
    last_attempt: (Term, u32),
    reads: MemberReads,
    kept: ReservedRoom,
    effects: MirrorEffects,
    times: MirrorTimes,
    rules: MirrorRules,
}

impl MirroredPartition {
    /// The part of target `me` in the group of `partition`. It knows no group yet:
    /// [`MirroredPartition::configure`] tells.
    #[must_use]
    pub fn new(partition: Partition, dataset: DatasetId, id: PartitionId, me: TargetId) -> Self {
        Self {
            partition,
            dataset,
            id,
            me,
            epoch: Epoch(0),
            term: Term(0),
            is_group: true,
            role: MemberRole::Out,
            reign_number: 0,
            at: LogPoint::default(),
            is_fit: true,
            is_doubtful: false,
            is_lost: false,
            grants_delegations: false,
            primary: TargetId(0),
            log: EntryLog::default(),
            checkpoint: None,
            logged: None,
            appends: false,
            commits: CommitProgress::default(),
            sink: None,
            damage: DamagedRecords::default(),
            is_replaying: false,
            last_attempt: (Term(0), 0),
            reads: MemberReads::default(),
            kept: ReservedRoom::default(),
            effects: MirrorEffects::default(),
            times: MirrorTimes::DEFAULT,
            rules: MirrorRules::default(),
        }
    }

    /// The same with other times.
    #[must_use]
    pub const fn with_times(mut self, times: MirrorTimes) -> Self {
        self.times = times;
        self
    }

    /// The same, wrong in some way. For tests of tests.
    #[doc(hidden)]
    #[must_use]
    pub const fn with_rules(mut self, rules: MirrorRules) -> Self {
        self.partition.set_forgets(rules.forgets_results);
        self.partition.set_trusts_store(rules.trusts_store);
        self.rules = rules;
        self
    }

    /// Where its log stands, as a write-ahead log and its checkpoint gave it back; before the first
    /// [`MirroredPartition::configure`].
    #[must_use]
    pub const fn recovered(mut self, at: LogPoint, grants_delegations: bool) -> Self {
        self.at = at;
        self.grants_delegations = grants_delegations;
        self
    }

    /// The partition.
    #[must_use]
    pub const fn partition(&self) -> &Partition {
        &self.partition
    }

    /// The partition, for the parts of it that are outside the order of operations: delegations,
    /// and the records that are published.
    pub const fn partition_mut(&mut self) -> &mut Partition {
        &mut self.partition
    }

    /// This target.
    #[must_use]
    pub const fn me(&self) -> TargetId {
        self.me
    }

    /// Newest term that is known.
    #[must_use]
    pub const fn term(&self) -> Term {
        self.term
    }

    /// Where its log stands.
    #[must_use]
    pub const fn point(&self) -> LogPoint {
        self.at
    }

    /// Whether this member follows the log; otherwise it has to be brought up to date.
    #[must_use]
    pub const fn is_fit(&self) -> bool {
        self.is_fit
    }

    /// Whether the map names it the primary, and it does not decide yet: it takes over first what
    /// others have.
    #[must_use]
    pub const fn is_catching_up(&self) -> bool {
        matches!(self.role, MemberRole::CatchingUp(_))
    }

    /// Whether it decides on the order of operations.
    #[must_use]
    pub const fn is_primary(&self) -> bool {
        matches!(self.role, MemberRole::Primary(_))
    }

    /// Whether delegations may be out, of this primary or one before it.
    #[must_use]
    pub const fn grants_delegations(&self) -> bool {
        self.grants_delegations
    }

    /// Whether it is alone in its group and nothing is logged: then an operation is applied, and
    /// that is all.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        match &self.role {
            MemberRole::Primary(primary) => primary.is_plain,
            _ => false,
        }
    }

    /// Entries are written to a log on flash from here on; all up to now are there, or in its
    /// checkpoint.
    pub fn set_logs(&mut self) {
        self.appends = true;
        self.set_commits();
    }

    /// The store [commits](samite_backend::CommitRecords) the records and what
    /// [`MirroredPartition::export`] gives; all up to now is committed.
    pub fn set_commits(&mut self) {
        self.logged = Some(self.at.position);
        self.refresh_plain();
    }

    /// All entries up to `position` are on flash.
    pub fn logged(&mut self, position: Position) {
        let Some(logged) = &mut self.logged else { return };
        if position <= *logged || position > self.at.position {
            return;
        }
        *logged = position;
        match self.role {
            MemberRole::Primary(_) => self.advance(),
            MemberRole::Secondary if self.is_fit && self.at.term == self.term => self.acknowledge(),
            _ => {}
        }
    }

    /// The next effect. All are to be taken after each call.
    pub fn next_effect(&mut self) -> Option<MirrorEffect> {
        let envelope = self.envelope(TargetId(0));
        self.effects.next(&envelope)
    }

    /// Takes up a newer map.
    pub fn configure(&mut self, view: &GroupView, now: Duration) {
        self.see_time(now);
        if view.epoch <= self.epoch {
            return;
        }
        self.epoch = view.epoch;
        self.is_lost = view.is_lost;
        // Somebody of a newer term has been heard of: this map is behind.
        if view.term < self.term {
            return;
        }
        if view.term > self.term {
            self.sink = None;
        }
        self.is_group = view.members.len() > 1;
        match view.members.iter().position(|member| member.target == self.me) {
            // A member that was started again leads nothing while a good one is waited for: its log
            // is another in the same term.
            Some(0) if view.members[0].consistency == MemberConsistency::Good => {
                self.named(view, now)
            }
            Some(_) => {
                self.depose();
                self.term = view.term;
                self.role = MemberRole::Secondary;
            }
            None => {
                self.depose();
                self.term = view.term;
                self.role = MemberRole::Out;
            }
        }
    }

    /// Stops being the primary, or about to be it.
    fn depose(&mut self) {
        match self.role {
            MemberRole::Out | MemberRole::Secondary => return,
            MemberRole::CatchingUp(_) => return self.role = MemberRole::Out,
            MemberRole::Primary(_) => self.role = MemberRole::Out,
        }
        // Replies that wait are lost, also when this member answers reads later.
        self.reign_number += 1;
        self.reads.deposed();
        self.partition.set_follows(true);
        self.partition.set_notes_touched(false);
        self.effects.deposed();
    }

    /// Applies an operation of a client. The reply may leave when the commit position, if there is
    /// one, is [committed](Self::commit_status).
    ///
    /// Failures beside those of [`Partition::apply`]: `StaleMap` (another member is the primary),
    /// `Unavailable` (the lease of the node is over, too much waits for members, or delegations of
    /// an earlier primary may run: see [`MirroredPartition::mutable_at`]); this sending did nothing
    /// then, an earlier one may have.
    pub fn apply(
        &mut self,
        client: ClientId,
        context: &RequestContext,
        operation: &Operation<'_>,
        grants: &mut dyn BlockGrants,
        at: ApplyTime,
    ) -> (AppliedOutcome, Option<CommitPosition>) {
        match &self.role {
            MemberRole::Primary(primary) if primary.is_plain => {
                let outcome = self.apply_unless_lost(client, context, operation, grants);
                (self.unless_damaged(outcome, at.now), None)
            }
            MemberRole::Primary(_) => self.serve(client, context, operation, grants, at),
            MemberRole::Secondary if self.rules.reads_anywhere && !operation.is_mutation() => {
                (self.partition.apply(client, context, operation, grants), None)
            }
            MemberRole::CatchingUp(_) => (refused(ErrorKind::Unavailable), None),
            _ if self.may_read(operation) => self.read(client, context, operation, at),
            _ => (refused(ErrorKind::StaleMap), None),
        }
    }

    /// Applies an operation, to a partition that may be [lost](GroupView::is_lost).
    fn apply_unless_lost(
        &mut self,
        client: ClientId,
        context: &RequestContext,
        operation: &Operation<'_>,
        grants: &mut dyn BlockGrants,
    ) -> AppliedOutcome {
        if self.is_lost {
            self.partition.apply_lost(client, context, operation, grants)
        } else {
            self.partition.apply(client, context, operation, grants)
        }
    }

    /// The answer instead, when an operation has found a record that it reads damaged.
    fn unless_damaged(&mut self, outcome: AppliedOutcome, now: Duration) -> AppliedOutcome {
        match outcome {
            AppliedOutcome::Failed { kind: ErrorKind::Corrupt, .. } => {
                refused(self.note_damage(Vec::new(), now))
            }
            outcome => outcome,
        }
    }

    /// The status of a commit position.
    #[must_use]
    pub fn commit_status(&self, commit_position: CommitPosition) -> CommitStatus {
        let committed = match &self.role {
            MemberRole::Primary(primary) => primary.committed,
            MemberRole::Secondary => self.reads.committed(self.term),
            MemberRole::Out | MemberRole::CatchingUp(_) => return CommitStatus::Lost,
        };
        match commit_position.position <= committed {
            _ if commit_position.reign_number != self.reign_number => CommitStatus::Lost,
            true => CommitStatus::Committed,
            false => CommitStatus::Waiting,
        }
    }

    /// A message from another member.
    pub fn receive(&mut self, envelope: &PeerEnvelope, message: &PeerMessage<'_>, now: Duration) {
        if envelope.to != self.me || self.failed().is_some() {
            return;
        }
        self.see_time(now);
        let heeds_terms = !self.rules.ignores_terms;
        let is_old = envelope.term < self.term; // I1
        if is_old && heeds_terms {
            if speaks_as_primary(message) {
                self.answer(envelope.from, &PeerMessage::Stale);
            }
            return;
        }
        if envelope.term > self.term && (heeds_terms || !self.is_primary()) {
            self.depose();
            self.term = envelope.term;
            self.sink = None;
        }
        let from = envelope.from;
        match message {
            PeerMessage::Fetch { key } => self.fetch_asked(from, key, now),
            PeerMessage::Fetched { record } => self.fetched(from, record, now),
            PeerMessage::AskTail { have } => self.asked_tail(from, *have),
            PeerMessage::Tail(entry) => self.take_over(from, entry, now),
            PeerMessage::TailEnd { upto } => self.tail_ends(from, *upto, now),
            _ if !speaks_as_primary(message) => self.answered(from, message, now),
            _ if !self.is_primary() || !heeds_terms => self.follow(from, message, now),
            _ => {}
        }
    }

    fn envelope(&self, to: TargetId) -> PeerEnvelope {
        PeerEnvelope {
            dataset: self.dataset,
            partition: self.id,
            from: self.me,
            to,
            term: self.term,
            epoch: self.epoch,
        }
    }

    /// Sends a small message.
    fn answer(&mut self, to: TargetId, message: &PeerMessage<'_>) {
        let envelope = self.envelope(to);
        self.effects.send(PeerPacket::new(&envelope, message));
    }

    fn refresh_plain(&mut self) {
        let is_logged = self.logged.is_some();
        if let MemberRole::Primary(primary) = &mut self.role {
            primary.is_plain = !self.is_group && !is_logged && !self.reads.is_on();
            if primary.is_plain {
                // The room of members counts no more, and is not looked at again.
                self.partition.set_funds(ChangeFunds::Own);
            }
        }
    }
}

/// Whether only a primary says so.
const fn speaks_as_primary(message: &PeerMessage<'_>) -> bool {
    matches!(
        message,
        PeerMessage::Entry(_)
            | PeerMessage::Begin { .. }
            | PeerMessage::Compare { .. }
            | PeerMessage::Records { .. }
            | PeerMessage::State { .. }
            | PeerMessage::LendReads { .. }
            | PeerMessage::AskRoom { .. }
            | PeerMessage::AskTail { .. }
    )
}

fn refused(kind: ErrorKind) -> AppliedOutcome {
    AppliedOutcome::Failed { kind, index: 0, current: None }
}

impl fmt::Debug for MirroredPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            MemberRole::Out => "out",
            MemberRole::Secondary => "secondary",
            MemberRole::CatchingUp(_) => "elect",
            MemberRole::Primary(_) => "primary",
        };
        let Self { dataset, id, me, term, at, .. } = self;
        write!(f, "{dataset} {id} on {me}: {role} of {term}, {} at {}", at.position, at.version)
    }
}
