//! The member that decides on the order of operations.

use std::time::Duration;

use samite_backend::ValuePiece;
use samite_partition::{AppliedOutcome, BlockGrants, RequestContext};
use samite_types::{ClientId, Epoch, ErrorKind, Position, TargetId, Term};
use samite_wire::control::MemberConsistency;
use samite_wire::op::Operation;
use samite_wire::peer::{EntryEvent, LogPoint, PartitionLogEntry, PeerMessage};
use smallvec::SmallVec;

use super::{MirroredPartition, refused};
use crate::commit::{ApplyTime, CommitPosition, NO_ENTRY};
use crate::digest;
use crate::effects::MirrorEffect;
use crate::group_view::GroupView;
use crate::log::LogEntry;
use crate::packet::PeerPacket;
use crate::payload::{self, GrantCopies};
use crate::peers::{EntryStream, GroupPeer};
use crate::role::{MemberRole, PrimaryState};

/// Most entries that are under way to one member, and to one that is late.
const WINDOW: u64 = 1024;
const WINDOW_FAILING: u64 = 1;

impl MirroredPartition {
    /// Decides by the map. `ends`: log ends of members that are known to lack entries, or none.
    pub(super) fn lead(&mut self, view: &GroupView, ends: &[(TargetId, Position)], now: Duration) {
        let is_new = !self.is_primary();
        if is_new {
            self.reign_number += 1;
            self.sink = None;
            self.is_fit = true;
            self.partition.set_follows(false);
            self.kept.close(&mut self.partition);
            if self.log.last() != Some(self.at.position) {
                self.log.clear();
            }
            let quiet_until = self.grants_delegations.then(|| now + self.times.delegation_term_max);
            let primary = PrimaryState { quiet_until, questions: 1, ..PrimaryState::default() };
            self.role = MemberRole::Primary(Box::new(primary));
            self.give_up_reads();
            self.fence_as_new();
            self.effects.leads();
        }
        let opens = is_new || view.term > self.term;
        self.term = view.term;
        self.see_members(view, now);
        self.begin_behind(ends, now);
        self.refresh_plain();
        if opens {
            self.partition.begin_term(self.term);
            self.record(EntryEvent::Opened, 0, Vec::new(), now);
        }
        self.advance();
    }

    fn see_members(&mut self, view: &GroupView, now: Duration) {
        let here = self.at.position;
        let live_until = self.partition.delegations().live_until();
        let MemberRole::Primary(primary) = &mut self.role else { return };
        if primary.is_plain && self.is_group {
            primary.long_delegations_until = live_until;
        }
        let is_required = |peer: &&GroupPeer| peer.is_required;
        let required: SmallVec<[TargetId; 4]> =
            primary.peers.iter().filter(is_required).map(|peer| peer.target).collect();
        let others = &view.members[1..];
        primary.peers.retain(|peer| others.iter().any(|member| member.target == peer.target));
        for (member, incarnation) in others.iter().zip(&view.incarnations[1..]) {
            let known = primary.peers.iter().position(|peer| peer.target == member.target);
            let index = known.unwrap_or_else(|| {
                primary.peers.push(GroupPeer::new(member.target));
                primary.peers.len() - 1
            });
            let peer = &mut primary.peers[index];
            peer.live(*incarnation, now);
            if self.rules.forgets_promises {
                peer.void_promise(view.epoch, view.epoch, view.epoch);
            }
            peer.see(member.consistency, view.epoch, here, now);
        }
        self.fence_without(&required);
    }

    /// Those members are sent the entries that they lack, as far as they are kept here.
    fn begin_behind(&mut self, ends: &[(TargetId, Position)], now: Duration) {
        let Self { role: MemberRole::Primary(primary), log, at, .. } = self else { return };
        for peer in &mut primary.peers {
            let end = ends.iter().find(|(target, _)| *target == peer.target);
            if let Some((_, end)) = end
                && *end < at.position
                && log.get(Position(end.get() + 1)).is_some()
                && peer.follows()
            {
                peer.stream = Some(EntryStream::new(*end, now));
            }
        }
    }

    /// Until when mutations wait for delegations of an earlier primary; `None`: they need not.
    #[must_use]
    pub fn mutable_at(&self, now: Duration) -> Option<Duration> {
        match &self.role {
            MemberRole::Primary(primary) => primary.quiet_until.filter(|until| *until > now),
            _ => None,
        }
    }

