//! The shard as the driver of its mirrored partitions: carries out their effects at the end of each
//! request batch.
//!
//! ```text
//!  request, message,                                  ┌─ messages ── one frame for each node
//!  map, timer ──────── MirroredPartition ── effects ──┼─ committed ── deferred replies
//!                                                     └─ changes of members ── reports
//! ```

use std::time::Duration;

use samite_metrics::registry;
use samite_mirror::durable::PlaceId;
use samite_mirror::{ApplyTime, CommitStatus, MirrorEffect, PeerPacket};
use samite_placement::shard_of;
use samite_transport::server::ReplySink;
use samite_types::{ClientId, Clock, Epoch, ErrorKind, NodeId, SystemClock, TargetId};
use samite_wire::control::DatasetData;
use samite_wire::membership::{MemberChanges, MemberReport};
use samite_wire::op::OperationRequest;
use samite_wire::peer::{PeerEnvelope, PeerMessage, PeerService};

use super::ShardService;
use crate::admission::{MemberStanding, check_member};
use crate::deferred_replies::{DeferredId, DeferredReply};
use crate::inbox::ShardAnswer;
use crate::joined_requests::PartialOutcome;
use crate::partitions::{DatasetIndex, Seen};
use crate::peer_channel::{PeerDestination, PeerMessageParts};

/// Requests of clients are refused that would have to be passed on to a node for which so many
/// bytes wait.
const FULL_LEN: usize = 8 << 20;

impl ShardService {
    /// The time by which operations on mirrored partitions are judged.
    pub(super) fn apply_time(&self) -> ApplyTime {
        ApplyTime {
            now: SystemClock.monotonic(),
            lease_until: self.shared.membership.lease_until(),
        }
    }

    /// Whether the operations of `request` on this shard's partitions of a dataset with mirrors may be tried. `len`: bytes of the request.
    pub(super) fn check_members(
        &mut self,
        slot: DatasetIndex,
        request: &OperationRequest<'_>,
        (at, len): (ApplyTime, usize),
        out: &ReplySink,
    ) -> Result<(), ErrorKind> {
        let Some(map) = self.map.clone() else { return Err(ErrorKind::Busy) };
        let shards = self.shared.shards();
        let redundancy = self.partitions.redundancy(slot);
        let mut is_checked_for_log = false;
        for operation in &request.operations {
            let partition = operation.partition;
            if shard_of(partition, shards) != self.id {
                continue;
            }
            let member = &self.partitions.open(slot, partition, (&map, at.now))?.member;
            if member.is_plain() {
                continue;
            }
            let others = map.group(redundancy, partition).map_or(&[][..], |group| &group.members);
            let standing = MemberStanding {
                is_primary: member.is_primary(),
                is_catching_up: member.is_catching_up(),
                may_read: member.may_read(operation),
                has_others: others.len() != 1,
                has_room: self.deferred.has_room(len),
            };
            check_member(standing, at)?;
            if !is_checked_for_log && self.partitions.is_logged(slot) {
                is_checked_for_log = true;
                self.check_log(request, len)?;
            }
            if !operation.is_mutation() {
                continue;
            }
            for other in others.iter().filter_map(|other| map.node_of_target(other.target)) {
                if self.channel.waiting_len(PeerService::Mirror, other, out) > FULL_LEN {
                    return Err(ErrorKind::Busy);
                }
            }
        }
        Ok(())
    }

    /// Defers a reply until what it has seen is committed.
    pub(super) fn defer_reply(&mut self, seen: Seen, reply: DeferredReply, len: usize) {
        let id = self.deferred.next_id();
        let mut partitions = 0;
        for (at, commit_position) in seen {
            if let Some(replica) = self.partitions.replica(at) {
                replica.deferred.push_back((commit_position, id));
                partitions += 1;
            }
        }
        debug_assert!(partitions > 0, "partitions are dropped between requests only");
        self.deferred.defer(reply, partitions, len);
    }

