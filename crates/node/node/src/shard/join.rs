//! Requests whose operations are on partitions of several shards of this node.
//!
//! The shard that received the request keeps it in its [`JoinedRequests`], sends a [`ShardTask`]
//! with a copy of the frame to every shard concerned, and answers when all have. Either every shard
//! has room for its task or none gets one, so a refused request has had no effect. Operations on
//! one partition stay in order: a connection's tasks for it go through one queue.
//!
//! [`JoinedRequests`]: crate::joined_requests::JoinedRequests

use std::sync::Arc;
use std::time::Duration;

use samite_mirror::ApplyTime;
use samite_partition::{AppliedOutcome, BlockGrants, NoGrants, RequestContext};
use samite_placement::shard_of;
use samite_transport::server::{ConnId, ConnectionPeer, ReplySink};
use samite_types::{ClientId, Clock, Epoch, ErrorKind, RequestId, ShardId, SystemClock};
use samite_wire::control::ControlReply;
use samite_wire::limits::PAYLOAD_LEN_MAX;
use samite_wire::op::{Operation, OperationRequest};

use super::ShardService;
use super::requests::context;
use crate::budget::ReplyBudget;
use crate::deferred_replies::DeferredReply;
use crate::delegation_waiters::{DelegationTurn, WaitingWork};
use crate::grants::ConnectionGrants;
use crate::inbox::{InboxCost, InboxMessage, ShardAnswer, ShardTask};
use crate::joined_requests::{JoinedAsker, PartialOutcome};
use crate::partitions::{ApplyContext, Seen};
use crate::peer_channel::PeerChannel;
use crate::reply::ReplyBuilder;
use crate::request_account::RequestAccount;

/// Most messages that a shard takes from its inbox before it looks at its connections again.
const MESSAGES_PER_WAKEUP: usize = 64;

impl ShardService {
    /// Sends the operations on other shards' partitions there, and applies the others.
    #[allow(clippy::too_many_arguments, reason = "one call, of what arrived with the request")]
    pub(super) fn scatter(
        &mut self,
        conn: ConnId,
        peer: &ConnectionPeer,
        id: RequestId,
        (body, payload): (&[u8], &[u8]),
        request: &OperationRequest<'_>,
        budget: &ReplyBudget,
        account: RequestAccount,
        (now, at): (Duration, ApplyTime),
        out: &mut ReplySink,
    ) {
        let Some(room) = self.reserve(request, body.len() + payload.len()) else {
            return self.refuse(conn, id, request, ErrorKind::Busy, out);
        };
        let blocks = self.named_blocks(conn, request, budget);
        let reads_in_place = out.shares_arena(conn);
        let account = account.waiting(|| SystemClock.monotonic());
        let asker = JoinedAsker { conn, request: id, budget: *budget, blocks, account };
        let mutations = request.operations.iter().map(Operation::is_mutation);
        let number = self.joins.begin(asker, mutations, room.len() + 1);
        let (body, payload): (Arc<[u8]>, Arc<[u8]>) = (body.into(), payload.into());
        let shards = self.shared.shards();
        // The operations that may name blocks.
        let blocks_of = || request.operations.iter().filter(|_| budget.has_blocks);
        for (shard, cost) in room {
            let theirs =
                blocks_of().filter(|operation| shard_of(operation.partition, shards) == shard);
            let grants = self.grants.split_off(conn, theirs);
            let task = ShardTask {
                from: self.id,
                join: number,
                client: peer.client,
                reads_in_place,
                payload_max: PAYLOAD_LEN_MAX,
                body: Arc::clone(&body),
                payload: Arc::clone(&payload),
                grants,
                cost,
                is_read: false,
            };
            self.shared.inboxes[usize::from(shard.get())].send(InboxMessage::Task(task));
        }
        let own = self.grants.split_off(conn, blocks_of());
        let (answer, seen) =
            self.apply_mine(number, (peer.client, reads_in_place), request, budget, (now, at), own);
        self.answer(answer, seen, (self.id, body.len() + payload.len()), out);
    }