    /// Last entry of which replies may tell: applied by all required members. 0: not the primary.
    #[must_use]
    pub const fn committed(&self) -> Position {
        match &self.role {
            MemberRole::Primary(primary) => primary.committed,
            _ => NO_ENTRY,
        }
    }

    /// Bytes sent to bring members up to date.
    #[must_use]
    pub const fn resync_len(&self) -> u64 {
        match &self.role {
            MemberRole::Primary(primary) => primary.resync_len,
            _ => 0,
        }
    }

    /// The position that a reply on things as they are now has to wait for; `None`: nothing.
    #[must_use]
    pub fn commit_position(&self) -> Option<CommitPosition> {
        match &self.role {
            MemberRole::Primary(primary) if primary.committed < self.at.position => {
                Some(CommitPosition { reign_number: self.reign_number, position: self.at.position })
            }
            _ => None,
        }
    }

    /// Whether a member is good, or has everything and is waited for from here on: then it may be
    /// reported to be. The report must name the epoch of the last [`MirroredPartition::configure`];
    /// it may be under way until a newer one comes.
    pub fn ready(&mut self, target: TargetId, now: Duration) -> bool {
        let epoch = self.epoch;
        if self.failed().is_some() {
            return false;
        }
        let MemberRole::Primary(primary) = &mut self.role else { return false };
        let (committed, long_delegations_until) =
            (primary.committed, primary.long_delegations_until);
        let Some(peer) = primary.peers.iter_mut().find(|peer| peer.target == target) else {
            return false;
        };
        if peer.consistency == MemberConsistency::Good {
            return true;
        }
        let is_ready = peer.is_unknown_to_be_synced(committed) && !peer.is_failing;
        if !is_ready || now < long_delegations_until {
            return false;
        }
        peer.promise(epoch);
        true
    }

    /// Applies an operation, and writes down its results.
    pub(super) fn serve(
        &mut self,
        client: ClientId,
        context: &RequestContext,
        operation: &Operation<'_>,
        grants: &mut dyn BlockGrants,
        at: ApplyTime,
    ) -> (AppliedOutcome, Option<CommitPosition>) {
        let changes = operation.is_mutation();
        if self.is_group && at.now >= at.lease_until && !self.rules.ignores_lease
            || changes && self.mutable_at(at.now).is_some()
            || !operation.only_reads() && self.is_stuffed(at.now)
        {
            return (refused(ErrorKind::Unavailable), None);
        }
        let waits = self.waits();
        let is_settled = !waits || !changes && self.commit_position().is_none();
        self.partition.set_shows(is_settled);
        let delegation_term_max = context.delegation_term_max.min(self.times.delegation_term_max);
        let context = RequestContext { delegation_term_max, ..*context };
        let stamps = self.partition.stamps();
        let funds = self.funds(at.now);
        self.partition.set_funds(funds);
        let mut copies = GrantCopies::new(grants, operation);
        let outcome = self.apply_unless_lost(client, &context, operation, &mut copies);
        if let Some(short) = self.partition.take_short() {
            self.ask_room(short, at.now);
        }
        let taken = copies.taken;
        let outcome = self.unless_damaged(outcome, at.now);
        let after = self.partition.stamps();
        if after != stamps {
            if after.version != stamps.version {
                self.write_change(client, &context, operation, &outcome, taken, at.now);
            } else if after.refusals != stamps.refusals {
                self.write_refusal(client, &context, operation, &outcome, at.now);
            } else {
                self.write_references(client, operation, &outcome, at.now);
            }
        }
        if self.failed().is_some() {
            return (refused(ErrorKind::Unavailable), None);
        }
        self.note_delegations(operation, &outcome, at.now);
        (outcome, if self.rules.replies_early { None } else { self.commit_position() })
    }

    /// Whether any member has to acknowledge the entries that are applied.
    fn waits(&self) -> bool {
        match &self.role {
            MemberRole::Primary(primary) => {
                self.logged.is_some()
                    || primary.fenced_until.is_some()
                    || primary.peers.iter().any(|peer| peer.is_required)
            }
            _ => false,
        }
    }

    /// Whether too many entries wait. Those for members that are not required are given up first.
    pub(super) fn is_stuffed(&mut self, now: Duration) -> bool {
        if self.is_behind_commits() {
            return true;
        }
        if !self.log.is_full() {
            return false;
        }
        if let MemberRole::Primary(primary) = &mut self.role {
            let optional = |peer: &&mut GroupPeer| !peer.is_required && peer.stream.is_some();
            primary.peers.iter_mut().filter(optional).for_each(|peer| peer.let_go(now));
        }
        self.advance();
        self.log.is_full()
    }