    /// A message of another member.
    pub(super) fn message(
        &mut self,
        (node, back): (NodeId, PeerDestination),
        envelope: &PeerEnvelope,
        message: PeerMessage<'_>,
    ) {
        let Some(map) = self.map.clone() else { return };
        let me = TargetId(self.shared.node.get());
        if envelope.to != me || map.node_of_target(envelope.from) != Some(node) {
            return;
        }
        let id = (envelope.dataset, envelope.partition);
        let now = SystemClock.monotonic();
        if self.partitions.replica(id).is_none() && !self.open_for(id, now) {
            return;
        }
        let lease_until = self.shared.membership.lease_until();
        self.note_service(now);
        // A term that begins, or a range that is compared, is no client's work.
        if let PeerMessage::Entry(entry) = &message
            && entry.event.is_clients()
        {
            self.resync.note_entry(now);
        }
        let is_busy = self.resync.serves_clients(now);
        let Some(replica) = self.partitions.mark_ready(id) else { return };
        let partition = replica.member.partition();
        let before = (partition.record_count(), partition.leaked_orphans());
        replica.member.set_lease(lease_until);
        replica.member.set_busy(is_busy);
        replica.member.receive(envelope, &message, now);
        self.partitions.recount(id, before);
        if let PeerMessage::Done { .. } | PeerMessage::Lost { .. } = message {
            self.resync.heard(id, matches!(message, PeerMessage::Done { is_busy: true, .. }), now);
        }
        self.channel.heard(PeerService::Mirror, node, back);
    }

    /// Opens a partition of which this node is a member; whether it is.
    fn open_for(&mut self, (dataset, partition): PlaceId, now: Duration) -> bool {
        let Some(map) = self.map.clone() else { return false };
        let me = TargetId(self.shared.node.get());
        let Some(slot) = self.partitions.dataset(&map, dataset) else { return false };
        let group = map.group(self.partitions.redundancy(slot), partition);
        let is_mine = group.is_some_and(|group| group.members.iter().any(|m| m.target == me));
        is_mine && self.partitions.open(slot, partition, (&map, now)).is_ok()
    }

    /// Carries out the effects of partitions, and sends the messages that were written.
    pub(super) fn settle(&mut self, out: &mut ReplySink) {
        if self.partitions.is_idle() && self.channel.is_idle() {
            return;
        }
        let mut holders = Vec::new();
        while let Some(id) = self.partitions.next_ready() {
            self.carry_out(id, out, &mut holders);
            self.partitions.set_timer(id);
        }
        if !holders.is_empty() {
            // Clients with open references on which this node decides from now on.
            self.clients.recover(holders, SystemClock.monotonic());
        }
        self.send_peer_messages(out);
    }

    /// Carries out the effects of one partition. `holders`: the clients with open references in it,
    /// when this node begins to decide there.
    fn carry_out(&mut self, id: PlaceId, out: &mut ReplySink, holders: &mut Vec<ClientId>) {
        while let Some(replica) = self.partitions.replica(id) {
            let is_primary = replica.member.is_primary();
            let Some(effect) = replica.member.next_effect() else { return self.commit_next(id) };
            match effect {
                MirrorEffect::Send(packet) => {
                    if let Some(to) = self.where_to(packet.to(), is_primary) {
                        self.channel.add(PeerService::Mirror, to, parts_of(&packet));
                    }
                }
                MirrorEffect::Committed => self.release(id, out),
                MirrorEffect::Leads => {
                    holders.extend(replica.member.partition().holders());
                    self.metrics().add(registry::TERMS_BEGUN, 1);
                }
                MirrorEffect::Deposed => {
                    self.metrics().add(registry::TERMS_LOST, 1);
                    self.arena.retract_all();
                    self.release(id, out);
                }
                MirrorEffect::Append(_) | MirrorEffect::Discard | MirrorEffect::Checkpoint => {
                    self.log_effect(id, &effect);
                }
                MirrorEffect::Missed { target, kind } => {
                    tracing::debug!(dataset = %id.0, partition = %id.1, %target, ?kind, "missed");
                    self.metrics().add(registry::MEMBERS_MISSED, 1);
                    self.report(id, target, MemberChanges::Missed);
                }
                MirrorEffect::Synced { target } => self.report_synced(id, target),
                MirrorEffect::Damaged { .. }
                | MirrorEffect::Mended { .. }
                | MirrorEffect::Evened { .. } => {
                    self.scrub_found(id, &effect);
                }
                MirrorEffect::NoRoom { target } => {
                    tracing::warn!(dataset = %id.0, partition = %id.1, %target, "resync waits for room");
                }
                MirrorEffect::Broken { target, kind } => {
                    tracing::warn!(dataset = %id.0, partition = %id.1, %target, ?kind, "resync");
                    self.report(id, target, MemberChanges::Broken);
                }
            }
        }
    }

    /// How to reach a target. Messages of a primary go by the own connection, so that it stays in
    /// order; answers go back where the message came from.
    fn where_to(&self, target: TargetId, is_primary: bool) -> Option<PeerDestination> {
        let node = self.map.as_ref()?.node_of_target(target)?;
        let way_back = || self.channel.way_back(PeerService::Mirror, node);
        let back = if is_primary { None } else { way_back() };
        Some(back.unwrap_or(PeerDestination::Node(node)))
    }

