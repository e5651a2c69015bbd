//! Requests whose operations are on partitions of several shards of this node.
//!
//! The shard that received the request keeps a [`Join`], sends a [`Task`] with a copy of the frame to every shard concerned, and
//! answers when all have. Either every shard has room for its task or none gets one, so a refused request has had no effect.
//! Operations on one partition stay in order: a connection's tasks for it go through one queue.

use std::sync::Arc;
use std::time::Duration;

use samite_partition::{Grants, NoGrants, Outcome};
use samite_placement::shard_of;
use samite_transport::server::{ConnId, Peer, Replies};
use samite_types::{Epoch, ErrorKind, RequestId, ShardId};
use samite_wire::limits::PAYLOAD_LEN_MAX;
use samite_wire::op::Request;

use crate::budget::Budget;
use crate::grants::ConnectionGrants;
use crate::inbox::{Answer, Cost, Message, Task};
use crate::parked::{Turn, Work};
use crate::reply::ReplyBuilder;
use crate::shard::{NamedBlocks, Shard, context};

/// Most messages that a shard takes from its inbox before it looks at its connections again.
const MESSAGES_PER_WAKEUP: usize = 64;

/// A request that waits for other shards.
pub(crate) struct Join {
    conn: ConnId,
    request: RequestId,
    budget: Budget,
    blocks: NamedBlocks,
    /// One for each operation, and whether it is a mutation.
    outcomes: Vec<(Option<Outcome>, bool)>,
    waiting: usize,
    lease_epoch: Epoch,
}

impl Shard {
    /// Sends the operations on other shards' partitions there, and applies the others.
    #[allow(clippy::too_many_arguments, reason = "one call, of what arrived with the request")]
    pub(crate) fn scatter(
        &mut self,
        conn: ConnId,
        peer: &Peer,
        id: RequestId,
        (body, payload): (&[u8], &[u8]),
        request: &Request<'_>,
        budget: &Budget,
        now: Duration,
        out: &mut Replies,
    ) {
        let Some(room) = self.reserve(request, body.len() + payload.len()) else {
            return self.refuse(conn, id, request, ErrorKind::Busy, out);
        };
        let blocks = self.named_blocks(conn, request, budget);
        let number = self.next_join;
        self.next_join += 1;
        let join = Join {
            conn,
            request: id,
            budget: *budget,
            blocks,
            outcomes: request.operations.iter().map(|op| (None, op.is_mutation())).collect(),
            waiting: room.len() + 1,
            lease_epoch: Epoch(0),
        };
        self.joins.insert(number, join);
        let (body, payload): (Arc<[u8]>, Arc<[u8]>) = (body.into(), payload.into());
        let shards = self.shared.shards();
        for (shard, cost) in room {
            let mut grants = self.granter.nothing();
            if let Some(held) = self.grants.get_mut(&conn).filter(|_| budget.has_blocks) {
                for operation in &request.operations {
                    if shard_of(operation.partition, shards) == shard {
                        held.split_off(operation, &mut grants);
                    }
                }
            }
            let task = Task {
                from: self.id,
                join: number,
                client: peer.client,
                payload_max: PAYLOAD_LEN_MAX,
                body: Arc::clone(&body),
                payload: Arc::clone(&payload),
                grants,
                cost,
            };
            self.shared.inboxes[usize::from(shard.get())].send(Message::Task(task));
        }
        let mut own = self.granter.nothing();
        if let Some(held) = self.grants.get_mut(&conn).filter(|_| budget.has_blocks) {
            for operation in &request.operations {
                held.split_off(operation, &mut own);
            }
        }
        let answer = self.apply_mine(number, peer.client, request, budget, now, own);
        self.joined(answer, out);
    }