    fn write_change(
        &mut self,
        client: ClientId,
        context: &RequestContext,
        operation: &Operation<'_>,
        outcome: &AppliedOutcome,
        taken: Vec<ValuePiece>,
        now: Duration,
    ) {
        let AppliedOutcome::Done(outputs) = outcome else { return };
        let payload = match self.writes_down() {
            true => payload::of_applied(&self.partition, operation, outputs, taken),
            false => Some(Vec::new()),
        };
        // A change that the other members cannot be told of must not be there.
        let Some(payload) = payload else { return self.partition.fail(ErrorKind::Io) };
        let event = EntryEvent::Applied {
            client,
            answered_below: context.answered_below,
            is_retry: context.is_retry,
            name_space_generation: context.name_space_generation,
            operation: operation.clone(),
        };
        self.record(event, digest::of_outcome(operation, outputs), payload, now);
    }

    /// Whether entries are needed by anybody.
    fn writes_down(&self) -> bool {
        match &self.role {
            MemberRole::Primary(primary) => {
                self.appends || primary.peers.iter().any(|peer| peer.stream.is_some())
            }
            _ => false,
        }
    }

    /// Writes down an event of the partition, and sends it.
    pub(super) fn record(
        &mut self,
        event: EntryEvent<'_>,
        outcome: u32,
        payload: Vec<ValuePiece>,
        now: Duration,
    ) {
        let before = self.at;
        let position = Position(before.position.get() + 1);
        let after = LogPoint { term: self.term, position, version: self.partition.version() };
        let cost = self.partition.take_charge();
        self.at = after;
        if self.writes_down() {
            let entry = LogEntry::new(PartitionLogEntry { before, after, outcome, event }, payload);
            if self.appends {
                self.effects.append(entry.clone());
            }
            self.log.push(entry, cost);
            let peers = match &self.role {
                MemberRole::Primary(primary) => primary.peers.len(),
                _ => 0,
            };
            (0..peers).for_each(|index| self.pump(index, now));
            self.ask_ahead(now);
        }
        self.note_touched();
        self.advance();
    }

    /// Tells the copies under way which records have changed.
    pub(super) fn note_touched(&mut self) {
        let keys = self.partition.take_touched();
        if keys.is_empty() || self.rules.resyncs_without_queue {
            return;
        }
        let mut is_needed = self.checkpoint.is_some();
        if let Some(checkpoint) = &mut self.checkpoint {
            keys.iter().for_each(|key| checkpoint.note(key));
        }
        if let MemberRole::Primary(primary) = &mut self.role {
            for resync in primary.peers.iter_mut().filter_map(|peer| peer.resync.as_mut()) {
                is_needed = true;
                keys.iter().for_each(|key| resync.note(key));
            }
        }
        self.partition.set_notes_touched(is_needed);
    }

    /// Sends a member the entries that it may be sent.
    pub(super) fn pump(&mut self, index: usize, now: Duration) {
        let envelope = self.envelope(TargetId(0));
        let last = self.at.position;
        let Self { role: MemberRole::Primary(primary), log, effects, times, .. } = self else {
            return;
        };
        let peer = &mut primary.peers[index];
        let window = if peer.is_failing { WINDOW_FAILING } else { WINDOW };
        let Some(stream) = peer.stream.as_mut().filter(|stream| !stream.is_paused) else { return };
        if stream.acked == stream.sent && stream.sent < last {
            (stream.since, stream.resend_at) = (now, now + times.retransmit);
        }
        let end = last.get().min(stream.acked.get() + window);
        while stream.sent.get() < end {
            let position = Position(stream.sent.get() + 1);
            let Some(entry) = log.get(position) else {
                return self.fail(index, ErrorKind::NotFound, now);
            };
            stream.sent = position;
            let envelope = samite_wire::peer::PeerEnvelope { to: peer.target, ..envelope };
            effects.send(PeerPacket::shared(&envelope, &entry.message, &entry.payload));
        }
    }

    /// Finds out which entries are committed (I2, I3).
    pub(super) fn advance(&mut self) {
        let last = self.at.position;
        let Self { role: MemberRole::Primary(primary), log, effects, logged, rules, .. } = self
        else {
            return;
        };
        let streams = |peer: &GroupPeer| peer.stream.as_ref().map(|stream| stream.acked);
        let required = primary.peers.iter().filter(|peer| peer.is_required);
        let acked = required.map(|peer| streams(peer).unwrap_or(NO_ENTRY)).chain(*logged);
        let committed = acked.fold(last, Position::min);
        let committed = if rules.replies_early { last } else { committed };
        let has_more = committed > primary.committed && primary.fenced_until.is_none();
        if has_more {
            primary.committed = committed;
            effects.committed();
        }
        // The log on flash has its own copy.
        let needed = primary.peers.iter().filter_map(streams);
        log.trim(needed.fold(last, Position::min));
        if has_more && self.reads.is_on() {
            self.grant_all();
        }
    }