    /// Sends the replies that wait for partition `id` no more, or sends their clients elsewhere.
    fn release(&mut self, id: PlaceId, out: &mut ReplySink) {
        loop {
            let Some(replica) = self.partitions.replica(id) else { return };
            let Some((commit_position, deferred)) = replica.deferred.front().copied() else {
                return;
            };
            let status = replica.member.commit_status(commit_position);
            if status == CommitStatus::Waiting {
                return;
            }
            replica.deferred.pop_front();
            if status == CommitStatus::Committed {
                if let Some(reply) = self.deferred.committed(deferred) {
                    self.let_go(reply, out);
                }
            } else {
                self.withdraw(deferred, out);
            }
        }
    }

    fn let_go(&mut self, reply: DeferredReply, out: &mut ReplySink) {
        match reply {
            DeferredReply::Client { conn, id, buffers, account, .. } => {
                self.send(conn, id, buffers, out);
                self.close_account(&account);
            }
            DeferredReply::Shard { to, answer } => self.send_answer(to, answer, out),
        }
    }

    /// The partition was lost before it has committed what the reply has seen: this node does not
    /// know whether that lives.
    pub(super) fn withdraw(&mut self, deferred: DeferredId, out: &mut ReplySink) {
        let kind = ErrorKind::StaleMap;
        match self.deferred.withdrawn(deferred) {
            Some(DeferredReply::Client { conn, id, grants, account, .. }) => {
                self.close_account(&account);
                let header = self.reply_header(Some(kind));
                let buffers = self.take_buffers().refusal(&header, &grants);
                self.send(conn, id, buffers, out);
            }
            Some(DeferredReply::Shard { to, answer }) => {
                let outcome =
                    PartialOutcome { outcomes: Vec::new(), refused: Some(kind), ..answer.outcome };
                let answer = ShardAnswer { outcome, ..answer };
                self.send_answer(to, answer, out);
            }
            None => {}
        }
    }

    fn report(&mut self, (dataset, partition): PlaceId, target: TargetId, change: MemberChanges) {
        let Some(map) = &self.map else { return };
        let Some(redundancy) = map.dataset_by_id(dataset).map(|known| known.spec.redundancy) else {
            return;
        };
        let Some(term) = self.partitions.replica((dataset, partition)).map(|p| p.member.term())
        else {
            return;
        };
        let epoch = map.epoch();
        let report = MemberReport { redundancy, partition, term, epoch, target, change };
        // Without room it is lost: the partition says it again until a map shows that it was heard.
        self.shared.membership.reports.add(report);
    }

    /// The coordinator has answered, with the map of `by`, a report that a member has missed something.
    pub(super) fn reported(&mut self, report: &MemberReport, by: Epoch) {
        let Some(map) = self.map.clone() else { return };
        let now = SystemClock.monotonic();
        let same = |known: &&DatasetData| known.spec.redundancy == report.redundancy;
        for known in map.datasets().iter().filter(same) {
            if let Some(replica) = self.partitions.mark_ready((known.id, report.partition)) {
                let said = (report.term, report.epoch);
                replica.member.missed_answered(report.target, said, by, now);
            }
        }
    }

    /// Reports a member up to date when it is in the partitions of all datasets of the group.
    pub(super) fn report_synced(&mut self, id: PlaceId, target: TargetId) {
        let Some(map) = self.map.clone() else { return };
        let Some(redundancy) = map.dataset_by_id(id.0).map(|known| known.spec.redundancy) else {
            return;
        };
        let all = map.datasets().iter().filter(|known| known.spec.redundancy == redundancy);
        let now = SystemClock.monotonic();
        let mut is_ready = true;
        for known in all {
            let other = (known.id, id.1);
            is_ready &= self.partitions.replica(other).is_some() || self.open_for(other, now);
            is_ready &= self
                .partitions
                .replica(other)
                .is_some_and(|replica| replica.member.ready(target, now));
        }
        if is_ready {
            self.report(id, target, MemberChanges::Synced);
        }
    }

    /// Looks at the partitions whose timers have expired.
    pub(super) fn tick_partitions(&mut self, out: &mut ReplySink) {
        let now = SystemClock.monotonic();
        while let Some(id) = self.partitions.take_timer(now) {
            if let Some(replica) = self.partitions.mark_ready(id) {
                replica.member.tick(now);
            }
        }
        self.settle(out);
    }
}

fn parts_of(packet: &PeerPacket) -> PeerMessageParts<'_> {
    PeerMessageParts {
        head: packet.head(),
        body: packet.body(),
        payload: packet.payload(),
        payload_len: packet.payload_len(),
    }
}