    /// Room for a task of `len` bytes at each of the other shards concerned, or nothing.
    fn reserve(&self, request: &Request<'_>, len: usize) -> Option<Vec<(ShardId, Cost)>> {
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
        client: samite_types::ClientId,
        request: &Request<'_>,
        budget: &Budget,
        now: Duration,
        mut grants: ConnectionGrants,
    ) -> Answer {
        let shards = self.shared.shards();
        let term_max = self.lease_term_max(client, budget.lease_term);
        let context = context(&request.header, budget, now, term_max);
        let mut lease_epoch = Epoch(0);
        let mut outcomes = Vec::new();
        let slot =
            self.map.as_ref().and_then(|map| self.partitions.dataset(map, request.header.dataset));
        let lent: &mut dyn Grants = if budget.has_blocks { &mut grants } else { &mut NoGrants };
        for (index, operation) in request.operations.iter().enumerate() {
            if shard_of(operation.partition, shards) != self.id {
                continue;
            }
            let outcome = match &slot {
                Some(slot) => {
                    self.partitions.apply(slot, client, &context, operation, lent, &mut lease_epoch)
                }
                // Dropped between the two shards' looks at the map.
                None => Outcome::Failed { kind: ErrorKind::NotFound, index: 0, current: None },
            };
            outcomes.push((index, outcome));
        }
        self.note_figures();
        Answer { join, outcomes, lease_epoch, unused: grants }
    }

    /// One shard has answered; when it was the last, so does the node.
    fn joined(&mut self, answer: Answer, out: &mut Replies) {
        let Some(join) = self.joins.get_mut(&answer.join) else { return };
        join.lease_epoch = join.lease_epoch.max(answer.lease_epoch);
        join.waiting -= 1;
        for (index, outcome) in answer.outcomes {
            join.outcomes[index].0 = Some(outcome);
        }
        // The connection may be gone; then so are its grants, and the unused ones go with this answer.
        if let Some(grants) = self.grants.get_mut(&join.conn) {
            grants.merge(answer.unused);
        }
        if join.waiting > 0 {
            return;
        }
        let Some(join) = self.joins.remove(&answer.join) else { return };
        let header = self.reply_header(None);
        let by_reference = out.shares_arena(join.conn);
        let mut builder =
            ReplyBuilder::new(self.take_buffers(), &header, &join.budget, by_reference);
        for (outcome, mutation) in join.outcomes {
            let missing = || Outcome::Failed { kind: ErrorKind::Internal, index: 0, current: None };
            builder.outcome(outcome.unwrap_or_else(missing), mutation);
        }
        let grants = self.regrant(join.conn, &join.blocks);
        let buffers = builder.finish(join.lease_epoch, &grants);
        self.send(join.conn, join.request, buffers, out);
    }

    /// Works through the inbox.
    pub(crate) fn take_messages(&mut self, out: &mut Replies) {
        for _ in 0..MESSAGES_PER_WAKEUP {
            let inbox = &self.shared.inboxes[usize::from(self.id.get())];
            match inbox.take() {
                None => return,
                Some(Message::Task(task)) => self.task(task),
                Some(Message::Answer(answer)) => self.joined(answer, out),
                Some(Message::Returned(returned)) => self.returned(&returned, out),
                Some(Message::Control(to, reply)) => self.send_control(to, &reply, out),
                Some(Message::Gone(client)) => self.drop_client(client),
            }
        }
        // There may be more: come back after the connections have had their turn.
        self.shared.inboxes[usize::from(self.id.get())].wake();
    }

    /// Carries out the operations of a task, or parks it.
    pub(crate) fn task(&mut self, task: Task) {
        // The sender has decoded the same bytes, and made the same budget of them.
        let (body, payload) = (Arc::clone(&task.body), Arc::clone(&task.payload));
        let decoded = Request::decode(&body, &payload).ok();
        let budgeted = decoded
            .and_then(|request| Some((Budget::of(&request, task.payload_max).ok()?, request)));
        let answer = match budgeted {
            Some((budget, request)) => {
                let now = self.time_for(&budget);
                let map = self.map.as_ref();
                let slot = map.and_then(|map| self.partitions.dataset(map, request.header.dataset));
                let turn = slot.map(|slot| self.turn(&slot, task.client, &request, now, None));
                if let Some(Turn::Later(until)) = turn {
                    return self.park(Work::Task(task), until);
                }
                self.apply_mine(task.join, task.client, &request, &budget, now, task.grants)
            }
            None => Answer {
                join: task.join,
                outcomes: Vec::new(),
                lease_epoch: Epoch(0),
                unused: task.grants,
            },
        };
        drop(task.cost);
        self.shared.inboxes[usize::from(task.from.get())].send(Message::Answer(answer));
    }
}