    /// Room for a task of `len` bytes at each of the other shards concerned, or nothing.
    fn reserve(
        &self,
        request: &OperationRequest<'_>,
        len: usize,
    ) -> Option<Vec<(ShardId, InboxCost)>> {
        let shards = self.shared.shards();
        let mut others: Vec<ShardId> = request
            .operations
            .iter()
            .map(|operation| shard_of(operation.partition, shards))
            .filter(|shard| *shard != self.id)
            .collect();
        others.sort_unstable();
        others.dedup();
        others
            .into_iter()
            .map(|shard| {
                let inbox = &self.shared.inboxes[usize::from(shard.get())];
                Some((shard, inbox.reserve(len)?))
            })
            .collect()
    }

    /// Applies the operations on this shard's partitions.
    fn apply_mine(
        &mut self,
        join: u64,
        (client, reads_in_place): (ClientId, bool),
        request: &OperationRequest<'_>,
        budget: &ReplyBudget,
        (now, at): (Duration, ApplyTime),
        mut grants: ConnectionGrants,
    ) -> (ShardAnswer, Seen) {
        let shards = self.shared.shards();
        let term_max = self.shared.revocations.term_max(client, budget.lease_term);
        let context =
            RequestContext { reads_in_place, ..context(&request.header, budget, now, term_max) };
        let mut outcomes = Vec::new();
        let known = self
            .map
            .as_ref()
            .and_then(|map| Some((self.partitions.dataset(map, request.header.dataset)?, &**map)));
        let block_grants: &mut dyn BlockGrants =
            if budget.has_blocks { &mut grants } else { &mut NoGrants };
        let mut apply_context = ApplyContext::new(client, &context, block_grants, at);
        for (index, operation) in request.operations.iter().enumerate() {
            if shard_of(operation.partition, shards) != self.id {
                continue;
            }
            let outcome = match known {
                Some(known) => {
                    let partitions = &mut self.partitions;
                    self.submissions.apply_alone(partitions, known, operation, &mut apply_context)
                }
                // Dropped between the two shards' looks at the map.
                None => {
                    AppliedOutcome::Failed { kind: ErrorKind::NotFound, index: 0, current: None }
                }
            };
            outcomes.push((index, outcome));
        }
        let ApplyContext { name_space_generation, seen, .. } = apply_context;
        self.unlock_exclusive(Some(client));
        self.note_metrics();
        let outcome = PartialOutcome { outcomes, name_space_generation, refused: None };
        (ShardAnswer { join, outcome, unused: grants }, seen)
    }

    /// Answers the shard `to`, which may be this one, as soon as what the answer has `seen` is committed. `len`: bytes of the request.
    fn answer(
        &mut self,
        answer: ShardAnswer,
        seen: Seen,
        (to, len): (ShardId, usize),
        out: &mut ReplySink,
    ) {
        if seen.is_empty() {
            self.send_answer(to, answer, out);
        } else {
            self.defer_reply(seen, DeferredReply::Shard { to, answer }, len);
        }
    }

    /// Sends an answer that waits for nothing.
    pub(super) fn send_answer(&mut self, to: ShardId, answer: ShardAnswer, out: &mut ReplySink) {
        if to == self.id {
            self.joined(answer, out);
        } else {
            self.shared.inboxes[usize::from(to.get())].send(InboxMessage::Answer(answer));
        }
    }

    /// One shard has answered; when it was the last, so does the node.
    fn joined(&mut self, answer: ShardAnswer, out: &mut ReplySink) {
        let ShardAnswer { join, outcome, unused } = answer;
        let Some(asker) = self.joins.asker(join) else { return };
        // The connection may be gone; then so are its grants, and the unused ones go with this answer.
        self.grants.merge(asker.conn, unused);
        let Some(joined) = self.joins.answered(join, outcome) else { return };
        let JoinedAsker { conn, request, budget, ref blocks, account } = joined.asker;
        self.close_account(&account);
        let grants = self.grants.regrant(conn, blocks);
        let header = self.reply_header(joined.refused);
        if joined.refused.is_some() {
            let buffers = self.take_buffers().refusal(&header, &grants);
            return self.send(conn, request, buffers, out);
        }
        let by_reference = out.shares_arena(conn);
        let mut builder = ReplyBuilder::new(self.take_buffers(), &header, &budget, by_reference);
        let name_space_generation = joined.name_space_generation;
        for (outcome, mutation) in joined.outcomes() {
            builder.outcome(outcome, mutation);
        }
        self.account_reply(&account, &builder);
        let buffers = builder.finish(name_space_generation, &grants);
        self.send(conn, request, buffers, out);
    }