    /// A member answers.
    pub(super) fn answered(&mut self, from: TargetId, message: &PeerMessage<'_>, now: Duration) {
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let Some(index) = primary.peers.iter().position(|peer| peer.target == from) else { return };
        match message {
            PeerMessage::Applied { position, here, room, has_reserve, answers } => {
                self.room_told(index, (*here, *room), (*has_reserve, *answers), now);
                self.acked(index, *position, now);
            }
            PeerMessage::Gap { have } => self.gap(index, *have, now),
            PeerMessage::Unfit { position, kind } if refuses(&primary.peers[index], *position) => {
                self.fail(index, *kind, now);
            }
            PeerMessage::AskReads { asked, position } => {
                self.asked_reads(index, (*asked, *position), now);
            }
            PeerMessage::Differs { after, upto } => self.mend(after, upto, now),
            PeerMessage::Done { attempt, step, again, wanted, .. } => {
                self.step_done(index, (*attempt, *step), (*again, wanted), now);
            }
            PeerMessage::Lost { attempt, kind } => self.step_lost(index, *attempt, *kind, now),
            _ => {}
        }
    }

    fn acked(&mut self, index: usize, position: Position, now: Duration) {
        let (last, retransmit) = (self.at.position, self.times.retransmit);
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let peer = &mut primary.peers[index];
        let Some(stream) = peer.stream.as_mut().filter(|stream| !stream.is_paused) else { return };
        if position > last || position <= stream.acked {
            return;
        }
        stream.acked = position;
        stream.lost_at = None;
        stream.sent = stream.sent.max(position);
        (stream.since, stream.resend_at) = (now, now + retransmit);
        peer.is_failing = false;
        self.pump(index, now);
        self.advance();
        self.announce(index, now);
    }

    /// A member lacks entries before the one that it got.
    fn gap(&mut self, index: usize, have: Position, now: Duration) {
        let quiet = self.times.retransmit / 10;
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let peer = &mut primary.peers[index];
        let Some(stream) = peer.stream.as_mut().filter(|stream| !stream.is_paused) else { return };
        let is_repeated = stream.gap.0 == have && now < stream.gap.1 + quiet;
        if is_repeated || have.get() > self.at.position.get() {
            return;
        }
        stream.gap = (have, now);
        if have < stream.acked {
            // It comes late; or the member has lost acknowledged entries, and will say so again.
            let lost_at = *stream.lost_at.get_or_insert(now);
            if now >= lost_at + self.times.retransmit {
                self.fail(index, ErrorKind::NotFound, now);
            }
            return;
        }
        stream.sent = have;
        self.pump(index, now);
    }

    /// A member cannot be reached.
    pub fn unreachable(&mut self, target: TargetId, now: Duration) {
        self.see_time(now);
        self.unheard(target, now);
        let MemberRole::Primary(primary) = &mut self.role else { return };
        if let Some(index) = primary.peers.iter().position(|peer| peer.target == target)
            && primary.peers[index].is_required
        {
            self.fail(index, ErrorKind::Unavailable, now);
        }
    }

    /// The coordinator has answered, with the map of `by`, a report of [`MirrorEffect::Missed`]
    /// that was made in `term` by the map of `reported`: whatever was said before that of the
    /// member's being up to date counts for nothing from then on, and this member can go on without
    /// it when a map calls it not good.
    pub fn missed_answered(
        &mut self,
        target: TargetId,
        (term, reported): (Term, Epoch),
        by: Epoch,
        now: Duration,
    ) {
        let epoch = self.epoch;
        let is_present = term == self.term;
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let peer = primary.peers.iter_mut().find(|peer| peer.target == target);
        let Some(peer) = peer.filter(|_| is_present) else { return };
        peer.void_promise(reported, by, epoch);
        if peer.is_required && peer.is_failing && peer.may_let_go() {
            peer.let_go(now);
        }
        self.advance();
    }

    /// A member does not follow.
    pub(super) fn fail(&mut self, index: usize, kind: ErrorKind, now: Duration) {
        let again = self.times.report_again;
        let drops = self.rules.drops_unrecorded;
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let peer = &mut primary.peers[index];
        peer.is_failing = true;
        if !peer.is_required || peer.may_let_go() {
            peer.let_go(now);
        } else if peer.reported_at.is_none_or(|at| now >= at + again) {
            peer.reported_at = Some(now);
            let target = peer.target;
            if drops {
                peer.let_go(now);
            }
            self.effects.report(MirrorEffect::Missed { target, kind });
        }
        self.advance();
    }

    /// Time has passed: sends unanswered messages again, and reports members that do not answer.
    pub fn tick(&mut self, now: Duration) {
        self.see_time(now);
        if self.failed().is_some() {
            return;
        }
        let (last, times) = (self.at.position, self.times);
        if self.damage.next().is_some_and(|at| now >= at) {
            self.mend_due(now);
        }
        let mut index = 0;
        while let MemberRole::Primary(primary) = &mut self.role
            && let Some(peer) = primary.peers.get_mut(index)
        {
            let resends = peer.resync.as_ref().and_then(|sync| sync.resend_at(times.retransmit));
            if resends.is_some_and(|at| now >= at) {
                self.resend_step(index, now);
            } else if let Some(stream) = owing(peer, last) {
                let is_missed = now >= stream.since + times.missed;
                if now >= stream.resend_at {
                    stream.sent = stream.acked;
                    let since = stream.since;
                    self.pump(index, now);
                    self.owes_since(index, since, now + times.retransmit);
                }
                if is_missed {
                    self.fail(index, ErrorKind::Timeout, now);
                }
            }
            self.announce(index, now);
            self.see_answer(index, now);
            index += 1;
        }
        self.review_room(now);
        self.tick_catching_up(now);
        self.end_quiet(now);
        self.end_fence();
        self.tick_reads(now);
    }

    /// A member that was sent something again has owed its answer for longer.
    fn owes_since(&mut self, index: usize, since: Duration, resend_at: Duration) {
        if let MemberRole::Primary(primary) = &mut self.role
            && let Some(stream) = primary.peers[index].stream.as_mut()
        {
            (stream.since, stream.resend_at) = (since, resend_at);
        }
    }

    /// Delegations of earlier primaries are over.
    fn end_quiet(&mut self, now: Duration) {
        let MemberRole::Primary(primary) = &mut self.role else { return };
        if primary.quiet_until.is_none_or(|until| now < until) {
            return;
        }
        primary.quiet_until = None;
        if !primary.grants_delegations && !self.log.is_full() {
            self.grants_delegations = false;
            self.record(EntryEvent::Lending { on: false }, 0, Vec::new(), now);
        }
    }

    /// When [`MirroredPartition::tick`] has something to do; `None`: as long as nothing else
    /// happens, never.
    #[must_use]
    pub fn next_tick(&self) -> Option<Duration> {
        let damage = self.damage.next();
        let MemberRole::Primary(primary) = &self.role else {
            let others = [self.reads_wait(), self.withheld(), self.next_catching_up(), damage];
            return others.into_iter().flatten().min();
        };
        let last = self.at.position;
        let times = self.times;
        let peers = primary.peers.iter().filter_map(|peer| {
            let resync = peer.resync.as_ref().and_then(|sync| sync.resend_at(times.retransmit));
            let stream = peer.stream.as_ref().filter(|stream| owes(stream, last));
            let announces = peer.is_unknown_to_be_synced(primary.committed);
            let announce = announces.then(|| peer.announced_at.map(|at| at + times.missed));
            let answer = resync.or_else(|| stream.map(|stream| stream.resend_at));
            answer.into_iter().chain(announce.map(Option::unwrap_or_default)).min()
        });
        let fence = primary.fenced_until.map(|until| self.look_for(until));
        let others = [primary.quiet_until, fence, damage, self.next_review()];
        peers.chain(others.into_iter().flatten()).min()
    }
}

/// Whether it is now that a member refuses this entry: it has not applied it since.
fn refuses(peer: &GroupPeer, position: Position) -> bool {
    let acked = peer.stream.as_ref().map(|stream| stream.acked);
    peer.follows() && acked.is_some_and(|acked| position > acked)
}

/// The stream of a member that owes an answer.
fn owing(peer: &mut GroupPeer, last: Position) -> Option<&mut EntryStream> {
    peer.stream.as_mut().filter(|stream| owes(stream, last))
}

fn owes(stream: &EntryStream, last: Position) -> bool {
    !stream.is_paused && stream.acked < last
}