    /// Works through the inbox.
    pub(super) fn take_messages(&mut self, out: &mut ReplySink) {
        for _ in 0..MESSAGES_PER_WAKEUP {
            let inbox = &self.shared.inboxes[usize::from(self.id.get())];
            match inbox.take() {
                None => return,
                Some(InboxMessage::Task(task)) => self.task(task, out),
                Some(InboxMessage::Answer(answer)) => self.joined(answer, out),
                Some(InboxMessage::Returned(returned)) => self.returned(&returned, out),
                Some(InboxMessage::Control(to, reply)) => self.send_control(to, &reply, out),
                Some(InboxMessage::Gone(client)) => self.drop_client(client),
                Some(InboxMessage::Released(queue)) => self.clear_queue(queue),
                Some(InboxMessage::Passed(passed)) => self.take_passed(passed, out),
                Some(InboxMessage::Copy(to, id, cost)) => {
                    drop(cost);
                    let copy = ControlReply::Copy(self.copy_of(id));
                    let inbox = &self.shared.inboxes[usize::from(to.shard.get())];
                    inbox.send(InboxMessage::Control(to, copy));
                }
                Some(InboxMessage::Reported(report, by)) => self.reported(&report, by),
                Some(InboxMessage::Frame(passed)) => PeerChannel::send_passed(&passed, out),
                Some(InboxMessage::Committed(id, position)) => self.committed(id, position),
                Some(InboxMessage::ReadAhead(number)) => self.read_was_done(number, out),
                Some(InboxMessage::Beat) => self.shared.beat(),
            }
        }
        // There may be more: come back after the other connections were served.
        self.shared.inboxes[usize::from(self.id.get())].wake();
    }

    /// Carries out the operations of a task, or lets it wait for delegations.
    pub(super) fn task(&mut self, task: ShardTask, out: &mut ReplySink) {
        self.apply_submissions();
        // The sender has decoded the same bytes, and made the same budget of them.
        let (body, payload) = (Arc::clone(&task.body), Arc::clone(&task.payload));
        let len = body.len() + payload.len();
        let decoded = OperationRequest::decode(&body, &payload).ok();
        let budgeted = decoded
            .and_then(|request| Some((ReplyBudget::of(&request, task.payload_max).ok()?, request)));
        let Some((budget, request)) = budgeted else {
            return self.turn_down(task, ErrorKind::Internal, out);
        };
        let map = self.map.as_ref();
        let slot = map.and_then(|map| self.partitions.dataset(map, request.header.dataset));
        if let Some(slot) = slot.filter(|_| !task.is_read)
            && let Some(cold) = self.cold_reads_of(slot, &request, len)
        {
            return self.await_reads(WaitingWork::Task(task), cold);
        }
        let mut at = ApplyTime::default();
        self.lock_records(task.client, &request, &budget);
        let now = self.time_for(&budget);
        if let Some(slot) = slot {
            // The shard that has admitted the request may have had an older map.
            if self.partitions.policy(slot).holds_back(&request.operations) {
                return self.turn_down(task, ErrorKind::Busy, out);
            }
            if self.partitions.is_grouped(slot) {
                at = self.apply_time();
                if let Err(kind) = self.check_members(slot, &request, (at, len), out) {
                    return self.turn_down(task, kind, out);
                }
            }
            if let DelegationTurn::Later(until) =
                self.may_run(slot, task.client, &request, (now, at), None)
            {
                return self.park(WaitingWork::Task(task), until);
            }
        }
        let ShardTask { from, join, client, reads_in_place, grants, cost, .. } = task;
        let client = (client, reads_in_place);
        let (answer, seen) = self.apply_mine(join, client, &request, &budget, (now, at), grants);
        drop(cost);
        self.answer(answer, seen, (from, len), out);
    }

    /// Answers a task of which nothing was done.
    fn turn_down(&mut self, task: ShardTask, kind: ErrorKind, out: &mut ReplySink) {
        let ShardTask { from, join, grants, cost, .. } = task;
        drop(cost);
        let (outcomes, name_space_generation) = (Vec::new(), Epoch(0));
        let outcome = PartialOutcome { outcomes, name_space_generation, refused: Some(kind) };
        self.send_answer(from, ShardAnswer { join, outcome, unused: grants }, out);
    }
}
